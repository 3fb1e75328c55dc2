"""Multiple choice: scores of candidates, loss by hand, padded candidates."""

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanForMultipleChoice

IDS = torch.randint(1, 50, (3, 4, 9), generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([3, 0, 1])


def build(small, **fields) -> LongspanForMultipleChoice:
    return LongspanForMultipleChoice(small(**fields)).double().eval()


def test_each_candidate_is_scored_alone(small):
    model = build(small)
    mask = torch.rand(3, 4, 9) > 0.3
    output = model(IDS, mask, labels=LABELS)
    for row in range(3):
        for candidate in range(4):
            alone = model(IDS[row, candidate][None, None], mask[row, candidate][None, None])
            torch.testing.assert_close(output.logits[row, candidate], alone.logits[0, 0])
    nll = -output.logits.log_softmax(1)[torch.arange(3), LABELS]
    torch.testing.assert_close(output.loss, nll.mean())
    assert model(IDS).loss is None


def test_padded_candidates_are_never_chosen(small):
    """A row gives the same loss and finite gradients with and without candidates to fill it."""
    model = build(small)
    mask = torch.ones(3, 4, 9, dtype=torch.long)
    mask[1, 2:], mask[2] = 0, 0
    output = model(IDS, mask, labels=torch.tensor([3, 0, -100]))
    assert (output.logits == torch.finfo(torch.float64).min).equal(~mask.bool().any(-1))
    fewer = model(IDS[1:2, :2], labels=LABELS[1:2])
    torch.testing.assert_close(output.logits[1:2, :2], fewer.logits)
    all_four = model(IDS[:1], labels=LABELS[:1])
    torch.testing.assert_close(output.loss, (all_four.loss + fewer.loss) / 2)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    padded = model(IDS, mask, labels=torch.tensor([3, 2, -100]))
    assert padded.loss > 1e300


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": IDS[0]}, r"input_ids must have one shape \(B, C, T\).* got \(4, 9\)"),
        ({"input_ids": IDS, "attention_mask": IDS[0]}, r"attention_mask must .* got \(4, 9\)"),
        ({"input_ids": IDS, "token_type_ids": IDS[:, :3]}, r"token_type_ids must .* \(3, 3, 9\)"),
        ({"inputs_embeds": torch.ones(3, 9, 16).double()}, r"inputs_embeds must .* \(3, 9, 16\)"),
        ({"input_ids": IDS, "labels": LABELS + 1}, r"labels must be in 0..3, or -100, got 1..4"),
        ({"input_ids": IDS, "labels": LABELS[:2]}, r"labels must .* \(3,\), got \(2,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_inputs_without_candidates_are_refused(small, inputs, message):
    with pytest.raises(InputError, match=message):
        build(small)(**inputs)
