"""Sinks of transformers' attention modules (s_aux): computed with their gradient, or refused."""

import copy

import pytest
import torch
from tiny_transformers import GROUPED
from transformers import GptOssConfig, GptOssForCausalLM, StaticCache

import longspan
from longspan.errors import InputError

IDS = torch.arange(3, 27).repeat(2, 1)
MASK = torch.ones_like(IDS)
MASK[0, :7] = 0
# One layer has a sliding window, the other has none.
CONFIG = GptOssConfig(
    **GROUPED, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1
)


def gpt_oss(attention):
    """Build gpt-oss in float64, with equal weights for every attention."""
    torch.manual_seed(0)
    model = GptOssForCausalLM._from_config(
        copy.deepcopy(CONFIG),
        attn_implementation=attention,
        experts_implementation="eager",
        dtype=torch.float64,
    ).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    assert model.config._attn_implementation == attention
    return model


def implementation(name):
    """Register full attention, or a window of all tokens."""
    if name == "full":
        return longspan.register_attention("full")
    return longspan.register_attention("local", name="all-tokens", window=64)


@pytest.mark.parametrize("name", ["full", "local"])
def test_logits_and_gradients_equal_those_of_transformers(name):
    both = gpt_oss(implementation(name)), gpt_oss("eager")
    outs = [model(IDS, attention_mask=MASK).logits[MASK.bool()] for model in both]
    torch.testing.assert_close(*outs)
    for out in outs:
        out.square().mean().backward()
    for (parameter, x), y in zip(both[0].named_parameters(), both[1].parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, msg=lambda text, n=parameter: f"{n}: {text}")
    assert all(layer.self_attn.sinks.grad.any() for layer in both[0].model.layers)


@torch.no_grad()
@pytest.mark.parametrize("name", ["full", "local"])
def test_generated_texts_equal_those_of_transformers(name):
    both = gpt_oss(implementation(name)), gpt_oss("eager")
    fixed = {"attention_mask": MASK, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(*(model.generate(IDS, **fixed) for model in both))
    static = StaticCache(config=both[0].config, max_cache_len=48)
    out = both[0](IDS[:, :20], past_key_values=static).logits
    torch.testing.assert_close(out, both[1](IDS[:, :20]).logits)


@torch.no_grad()
def test_sinks_without_a_mechanism_that_has_them_are_refused():
    with pytest.raises(InputError, match=r"sink_logits is not supported \(traits\.sink_logits\)"):
        gpt_oss(longspan.register_attention("linear"))(IDS)
    message = r"layers\.1\.self_attn has sinks beside its scores, which linear does not support"
    with pytest.raises(InputError, match=message):
        longspan.swap(gpt_oss("eager"), "linear")


@torch.no_grad()
def test_swapped_modules_keep_their_sinks():
    model, expected = gpt_oss("eager"), gpt_oss("eager")(IDS, attention_mask=MASK).logits
    report = longspan.swap(model, "local", window=64)
    assert report.swapped == {"layers.1.self_attn": 0}
    out = model(IDS, attention_mask=MASK).logits
    torch.testing.assert_close(out[MASK.bool()], expected[MASK.bool()])
    model.model.layers[1].self_attn.sinks += 3
    assert not torch.allclose(model(IDS, attention_mask=MASK).logits, out)


def test_first_tokens_of_an_implementation_have_no_parameters():
    name = longspan.register_attention("local", name="streaming", window=6, sink_tokens=4)
    model = gpt_oss(name)
    plain = gpt_oss(longspan.register_attention("local", name="window-6", window=6))
    out, other = (x(IDS).logits for x in (model, plain))
    torch.testing.assert_close(out[:, :7], other[:, :7])
    assert not torch.allclose(out[:, 12:], other[:, 12:])
