"""Projections shared by the layers of a model."""

import copy

import pytest
import torch

from longspan.models import LongspanForSequenceClassification
from longspan.training.checkpoint import Checkpoints
from longspan.training.progress import Progress

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


def projection(model):
    return model.model.shared_parameter


def own_projections(model):
    return [layer.attention.mechanism.projection for layer in model.model.layers]


def logits(model):
    return model(IDS).logits


def replicate(module, change):
    """Copy a module as torch.nn.parallel.replicate does, with changed parameters."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        setattr(replica, name, None if child is None else replicate(child, change))
    for name, parameter in module._parameters.items():
        setattr(replica, name, None if parameter is None else change(parameter))
    return replica


def test_model_owns_one_projection(small, model):
    assert own_projections(model) == [None, None, None]
    shape = tuple(projection(model).shape)
    assert [n for n, x in model.state_dict().items() if tuple(x.shape) == shape] == [
        "model.shared_parameter"
    ]
    separate = build_model(small, "key_value")
    fewer = separate.num_parameters() - model.num_parameters()
    assert fewer == 2 * projection(model).numel()
    assert projection(separate) is None
    assert sum(x is projection(model) for x in model.parameters()) == 1
    assert not any(x is projection(model) for x in model.model.layers.parameters())


def test_gradient_sums_over_layers(small, model):
    separate = build_model(small, "key_value")
    separate.load_state_dict(model.state_dict(), strict=False)
    # Layers of the second model have separate copies of the same projection.
    for x in own_projections(separate):
        x.data.copy_(projection(model).data)
    for x in (model, separate):
        logits(x).sin().sum().backward()
    expected = sum(x.grad for x in own_projections(separate))
    torch.testing.assert_close(projection(model).grad, expected)
    assert not torch.allclose(expected, own_projections(separate)[0].grad, rtol=1e-2)


def test_loaded_model_shares_projection(model, tmp_path):
    with torch.no_grad():
        projection(model).add_(1)
    model.save_pretrained(tmp_path)
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), logits(model))
    projection(loaded).data.add_(1)
    assert not torch.allclose(logits(loaded), logits(model))


def test_checkpoint_without_sharing_loads_with_initial_shared_projection(small, tmp_path):
    build_model(small, "key_value").save_pretrained(tmp_path)
    options = {"rank": 4, "sharing": "layerwise"}
    loaded = LongspanForSequenceClassification.from_pretrained(tmp_path, attention_options=options)
    columns = projection(loaded).shape[-1]
    assert 0.5 < projection(loaded).std() * columns**0.5 < 2
    assert logits(loaded.eval()).isfinite().all()


def test_training_checkpoint_restores_shared_projection(small, model, tmp_path):
    """Restore an optimizer that has state for a single tensor."""
    optimizer = torch.optim.AdamW(model.parameters())
    logits(model).sum().backward()
    optimizer.step()
    Checkpoints(tmp_path).save(model, optimizer, Progress())
    other = build_model(small)
    Checkpoints(tmp_path).load(other, torch.optim.AdamW(other.parameters()))
    torch.testing.assert_close(logits(other), logits(model))


def test_copy_converts_its_own_projection(model):
    duplicate = copy.deepcopy(model).double()
    before = logits(model)
    assert projection(duplicate).dtype == torch.float64
    projection(duplicate).data.mul_(2)
    assert not torch.allclose(logits(duplicate).float(), before, atol=1e-4)
    assert torch.equal(logits(model), before)


def test_replica_uses_its_own_projection(model):
    changed = copy.deepcopy(model)
    for x in changed.parameters():
        x.data.mul_(1.5)
    replica = replicate(model, lambda x: 1.5 * x)
    torch.testing.assert_close(logits(replica), logits(changed))


def test_functional_call_replaces_projection(model):
    new = {"model.shared_parameter": 3 * projection(model).detach()}
    found = torch.func.functional_call(model, new, (IDS,)).logits
    assert not torch.allclose(found, logits(model), atol=1e-4)
    projection(model).data.mul_(3)
    torch.testing.assert_close(found, logits(model))


def test_layers_may_have_different_ranks(small):
    config = small(attention="linformer", attention_options={"rank": [8, 2]})
    model = LongspanForSequenceClassification(config)
    assert [x.shape[2] for x in own_projections(model)] == [8, 2]
