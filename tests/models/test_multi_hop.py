"""Multi-hop questions: joint loss by hand, scores of the answer, padding, refused labels."""

import math

import pytest
import torch

from longspan.errors import InputError
from longspan.models import (
    LongspanForMultiHopQuestionAnswering,
    LongspanForQuestionAnswering,
    MultiHopLabels,
    MultiHopLogits,
    multi_hop_losses,
)
from longspan.models.heads.multi_hop import NUM_TYPES
from longspan.tasks.questions.encoding import ANSWER_TYPES

N = -100
IDS = torch.randint(1, 50, (2, 6), generator=torch.Generator().manual_seed(1))
# Row 0: two mentions, three sentences in two paragraphs. Row 1: the answer is no.
LABELS = MultiHopLabels(
    starts=torch.tensor([[N, 0, 1, 0, 1, 0], [N, 0, 0, 0, 0, N]]),
    ends=torch.tensor([[N, 0, 0, 1, 1, 0], [N, 0, 0, 0, 0, N]]),
    sentences=torch.tensor([[N, N, 1, N, 0, 1], [N, 0, N, N, N, N]]),
    paragraphs=torch.tensor([[N, 1, N, 0, N, N], [N, N, N, N, N, N]]),
    types=torch.tensor([0, 2]),
)
ARGUMENTS = dict(
    zip(
        ("start_labels", "end_labels", "sentence_labels", "paragraph_labels", "type_labels"),
        LABELS,
        strict=True,
    )
)


def draw_logits(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 6)] * 4 + [(2, NUM_TYPES)]
    return MultiHopLogits(*(torch.randn(x, generator=generator, dtype=dtype) for x in shapes))


def by_hand(logits, labels, row, weight):
    """Compute the loss of a row from exponentials, one token at a time."""
    total = 0.0
    for name in ("starts", "ends"):
        scores, classes = getattr(logits, name)[row].exp(), getattr(labels, name)[row]
        if (classes == 1).any():
            share = scores[classes == 1].sum() / scores[classes != N].sum()
            total -= math.log(share) / 2
    types = logits.types[row].exp()
    total -= math.log(types[labels.types[row]] / types.sum())
    for name in ("sentences", "paragraphs"):
        pairs = zip(getattr(logits, name)[row], getattr(labels, name)[row].tolist(), strict=True)
        losses = [math.log1p(math.exp(-x if y else x)) for x, y in pairs if y != N]
        total += weight * sum(losses) / max(1, len(losses))
    return total


@pytest.mark.parametrize("weight", [1.0, 0.25, 0.0])
def test_joint_loss_is_the_sum_of_its_parts(weight):
    logits = draw_logits()
    found = multi_hop_losses(logits, LABELS, weight)
    expected = [by_hand(logits, LABELS, row, weight) for row in range(2)]
    assert found.tolist() == pytest.approx(expected)


def test_loss_of_equal_scores_is_known():
    """Row 0: one of five starts and ends is right twice; row 1 has one sentence."""
    logits = MultiHopLogits(*(torch.zeros_like(x) for x in draw_logits()))
    expected = [math.log(5 / 2) + math.log(3) + 2 * math.log(2), math.log(3) + math.log(2)]
    assert multi_hop_losses(logits, LABELS).tolist() == pytest.approx(expected)


def test_packed_scores_are_unpacked():
    logits = draw_logits()
    packed = logits.pack()
    assert packed.shape == (2, 4 * 6 + NUM_TYPES)
    for mine, yours in zip(MultiHopLogits.unpack(packed), logits, strict=True):
        assert mine.equal(yours)


def test_types_of_tasks_are_those_of_the_model():
    assert len(ANSWER_TYPES) == NUM_TYPES


def test_answer_is_scored_as_by_the_head_of_spans(small):
    model = LongspanForMultiHopQuestionAnswering(small()).double().eval()
    spans = LongspanForQuestionAnswering(small()).double().eval()
    missing = spans.load_state_dict(model.state_dict(), strict=False)
    assert missing.missing_keys == []
    found, expected = model(IDS), spans(IDS)
    torch.testing.assert_close(found.start_logits, expected.start_logits)
    torch.testing.assert_close(found.end_logits, expected.end_logits)


def test_each_part_learns_and_padding_has_no_effect(small):
    model = LongspanForMultiHopQuestionAnswering(small()).double().eval()
    output = model(IDS, **ARGUMENTS)
    torch.testing.assert_close(output.loss, multi_hop_losses(output.scores, LABELS).mean())
    output.loss.backward()
    for name in ("qa_outputs", "support_outputs", "type_classifier"):
        for parameter in getattr(model, name).parameters():
            assert parameter.grad.abs().max() > 0
    padded = {
        name: x if name == "type_labels" else torch.nn.functional.pad(x, (0, 3), value=N)
        for name, x in ARGUMENTS.items()
    }
    ids = torch.nn.functional.pad(IDS, (0, 3), value=7)
    mask = torch.arange(9).expand(2, 9) < 6
    model.zero_grad()
    again = model(ids, mask, **padded)
    torch.testing.assert_close(again.loss, output.loss)
    for found, expected in zip(again.scores[:4], output.scores[:4], strict=True):
        torch.testing.assert_close(found[:, :6], expected)
        assert found[:, 6:].eq(torch.finfo(torch.float64).min).all()
    again.loss.backward()
    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)


def test_incomplete_labels_are_refused(small):
    model = LongspanForMultiHopQuestionAnswering(small()).double().eval()
    assert model(IDS).loss is None
    given = {name: x for name, x in ARGUMENTS.items() if name not in ("end_labels", "type_labels")}
    with pytest.raises(InputError, match="must be given together; missing: ends, types"):
        model(IDS, **given)
