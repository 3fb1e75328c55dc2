"""Projections shared by all layers of a model: trained and saved once, separate per model."""

import copy

import pytest
import torch

from longspan.models import LongspanForSequenceClassification
from longspan.training.checkpoint import Checkpoints, Progress

IDS = torch.arange(1, 21).view(2, 10)


@pytest.fixture
def model(small):
    return made(small)


def made(small, sharing="layerwise", **fields):
    options = {"rank": 4, "sharing": sharing}
    config = small(
        attention="linformer",
        attention_options=options,
        num_hidden_layers=3,
        num_labels=3,
        **fields,
    )
    return LongspanForSequenceClassification(config).eval()


def matrices(model):
    return [layer.attention.mechanism._weights() for layer in model.encoder.layers]


def logits(model):
    return model(IDS).logits


def test_layers_share_a_projection_and_models_do_not(small, model):
    first, *others = matrices(model)
    assert all(x is first for x in others)
    assert [n for n in model.state_dict() if "mechanism" in n] == [
        "encoder.layers.0.attention.mechanism.projection"
    ]
    assert model.num_parameters() == made(small, "key_value").num_parameters() - 2 * first.numel()
    assert all(x is not first for x in matrices(made(small)))


def test_gradient_sums_over_layers(small, model):
    separate = made(small, "key_value")
    # The layers of the second model hold separate copies of the same matrix.
    for layer in separate.encoder.layers:
        layer.attention.mechanism.projection.data.copy_(matrices(model)[0].data)
    separate.load_state_dict(model.state_dict(), strict=False)
    for x in (model, separate):
        logits(x).sin().sum().backward()
    expected = sum(x.grad for x in matrices(separate))
    torch.testing.assert_close(matrices(model)[0].grad, expected)
    assert not torch.allclose(expected, matrices(separate)[0].grad, rtol=1e-2)


def test_activation_checkpointing_keeps_gradient(model):
    found = []
    for enabled in (False, True):
        if enabled:
            model.train().activation_checkpointing_enable()
        model.zero_grad()
        logits(model).sin().sum().backward()
        found.append(matrices(model)[0].grad.clone())
    torch.testing.assert_close(*found)


def test_loaded_model_shares_projection(model, tmp_path):
    with torch.no_grad():
        matrices(model)[0].add_(1)
    model.save_pretrained(tmp_path)
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path).eval()
    assert logits(loaded).equal(logits(model))
    first, *others = matrices(loaded)
    assert all(x is first for x in others)
    first.data.add_(1)
    assert not torch.allclose(logits(loaded), logits(model))


def test_checkpoint_without_sharing_loads_into_shared_projection(small, tmp_path):
    made(small, "key_value").save_pretrained(tmp_path)
    options = {"rank": 4, "sharing": "layerwise"}
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path, attention_options=options)
    assert len({x.data_ptr() for x in matrices(loaded)}) == 1
    assert logits(loaded.eval()).isfinite().all()


def test_training_checkpoint_restores_shared_projection(small, model, tmp_path):
    """The optimizer holds the state of one tensor."""
    optimizer = torch.optim.AdamW(model.parameters())
    logits(model).sum().backward()
    optimizer.step()
    Checkpoints(tmp_path).save(model, optimizer, Progress(), None)
    other = made(small)
    Checkpoints(tmp_path).load(other, torch.optim.AdamW(other.parameters()))
    assert logits(other).equal(logits(model))


def test_copy_and_conversion_keep_projection_shared(model):
    twin = copy.deepcopy(model).double()
    first, *others = matrices(twin)
    assert first.dtype == torch.float64
    assert all(x is first for x in others)
    assert first.data_ptr() != matrices(model)[0].data_ptr()


def test_layers_may_have_different_ranks(small):
    config = small(attention="linformer", attention_options={"rank": [8, 2]})
    model = LongspanForSequenceClassification(config)
    assert [x.shape[2] for x in matrices(model)] == [8, 2]
