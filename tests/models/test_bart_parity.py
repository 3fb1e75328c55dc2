"""Parity with encoder-decoders of transformers: states, gradients and generated tokens.

BART normalizes after each block, Pegasus before it; LED is BART with Longformer's encoder.
"""

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LEDConfig,
    LEDForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
)

from longspan.models import LongspanConfig, LongspanForConditionalGeneration

SHARED = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
LAYER_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.input": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
LED_NAMES = {
    "attention.query": "self_attn.longformer_self_attn.query",
    "attention.key": "self_attn.longformer_self_attn.key",
    "attention.value": "self_attn.longformer_self_attn.value",
    "attention.mechanism.projections.query": "self_attn.longformer_self_attn.query_global",
    "attention.mechanism.projections.key": "self_attn.longformer_self_attn.key_global",
    "attention.mechanism.projections.value": "self_attn.longformer_self_attn.value_global",
    "attention.output": "self_attn.output",
}


def names_of(ours, encoder_names, prefix):
    """Return the modules with parameters of ours, and their names in transformers."""
    names = {}
    for part in ("encoder", "decoder"):
        names[f"model.{part}.embeddings.words"] = f"{prefix}.{part}.embed_tokens"
        if ours.config.norm == "post":
            names[f"model.{part}.embeddings.norm"] = f"{prefix}.{part}.layernorm_embedding"
        else:
            names[f"model.{part}.norm"] = f"{prefix}.{part}.layer_norm"
        table = LAYER_NAMES | (encoder_names if part == "encoder" else {})
        for i, layer in enumerate(getattr(ours.model, part).layers):
            modules = {
                name for name, x in layer.named_modules() if list(x.parameters(recurse=False))
            }
            for name in table.keys() & modules:
                names[f"model.{part}.layers.{i}.{name}"] = (
                    f"{prefix}.{part}.layers.{i}.{table[name]}"
                )
    return names


@torch.no_grad()
def copy_weights(theirs, ours, encoder_names, offset):
    """Draw weights of transformers' model and copy them; return the names of the modules."""
    for name, x in theirs.named_parameters():
        # Not far from linear: the states would saturate.
        x.normal_(1.0 if "norm.weight" in name else 0.0, 0.3)
    theirs.final_logits_bias.normal_()
    names = names_of(ours, encoder_names, theirs.base_model_prefix)
    for mine, other in names.items():
        ours.get_submodule(mine).load_state_dict(theirs.get_submodule(other).state_dict())
    for part in ("encoder", "decoder"):
        table = getattr(theirs.base_model, part).embed_positions.weight
        getattr(ours.model, part).embeddings.positions.weight.copy_(table[offset:])
    ours.lm_head.bias.copy_(theirs.final_logits_bias[0])
    copied = {id(ours.get_submodule(x).weight) for x in names}
    own = [n for n, x in ours.named_parameters() if n.endswith("weight") and id(x) not in copied]
    assert all("positions" in name for name in own)
    return names


def bart_and_ours(attention="full", options=None, scaled=False, norm="post"):
    """Return BART or Pegasus, our model with its weights, in float64, and names of modules."""
    kinds = {
        "post": (BartForConditionalGeneration, BartConfig, 2),
        "pre": (PegasusForConditionalGeneration, PegasusConfig, 0),
    }
    model_class, config_class, offset = kinds[norm]
    torch.manual_seed(0)
    bart = model_class(
        config_class(
            vocab_size=50,
            d_model=16,
            max_position_embeddings=40,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            dropout=0.0,
            scale_embedding=scaled,
            activation_function="gelu",
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            attn_implementation="eager",
        )
    )
    config = LongspanConfig(
        **SHARED,
        norm=norm,
        scale_embedding=scaled,
        max_position_embeddings=40,
        attention=attention,
        attention_options=options or {},
        is_encoder_decoder=True,
        decoder_overrides={"num_hidden_layers": 1},
    )
    ours = LongspanForConditionalGeneration(config)
    bart, ours = bart.double().eval(), ours.double().eval()
    return bart, ours, copy_weights(bart, ours, {}, offset)


def inputs():
    """Return an input with padding on both sides, and the decoder's tokens; no id is special."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 50, (3, 13), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 9:], mask[1, :4] = 0, 0
    labels = torch.randint(3, 50, (3, 7), generator=generator)
    return ids, mask, labels


ENCODERS = {
    "full": ("full", {}),
    "covering window": ("local", {"window": 13}),
    "Longformer": ("longformer", {"window": 13}),
}


@pytest.mark.parametrize(("norm", "scaled"), [("post", False), ("post", True), ("pre", False)])
@pytest.mark.parametrize(("attention", "options"), ENCODERS.values(), ids=ENCODERS)
def test_logits_and_gradients_equal_bart_and_pegasus(attention, options, norm, scaled):
    bart, ours, names = bart_and_ours(attention, options, scaled, norm)
    ids, mask, labels = inputs()
    labels[0, 5:] = -100
    theirs = bart(ids, mask, labels=labels)
    mine = ours(ids, mask, labels=labels)
    torch.testing.assert_close(mine.logits, theirs.logits, rtol=0, atol=1e-10)
    torch.testing.assert_close(mine.loss, theirs.loss, rtol=0, atol=1e-12)
    states = theirs.encoder_last_hidden_state * mask[..., None]
    torch.testing.assert_close(mine.encoder_last_hidden_state, states, rtol=0, atol=1e-10)
    theirs.loss.backward()
    mine.loss.backward()
    for name, other in names.items():
        found, expected = ours.get_submodule(name), bart.get_submodule(other)
        for key, parameter in found.named_parameters():
            gradient = getattr(expected, key).grad
            rows = slice(None)
            if isinstance(found, nn.Embedding):
                rows = torch.arange(50) != 1  # BART does not train the padding token
            assert gradient.abs().max() > 0
            torch.testing.assert_close(
                parameter.grad[rows], gradient[rows], rtol=0, atol=1e-10, msg=f"{name}.{key}"
            )


GENERATION = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "beams with penalty": {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    "no cache": {"num_beams": 3, "use_cache": False},
}


@torch.no_grad()
@pytest.mark.parametrize("options", GENERATION.values(), ids=GENERATION)
def test_generation_equals_bart(options):
    bart, ours, _ = bart_and_ours("local", {"window": 13})
    ids, mask, _ = inputs()
    options = {"max_new_tokens": 12, "do_sample": False, **options}
    expected = bart.generate(ids, attention_mask=mask, **options)
    found = ours.generate(ids, attention_mask=mask, **options)
    assert found.equal(expected)
    assert len({tuple(row) for row in found.tolist()}) > 1


def led_and_ours(window):
    """Return LED and our model with its weights, in float64."""
    torch.manual_seed(0)
    led = LEDForConditionalGeneration(
        LEDConfig(
            vocab_size=50,
            d_model=16,
            max_encoder_position_embeddings=48,
            max_decoder_position_embeddings=20,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            dropout=0.0,
            attention_window=2 * window,
        )
    )
    config = LongspanConfig(
        **SHARED,
        norm="post",
        max_position_embeddings=48,
        attention="longformer",
        attention_options={"window": window, "global_projections": True},
        is_encoder_decoder=True,
        decoder_overrides={"num_hidden_layers": 1, "max_position_embeddings": 20},
    )
    ours = LongspanForConditionalGeneration(config)
    led, ours = led.double().eval(), ours.double().eval()
    copy_weights(led, ours, LED_NAMES, offset=0)
    return led, ours


@torch.no_grad()
def test_states_and_generation_equal_led():
    led, ours = led_and_ours(window=3)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 50, (3, 31), generator=generator)
    labels = torch.randint(3, 50, (3, 7), generator=generator)
    mask, global_mask = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, 22:] = 0
    global_mask[0, 0] = global_mask[1, [0, 5, 20]] = 1
    masks = {"attention_mask": mask, "global_attention_mask": global_mask}
    theirs, mine = led(ids, labels=labels, **masks), ours(ids, labels=labels, **masks)
    real = mask.bool()
    # transformers computes LED's softmax in float32.
    torch.testing.assert_close(
        mine.encoder_last_hidden_state[real],
        theirs.encoder_last_hidden_state[real],
        rtol=0,
        atol=2e-5,
    )
    torch.testing.assert_close(mine.logits, theirs.logits, rtol=0, atol=2e-5)
    options = {"max_new_tokens": 10, "do_sample": False, **masks}
    for beams in (1, 3):
        found = ours.generate(ids, num_beams=beams, **options)
        assert found.equal(led.generate(ids, num_beams=beams, **options))
    without = ours.generate(ids, attention_mask=mask, max_new_tokens=10, num_beams=3)
    assert not without.equal(found)
