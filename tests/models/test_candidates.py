"""Candidates in a text: scores and loss by hand, windows, absent candidates, refusals."""

import pytest
import torch

from longspan.errors import InputError
from longspan.models import LongspanForCandidates

B, W, T = 3, 2, 9
IDS = torch.randint(1, 50, (B, W, T), generator=torch.Generator().manual_seed(1))
POSITIONS = torch.tensor([[1, 3, 5, 6], [2, 4, -1, -1], [0, 8, 7, -1]])
LABELS = torch.tensor([3, 1, 0])
LOWEST = torch.finfo(torch.float64).min


def build(small, **fields) -> LongspanForCandidates:
    return LongspanForCandidates(small(**fields)).double().eval()


def scores_by_hand(model, ids, positions):
    """Return the scores of the candidates of one row, averaged over its windows."""
    weight = model.candidate_outputs.weight[0]
    scores = []
    for position in positions.tolist():
        states = [model.model(window[None]).last_hidden_state[0, position] for window in ids]
        scores.append(sum((state * weight).sum() for state in states) / len(states))
    return torch.stack(scores)


def test_logits_and_loss_are_those_computed_by_hand(small):
    model = build(small)
    output = model(IDS, candidate_positions=POSITIONS, labels=LABELS)
    losses = []
    for row, places in enumerate(POSITIONS):
        own = scores_by_hand(model, IDS[row], places[places >= 0])
        torch.testing.assert_close(output.logits[row, places >= 0], own)
        assert (output.logits[row, places < 0] == LOWEST).all()
        losses.append(own.exp().sum().log() - own[LABELS[row]])
    torch.testing.assert_close(output.loss, torch.stack(losses).mean())
    assert model(IDS, candidate_positions=POSITIONS).loss is None


@pytest.mark.parametrize("mechanism", ["full", "longformer", "linear"])
def test_windows_and_tokens_of_padding_have_no_effect(small, mechanism):
    """Rows of one window beside a row of two, and rows of another batch."""
    model = build(small, attention=mechanism, pooling="mean")
    mask = torch.ones_like(IDS)
    mask[1, 1], mask[2, 1], mask[2, 0, 8:] = 0, 0, 0
    positions = POSITIONS.clone()
    positions[2, 1] = 6
    output = model(IDS, mask, candidate_positions=positions, labels=LABELS)
    noise = torch.where(mask == 1, IDS, 7)
    found = model(noise, mask, candidate_positions=positions, labels=LABELS)
    torch.testing.assert_close(found.to_tuple(), output.to_tuple())
    for row, (windows, tokens) in enumerate(((2, 9), (1, 9), (1, 8))):
        alone = model(IDS[row : row + 1, :windows, :tokens], candidate_positions=positions[[row]])
        torch.testing.assert_close(alone.logits[0], output.logits[row])
    # A single window needs no axis.
    flat = model(IDS[1:2, 0], candidate_positions=positions[1:2])
    torch.testing.assert_close(flat.logits[0], output.logits[1])


def test_unread_windows_cost_nothing(small):
    model, read = build(small), []
    model.model.embeddings.register_forward_pre_hook(lambda _, args: read.append(len(args[0])))
    mask = torch.ones_like(IDS)
    mask[1:, 1] = 0
    model(IDS, mask, candidate_positions=POSITIONS)
    assert read == [4]


def test_compiled_calls_read_all_windows(small, monkeypatch):
    model = build(small)
    mask = torch.ones_like(IDS)
    mask[1:, 1] = 0
    expected = model(IDS, mask, candidate_positions=POSITIONS)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = model(IDS, mask, candidate_positions=POSITIONS)
    torch.testing.assert_close(found.logits, expected.logits)


def test_rows_of_padding_have_finite_gradients(small):
    model = build(small)
    mask = torch.ones_like(IDS)
    mask[2] = 0
    labels = torch.tensor([3, 1, -100])
    output = model(IDS, mask, candidate_positions=POSITIONS, labels=labels)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    others = model(IDS[:2], candidate_positions=POSITIONS[:2], labels=LABELS[:2])
    torch.testing.assert_close(output.loss, others.loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidate_positions": None}, "candidate_positions are missing"),
        ({"candidate_positions": POSITIONS[:2]}, r"shape \(B, C\), .* 3 rows, got \(2, 4\)"),
        ({"candidate_positions": POSITIONS + 1}, "must be below the 9 tokens of a text, got 9"),
        ({"attention_mask": torch.ones(3, 9).long()}, r"attention_mask must .* got \(3, 9\)"),
        ({"labels": LABELS + 1}, r"labels must be in 0..3, or -100, got 1..4"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_malformed_candidates_are_refused(small, changes, message):
    inputs = {"input_ids": IDS, "candidate_positions": POSITIONS, **changes}
    with pytest.raises(InputError, match=message):
        build(small)(**inputs)
