"""Layers that share their weights: equal to layers of their own with equal weights."""

import pytest
import torch

from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanModel

SIZES = {"num_hidden_layers": 5, "vocab_size": 30, "max_position_embeddings": 24, "pooling": "last"}
GROUPS = {1: [0, 0, 0, 0, 0], 2: [0, 0, 0, 1, 1], 5: [0, 1, 2, 3, 4]}
FORMS = {
    "full": {},
    "local": {"attention": "local", "attention_options": {"window": 3}},
    "relative": {"position": "relative"},
}


def make_pair(groups, cls=LongspanModel, **fields):
    """Return a model whose layers share weights, and one with a copy of them in each layer."""
    torch.manual_seed(0)
    shared = cls(LongspanConfig(**SIZES, **fields, num_hidden_groups=groups)).double().eval()
    own = cls(LongspanConfig(**SIZES, **fields)).double().eval()
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    state = shared.state_dict()
    for name in own.state_dict():
        before, found, after = name.rpartition("layers.")
        layer, _, rest = after.partition(".")
        source = f"{before}layers.{GROUPS[groups][int(layer)]}.{rest}" if found else name
        own.state_dict()[name].copy_(state[source])
    return shared, own


def make_inputs():
    ids = torch.randint(30, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", GROUPS)
def test_shared_layers_equal_copies(groups, form):
    shared, own = make_pair(groups, **FORMS[form])
    assert len(shared.layers) == groups
    inputs = make_inputs()
    found, expected = (model(**inputs, output_hidden_states=True) for model in (shared, own))
    assert len(found.hidden_states) == 6
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    for out in (found, expected):
        out.last_hidden_state.square().sum().backward()
    gradients = [layer.feed_forward.input.weight.grad for layer in own.layers]
    for group, layer in enumerate(shared.layers):
        parts = [x for x, y in zip(gradients, GROUPS[groups], strict=True) if y == group]
        wanted = torch.stack(parts).sum(0)
        torch.testing.assert_close(layer.feed_forward.input.weight.grad, wanted)


@torch.no_grad()
@pytest.mark.parametrize("form", ["full", "local"])
def test_decoders_keep_a_state_for_every_layer(form, tmp_path):
    shared, own = make_pair(2, LongspanForCausalLM, **FORMS[form], pad_token_id=0)
    shared.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path).eval()
    fixed = {"max_new_tokens": 4, "do_sample": False}
    expected = own.generate(**make_inputs(), **fixed)
    for model in (shared, loaded):
        assert model.generate(**make_inputs(), **fixed).equal(expected)
    state = shared(**make_inputs(), use_cache=True).past_key_values
    assert len(state.layers) == 5
    rows = torch.tensor([True, False])
    cleared = [m.model.clear_rows(m(**make_inputs()).past_key_values, rows) for m in (shared, own)]
    ids = torch.full((2, 1), 3)
    a, b = (m(ids, past_key_values=c).logits for m, c in zip((shared, own), cleared, strict=True))
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("zeros", ["relative.relative_attention_bias", "embeddings.positions"])
def test_bias_of_distances_stands_beside_learned_positions(zeros):
    """With one of the tables zero, the model is that with the other alone."""
    fields = {**SIZES, "attention": "local", "attention_options": {"window": 5}}
    torch.manual_seed(0)
    both = LongspanModel(LongspanConfig(**fields, has_relative_attention_bias=True)).double().eval()
    for parameter in both.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    before = both(**make_inputs()).last_hidden_state
    both.get_submodule(zeros).weight.zero_()
    position = "t5" if zeros.startswith("embeddings") else "learned"
    one = LongspanModel(LongspanConfig(**fields, position=position)).double().eval()
    one.load_state_dict({x: y for x, y in both.state_dict().items() if not x.startswith(zeros)})
    found = both(**make_inputs()).last_hidden_state
    torch.testing.assert_close(found, one(**make_inputs()).last_hidden_state, atol=1e-12, rtol=0)
    assert not torch.allclose(found, before)
