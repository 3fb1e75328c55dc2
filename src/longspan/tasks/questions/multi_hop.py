"""Targets, labels and predictions of multi-hop questions.

Targets are the classes of `longspan.tasks.questions.encoding`. That of the first token of an
example is `ELSEWHERE` plus the type of the answer: span, yes or no.
"""

import dataclasses
from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from longspan.shapes import Float, Int
from longspan.tasks.questions.encoding import (
    ANSWER_TYPES,
    ELSEWHERE,
    ENDS,
    PASSAGE,
    RELEVANT,
    SENTENCE,
    STARTS,
    SUPPORTS,
    EncodedQuestion,
    cut_out,
    first_tokens,
)
from longspan.tasks.questions.hotpotqa_files import Fact, MultiHopQuestion
from longspan.tasks.questions.question import Span
from longspan.tasks.questions.spans import (
    Targets,
    bit_labels,
    has_bit,
    in_document,
    predicted_spans,
    question_mask,
)
from longspan.tasks.scoring import IGNORE

K = TypeVar("K", bound=Hashable)

NUM_CLASSES = ELSEWHERE + len(ANSWER_TYPES)

_BITS = ("starts", "ends", "first of a paragraph", "first of a sentence", "supports", "relevant")


class Prediction(NamedTuple):
    """Prediction for a question.

    Attributes:
        answer: text of a span, yes or no.
        facts: supporting sentences, in order.
        titles: titles of all paragraphs, the most relevant first.
    """

    answer: str
    facts: tuple[Fact, ...]
    titles: tuple[str, ...]


def mark_support(
    question: MultiHopQuestion, encoded: EncodedQuestion
) -> tuple[EncodedQuestion, dict[str, Any]]:
    """Return a question with the targets of its type and support.

    Returns:
        The encoded question, and its details: title and number of each sentence and title of each
        paragraph that has a token, in their order, and the supporting facts.
    """
    inside = np.flatnonzero(encoded.targets)
    classes = encoded.targets[inside] - np.uint8(1)
    relevant = {title for title, _ in question.facts}
    ends = (*question.passages[1:], len(question.context))
    parts = zip(question.paragraphs, question.passages, ends, strict=True)
    places = {one.title: (first, last) for one, first, last in parts}
    titles = _mark(classes, places, encoded, (PASSAGE, RELEVANT), relevant)
    sentences = _mark(classes, question.sentences, encoded, (SENTENCE, SUPPORTS), question.facts)
    targets = encoded.targets.copy()
    targets[inside] = classes + 1
    targets[0] = 1 + ELSEWHERE + ANSWER_TYPES.index(question.answer_type)
    details = {"facts": question.facts, "sentences": sentences, "titles": titles}
    return dataclasses.replace(encoded, targets=targets), details


def labels_of(targets: Targets) -> dict[str, Int[torch.Tensor, "B ..."]]:
    """Return the labels of a batch; see `MultiHopLabels`."""
    first = targets[:, 0]
    return {
        "start_labels": bit_labels(targets, STARTS),
        "end_labels": bit_labels(targets, ENDS),
        "sentence_labels": bit_labels(targets, SUPPORTS, has_bit(targets, SENTENCE)),
        "paragraph_labels": bit_labels(targets, RELEVANT, has_bit(targets, PASSAGE)),
        "type_labels": (first - ELSEWHERE).masked_fill(first < ELSEWHERE, IGNORE),
    }


def predict(
    logits: Float[torch.Tensor, "B N"],
    targets: Targets,
    details: list[dict[str, Any]],
    *,
    answer_length: int,
    paragraphs: int | None,
) -> list[Prediction]:
    """Return the prediction for each question of a batch.

    Args:
        logits: packed scores.
        targets: targets of the batch, which tell where sentences and paragraphs begin.
        details: details of its examples.
        answer_length: maximum number of tokens of an answer.
        paragraphs: number of paragraphs, those with the largest scores, that have supporting
            facts: the best sentence of each, and all whose probability is above one half. None:
            the latter alone, of all paragraphs.
    """
    # The models import transformers, which lists of tasks do not need.
    from longspan.models.heads.multi_hop import MultiHopLogits

    scores = MultiHopLogits.unpack(logits.float())
    inside, firsts = in_document(targets), question_mask(targets).sum(1)
    spans = torch.stack((scores.starts, scores.ends), dim=1)
    places = predicted_spans(spans, targets, max_length=answer_length)
    starts, ends = ((x - firsts).tolist() for x in places)
    types = scores.types.argmax(1).tolist()
    found = []
    for row, known in enumerate(details):
        answer = ANSWER_TYPES[types[row]]
        if answer == "span":
            answer = cut_out(known["context"], known["offsets"], starts[row], ends[row])
        classes = targets[row].masked_fill(~inside[row], 0).cpu().numpy()
        ranking = _rank(scores.paragraphs[row].cpu().numpy()[classes & PASSAGE > 0])
        chosen = None if paragraphs is None else ranking[:paragraphs]
        facts = _select(classes, scores.sentences[row].cpu().numpy(), chosen)
        found.append(
            Prediction(
                answer=answer,
                facts=tuple(tuple(known["sentences"][number]) for number in facts),
                titles=tuple(known["titles"][number] for number in ranking),
            )
        )
    return found


def class_name(label: int) -> str:
    """Return the name of a class of tokens."""
    if label >= ELSEWHERE:
        return f"answer: {ANSWER_TYPES[label - ELSEWHERE]}"
    names = [name for place, name in enumerate(_BITS) if label >> place & 1]
    return ", ".join(names) or "inside"


def _mark(
    classes: np.ndarray,
    places: Mapping[K, Span],
    encoded: EncodedQuestion,
    bits: tuple[int, int],
    right: Collection[K],
) -> list[K]:
    """Mark the first tokens of parts of a document; return the marked parts in order.

    Args:
        classes: classes of the document's tokens, which are changed.
        places: characters of the parts.
        encoded: the document.
        bits: mark of all parts, and that of the right ones among them.
        right: right parts.
    """
    found: dict[int, K] = {}
    tokens = first_tokens(places.values(), encoded.context, encoded.offsets).tolist()
    for part, token in zip(places, tokens, strict=True):
        # Of two parts within one token the first one counts.
        if token >= 0 and token not in found:
            found[token] = part
            classes[token] |= bits[0] | (bits[1] if part in right else 0)
    return [found[token] for token in sorted(found)]


def _rank(scores: np.ndarray) -> list[int]:
    """Return the numbers of the paragraphs, the largest score first; equal ones in order."""
    return np.argsort(-scores, kind="stable").tolist()


def _select(classes: np.ndarray, scores: np.ndarray, paragraphs: list[int] | None) -> list[int]:
    """Return the numbers of the sentences that are predicted to support the answer.

    Args:
        classes: classes of the tokens of an example.
        scores: scores of the sentences that begin at its tokens.
        paragraphs: numbers of the paragraphs that have supporting sentences; None: see `predict`.
    """
    begins = classes & SENTENCE > 0
    own, paragraph_of = scores[begins], (np.cumsum(classes & PASSAGE > 0) - 1)[begins]
    if paragraphs is None:
        return np.flatnonzero(own > 0).tolist()
    chosen = (own > 0) & np.isin(paragraph_of, paragraphs)
    for paragraph in paragraphs:
        if len(inside := np.flatnonzero(paragraph_of == paragraph)):
            chosen[inside[own[inside].argmax()]] = True
    return np.flatnonzero(chosen).tolist()
