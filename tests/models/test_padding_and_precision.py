"""Every mechanism in a model: padding on any side, batches of any size, half precision."""

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.models import (
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanModel,
)
from longspan.training.distributed.sharding import recompute_activations

T = 19
REAL = {
    "left": [slice(6, T), slice(T - 1, T), slice(0, T)],
    "right": [slice(0, 13), slice(0, 1), slice(0, T)],
    "interior": [[0, 1, 2, 7, 8, 11, 17], [4, 5, 14], [*range(0, T, 2)]],
}
NAMES = sorted(MECHANISMS)


def padded_batch(side):
    """Return ids and a mask with other padding in each row."""
    ids, mask = torch.randint(1, 50, (3, T)), torch.zeros(3, T, dtype=torch.long)
    for row, real in zip(mask, REAL[side], strict=True):
        row[real] = 1
    return ids, mask


def small_options(name):
    return {"attention": name, "attention_options": dict(MECHANISMS[name].small_options)}


@torch.no_grad()
@pytest.mark.parametrize("side", REAL)
@pytest.mark.parametrize("name", NAMES)
def test_padding_on_any_side_has_no_content(small, name, side):
    model = LongspanModel(small(**small_options(name))).double().eval()
    ids, mask = padded_batch(side)
    found = model(ids, mask)
    others = torch.where(mask.bool(), ids, ids % 49 + 1)
    torch.testing.assert_close(model(others, mask).pooler_output, found.pooler_output)
    assert found.last_hidden_state[mask == 0].eq(0).all()
    changed = torch.where(mask.bool(), ids % 49 + 1, ids)
    assert not torch.isclose(model(changed, mask).pooler_output, found.pooler_output).all(1).any()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_are_those_of_batches_of_one(small, name):
    model = LongspanModel(small(**small_options(name))).double().eval()
    for side in REAL:
        ids, mask = padded_batch(side)
        found = model(ids, mask)
        for row in range(3):
            alone = model(ids[row : row + 1], mask[row : row + 1])
            torch.testing.assert_close(alone.last_hidden_state[0], found.last_hidden_state[row])
            torch.testing.assert_close(alone.pooler_output[0], found.pooler_output[row])


@torch.no_grad()
@pytest.mark.parametrize("side", REAL)
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary"])
@pytest.mark.parametrize("cls", [LongspanForMaskedLM, LongspanForCausalLM])
def test_counted_positions_make_padding_equal_to_its_absence(small, cls, position, side):
    """With full attention, only positions could tell where padding was."""
    model = cls(small(position=position, positions_skip_padding=True)).double().eval()
    ids, mask = padded_batch(side)
    ids = ids.masked_fill(mask == 0, model.config.pad_token_id)
    found = model(ids, mask).logits
    for row in range(3):
        real = mask[row].bool()
        alone = model(ids[row : row + 1, real]).logits[0]
        torch.testing.assert_close(alone, found[row, real])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_models_in_half_precision_are_close_to_float32(small, name, dtype):
    config = small(**small_options(name), initializer_range=0.1)
    model = LongspanForSequenceClassification(config)
    ids, mask = padded_batch("right")
    labels = torch.tensor([0, 1, 0])
    expected = model(ids, mask, labels=labels)
    output = model.to(dtype)(ids, mask, labels=labels)
    assert output.logits.dtype == dtype
    torch.testing.assert_close(output.logits.float(), expected.logits, atol=0.02, rtol=0.02)
    output.loss.backward()
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    assert gradients
    assert all(x.dtype == dtype and x.isfinite().all() for x in gradients)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"position": "t5"},
        {"position": "relative"},
        {"position": "rotary"},
        {"attention": ["local", "linear"]},
        {"residual": "reversible"},
        {"attention": "linformer", "attention_options": {"sharing": "layerwise"}},
        {"attention": "longformer", "attention_options": {"global_projections": True}},
    ],
    ids=str,
)
def test_recomputed_activations_give_the_same_gradients(small, fields, reentrant):
    """Parameters that the layers share are no arguments of the checkpointed functions."""
    model = LongspanForSequenceClassification(small(**fields)).double().train()
    ids, mask = padded_batch("right")
    first = torch.zeros_like(ids)
    first[:, 0] = 1
    inputs = {"attention_mask": mask}
    if model.config.supports_global_tokens:
        inputs["global_attention_mask"] = first
    gradients = []
    for enabled in (False, True):
        if enabled:
            recompute_activations(model, {"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model.zero_grad()
        model(ids, **inputs, labels=torch.tensor([0, 1, 0])).loss.backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    assert all(x is not None and x.any() for n, x in gradients[0].items() if "key.bias" not in n)
    torch.testing.assert_close(*gradients)
