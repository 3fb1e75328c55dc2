"""Labels, loss and answers of span models, against plain loops and the loss of one answer."""

import pytest
import torch
import torch.nn.functional as F

from longspan.models import LongspanConfig, LongspanForQuestionAnswering
from longspan.models.heads.question_answering import span_loss
from longspan.tasks.questions.encoding import (
    ENDS,
    STARTS,
    bit_labels,
    question_mask,
)
from longspan.tasks.scoring import IGNORE

N = IGNORE
# Two answers that share a start, one in the middle of the document, none, and one token.
TARGETS = torch.tensor(
    [
        [N, N, N, STARTS, 0, ENDS, ENDS, 0, 0, N],
        [N, N, N, 0, STARTS, 0, ENDS, 0, 0, N],
        [N, N, N, 0, 0, 0, 0, 0, 0, N],
        [N, N, 0, STARTS | ENDS, N, N, N, N, N, N],
    ]
)


@pytest.fixture
def logits():
    return torch.randn(4, 2, 10, generator=torch.Generator().manual_seed(0))


def labels_of(targets):
    return {
        "start_positions": bit_labels(targets, STARTS),
        "end_positions": bit_labels(targets, ENDS),
    }


def loss_of(logits, targets):
    """Return the loss of the head."""
    return span_loss(tuple(logits.unbind(1)), tuple(labels_of(targets).values()), None)


def row_loss(logits, targets, row):
    return loss_of(logits[row : row + 1], targets[row : row + 1])


def plain_loss(logits, targets):
    """Sum the probabilities of right tokens, one example and one token at a time."""
    losses = []
    for bit, scores in zip((STARTS, ENDS), logits.double().exp().tolist(), strict=True):
        allowed = [i for i, target in enumerate(targets.tolist()) if target != IGNORE]
        right = [i for i in allowed if targets[i].item() & bit]
        share = sum(scores[i] for i in right) / sum(scores[i] for i in allowed)
        losses.append(-torch.tensor(share).log())
    return sum(losses) / 2


def test_loss_is_that_of_the_summed_probabilities(logits):
    expected = [plain_loss(logits[row], TARGETS[row]).float() for row in (0, 1, 3)]
    torch.testing.assert_close(loss_of(logits, TARGETS), sum(expected) / 3)
    assert row_loss(logits, TARGETS, 2) == 0


def test_loss_of_one_answer_is_the_cross_entropy(logits):
    allowed = TARGETS[1] != IGNORE
    start, end = logits[1][:, allowed]
    expected = (F.cross_entropy(start, torch.tensor(1)) + F.cross_entropy(end, torch.tensor(3))) / 2
    torch.testing.assert_close(row_loss(logits, TARGETS, 1), expected)


def test_logits_outside_of_the_document_have_no_effect(logits):
    changed = torch.where((TARGETS == IGNORE)[:, None], 1e4, logits)
    torch.testing.assert_close(loss_of(changed, TARGETS), loss_of(logits, TARGETS))


def test_each_mention_can_be_learned_alone(logits):
    """The gradient of every right token lowers the loss; a span loss over one would not."""
    logits.requires_grad_()
    loss_of(logits, TARGETS).backward()
    assert (logits.grad[0, 1, [5, 6]] < 0).all()
    assert (logits.grad[0, 1, [3, 4, 7, 8]] > 0).all()


def test_gradients_are_finite_without_answers_and_at_padding():
    """The head puts the lowest number at padding."""
    logits = torch.full((4, 2, 10), torch.finfo(torch.float32).min)
    logits[..., 2:9] = 0
    logits.requires_grad_()
    loss = loss_of(logits, TARGETS)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert not logits.grad[2].any()


def test_examples_with_a_marked_answer_count():
    count = LongspanForQuestionAnswering.count_targets(labels_of(TARGETS), 4)
    assert count.tolist() == [1, 1, 0, 1]


def test_question_is_all_before_the_document():
    mask = question_mask(TARGETS)
    assert mask.sum(1).tolist() == [3, 3, 3, 2]
    assert mask[:, :2].all()


def test_loss_is_that_of_the_head_if_all_tokens_are_allowed():
    config = LongspanConfig(vocab_size=20, max_position_embeddings=16, num_hidden_layers=1)
    torch.manual_seed(0)
    model = LongspanForQuestionAnswering(config).eval()
    ids = torch.randint(1, 20, (2, 9))
    start, end = torch.tensor([1, 4]), torch.tensor([2, 4])
    output = model(ids, start_positions=start, end_positions=end)
    targets = torch.zeros(2, 9, dtype=torch.long)
    targets[[0, 1], start] |= STARTS
    targets[[0, 1], end] |= ENDS
    torch.testing.assert_close(model(ids, **labels_of(targets)).loss, output.loss)
