"""Projections shared by the layers of a model."""

import copy

import pytest
import torch

from longspan.models import LongspanForSequenceClassification
from longspan.training.checkpoint import Checkpoints, Progress

IDS = torch.arange(1, 21).view(2, 10)


@pytest.fixture
def model(small):
    return build_model(small)


def build_model(small, sharing="layerwise", **fields):
    options = {"rank": 4, "sharing": sharing}
    config = small(
        attention="linformer",
        attention_options=options,
        num_hidden_layers=3,
        num_labels=3,
        **fields,
    )
    return LongspanForSequenceClassification(config).eval()


def projections(model):
    return [layer.attention.mechanism._weights() for layer in model.encoder.layers]


def logits(model):
    return model(IDS).logits


def test_layers_share_projection_and_models_do_not(small, model):
    first, *others = projections(model)
    assert all(x is first for x in others)
    assert [n for n in model.state_dict() if "mechanism" in n] == [
        "encoder.layers.0.attention.mechanism.projection"
    ]
    assert (
        model.num_parameters()
        == build_model(small, "key_value").num_parameters() - 2 * first.numel()
    )
    assert all(x is not first for x in projections(build_model(small)))


def test_gradient_sums_over_layers(small, model):
    separate = build_model(small, "key_value")
    # Layers of the second model have separate copies of the same projection.
    for layer in separate.encoder.layers:
        layer.attention.mechanism.projection.data.copy_(projections(model)[0].data)
    separate.load_state_dict(model.state_dict(), strict=False)
    for x in (model, separate):
        logits(x).sin().sum().backward()
    expected = sum(x.grad for x in projections(separate))
    torch.testing.assert_close(projections(model)[0].grad, expected)
    assert not torch.allclose(expected, projections(separate)[0].grad, rtol=1e-2)


def test_activation_checkpointing_keeps_gradient(model):
    found = []
    for enabled in (False, True):
        if enabled:
            model.train().activation_checkpointing_enable()
        model.zero_grad()
        logits(model).sin().sum().backward()
        found.append(projections(model)[0].grad.clone())
    torch.testing.assert_close(*found)


def test_loaded_model_shares_projection(model, tmp_path):
    with torch.no_grad():
        projections(model)[0].add_(1)
    model.save_pretrained(tmp_path)
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path).eval()
    assert logits(loaded).equal(logits(model))
    first, *others = projections(loaded)
    assert all(x is first for x in others)
    first.data.add_(1)
    assert not torch.allclose(logits(loaded), logits(model))


def test_checkpoint_without_sharing_loads_into_shared_projection(small, tmp_path):
    build_model(small, "key_value").save_pretrained(tmp_path)
    options = {"rank": 4, "sharing": "layerwise"}
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path, attention_options=options)
    assert len({x.data_ptr() for x in projections(loaded)}) == 1
    assert logits(loaded.eval()).isfinite().all()


def test_training_checkpoint_restores_shared_projection(small, model, tmp_path):
    """Restore an optimizer that has state for a single tensor."""
    optimizer = torch.optim.AdamW(model.parameters())
    logits(model).sum().backward()
    optimizer.step()
    Checkpoints(tmp_path).save(model, optimizer, Progress(), None)
    other = build_model(small)
    Checkpoints(tmp_path).load(other, torch.optim.AdamW(other.parameters()))
    assert logits(other).equal(logits(model))


def test_copy_and_conversion_keep_projection_shared(model):
    duplicate = copy.deepcopy(model).double()
    first, *others = projections(duplicate)
    assert first.dtype == torch.float64
    assert all(x is first for x in others)
    assert first.data_ptr() != projections(model)[0].data_ptr()


def test_layers_may_have_different_ranks(small):
    config = small(attention="linformer", attention_options={"rank": [8, 2]})
    model = LongspanForSequenceClassification(config)
    assert [x.shape[2] for x in projections(model)] == [8, 2]
