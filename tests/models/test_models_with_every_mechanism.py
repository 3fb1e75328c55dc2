import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.models import LongspanForSequenceClassification


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_model_trains_and_does_not_read_its_padding(small, name, pooling):
    config = small(attention=name, pooling=pooling, num_labels=3)
    model = LongspanForSequenceClassification(config).double()
    ids = torch.randint(1, 50, (3, 19))
    mask = torch.ones(3, 19, dtype=torch.bool)
    mask[1, 13:], mask[2, :] = False, False
    out = model(ids, mask, labels=torch.tensor([0, 1, 2]))
    out.loss.backward()
    assert out.logits.isfinite().all()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    other = torch.where(mask, ids, torch.randint(1, 50, (3, 19)))
    torch.testing.assert_close(model(other, mask).logits, out.logits)
    changed = ids.clone()
    changed[0, 0] = ids[0, 0] % 49 + 1
    assert not torch.allclose(model(changed, mask).logits[0], out.logits[0])


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_model_runs_at_length_one_and_at_its_longest(small, name):
    model = LongspanForSequenceClassification(small(attention=name, pooling="cls")).eval()
    for length in (1, 40):
        assert model(torch.ones(2, length, dtype=torch.long)).logits.isfinite().all()
