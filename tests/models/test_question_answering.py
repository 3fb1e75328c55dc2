"""Extractive question answering: logits, losses by hand, padding, best spans."""

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanForQuestionAnswering, best_spans

IDS = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(1))


def build(small, **fields) -> LongspanForQuestionAnswering:
    return LongspanForQuestionAnswering(small(**fields)).double().eval()


def mean_nll(logits, positions):
    """Return the mean of -log p over rows with a position."""
    nll = [-row.log_softmax(0)[p] for row, p in zip(logits, positions, strict=True) if p >= 0]
    return torch.stack(nll).mean()


def test_loss_is_mean_of_both_cross_entropies(small):
    model = build(small)
    output = model(IDS, start_positions=torch.tensor([1, 0, 4]), end_positions=IDS[:, 0] % 9)
    starts = mean_nll(output.start_logits, [1, 0, 4])
    ends = mean_nll(output.end_logits, (IDS[:, 0] % 9).tolist())
    torch.testing.assert_close(output.loss, (starts + ends) / 2)
    assert model(IDS).loss is None


def test_padding_cannot_be_an_answer(small):
    model = build(small)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, 5:], mask[1, 0], mask[2] = False, False, False
    labels = torch.tensor([4, 3, 0])
    output = model(IDS, mask, start_positions=labels, end_positions=labels)
    for logits in (output.start_logits, output.end_logits):
        assert (logits == torch.finfo(logits.dtype).min).equal(~mask)
    alone = model(IDS[:1, :5], start_positions=labels[:1], end_positions=labels[:1])
    torch.testing.assert_close(output.start_logits[:1, :5], alone.start_logits)
    first = mean_nll(output.start_logits[:1, :5], [4]) + mean_nll(output.end_logits[:1, :5], [4])
    second = mean_nll(output.start_logits[1:2, 1:], [2]) + mean_nll(output.end_logits[1:2, 1:], [2])
    torch.testing.assert_close(output.loss, (first + second) / 4)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("outside", [-100, -1, 6, 8, 9, 400])
def test_positions_outside_the_text_have_no_loss(small, outside):
    """The same row gives the same loss at any padding: alone, in a batch, or truncated."""
    model = build(small)
    mask = torch.arange(9).expand(3, -1) < torch.tensor([6, 9, 9])[:, None]
    positions = torch.tensor([outside, 2, 3])
    found = model(IDS, mask, start_positions=positions, end_positions=positions).loss
    expected = model(IDS[1:], start_positions=positions[1:], end_positions=positions[1:]).loss
    torch.testing.assert_close(found, expected)
    nothing = torch.full((3,), outside if outside > 8 else -100)
    assert model(IDS, start_positions=nothing, end_positions=nothing).loss == 0


@pytest.mark.usefixtures("unchecked")
def test_incomplete_and_malformed_positions_are_refused(small):
    model, labels = build(small), torch.tensor([1, 2, 3])
    with pytest.raises(InputError, match="must be given together"):
        model(IDS, start_positions=labels)
    with pytest.raises(InputError, match=r"must have shape \(3,\), got \(3, 1\)"):
        model(IDS, start_positions=labels, end_positions=labels[:, None])


def spans_by_hand(start, end, allowed, max_length):
    """Return the best span among all pairs of tokens."""
    T = len(start)
    pairs = [(s, e) for s in range(T) for e in range(s, min(T, s + max_length))]
    pairs = [(s, e) for s, e in pairs if allowed[s] and allowed[e]]
    return max(pairs, key=lambda pair: start[pair[0]] + end[pair[1]])


@pytest.mark.parametrize("max_length", [1, 3, 12, 50])
def test_best_spans_are_those_of_all_pairs(max_length):
    start, end = torch.randn(2, 20, 12, dtype=torch.float64) - 5
    allowed = torch.rand(20, 12) > 0.4
    allowed[:, 5] = True
    found = best_spans(start, end, allowed, max_length=max_length)
    for row in range(20):
        s, e = spans_by_hand(start[row], end[row], allowed[row], max_length)
        assert (found.start[row], found.end[row]) == (s, e)
        assert found.score[row] == start[row, s] + end[row, e]
    everything = best_spans(start, end, torch.ones(20, 12).long(), max_length=max_length)
    plain = best_spans(start, end, max_length=max_length)
    assert all(x.equal(y) for x, y in zip(everything, plain, strict=True))


def test_rows_without_allowed_tokens_have_no_score():
    start, end = torch.randn(2, 2, 7)
    allowed = torch.zeros(2, 7, dtype=torch.bool)
    allowed[1] = True
    score = best_spans(start, end, allowed).score
    assert score[0] == -torch.inf
    assert score[1].isfinite()
    with pytest.raises(InputError, match=r"allowed must have the shape .* \(2, 7\), got \(2, 1\)"):
        best_spans(start, end, allowed[:, :1])
    with pytest.raises(InputError, match="max_length must be >= 1, got 0"):
        best_spans(start, end, max_length=0)
