"""Caches of fixed size, whose mask passes through transformers twice: once by `generate`."""

import copy

import pytest
import torch
from tiny_transformers import GROUPED
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

import longspan
from longspan.interop.decoding import attend_last
from longspan.models.heads.language import CACHE_NAME

LONG = 9


def own():
    return longspan.register_attention("full")


def pair_of(cls, config):
    """Build a model twice, with equal weights: with attention of longspan, and with sdpa."""
    torch.manual_seed(0)
    models = [cls(copy.deepcopy(config)).double().eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0].set_attn_implementation(own())
    models[1].set_attn_implementation("sdpa")
    return models


def prompt():
    ids, mask = torch.randint(3, 40, (3, LONG)), torch.ones(3, LONG, dtype=torch.long)
    mask[0, :4] = 0
    mask[1, :1] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "hybrid", "sliding_window"])
@pytest.mark.parametrize("window", [None, 5], ids=["far", "window"])
@torch.no_grad()
def test_logits_of_generation_equal_those_of_torch(window, kind, padded):
    config = MistralConfig(**GROUPED, sliding_window=window)
    inputs = prompt()
    if not padded:
        del inputs["attention_mask"]
    options = {"do_sample": False, "max_new_tokens": 8, "output_logits": True}
    options |= {"return_dict_in_generate": True, "cache_implementation": kind}
    found, expected = (
        torch.stack(model.generate(**inputs, **options).logits)
        for model in pair_of(MistralForCausalLM, config)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_bias_of_an_encoder_decoder_fits_the_keys_of_a_cache(kind, padded):
    config = T5Config(
        vocab_size=40,
        d_model=32,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    inputs = prompt()
    if not padded:
        del inputs["attention_mask"]
    options = {"do_sample": False, "max_new_tokens": 6, "output_logits": True}
    options |= {"return_dict_in_generate": True, "cache_implementation": kind}
    found, expected = (
        torch.stack(model.generate(**inputs, **options).logits)
        for model in pair_of(T5ForConditionalGeneration, config)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("create", [create_causal_mask, create_bidirectional_mask])
def test_a_mask_that_was_created_is_passed_on(create):
    config = MistralConfig(**GROUPED, sliding_window=None)
    config._attn_implementation = own()
    inputs = prompt()
    cache = StaticCache(config=config, max_cache_len=20) if create is create_causal_mask else None
    arguments = {"config": config, "inputs_embeds": torch.zeros(3, LONG, 32)}
    if cache is not None:
        arguments[CACHE_NAME] = cache
    once = create(attention_mask=inputs["attention_mask"], **arguments)
    assert once.tolist() == inputs["attention_mask"].bool()[:, None, None].tolist()
    assert create(attention_mask=once, **arguments) is once


def test_keys_alone_are_marked(monkeypatch):
    model = pair_of(MistralForCausalLM, MistralConfig(**GROUPED, sliding_window=None))[0]
    inputs, seen = prompt(), []
    monkeypatch.setattr(
        "longspan.interop.calls.attend_last",
        lambda *x, **y: seen.append(x[4]) or attend_last(*x, **y),
    )
    model(**inputs)
    assert [x.tolist() for x in seen] == 2 * [inputs["attention_mask"].bool().tolist()]
