"""HotpotQA: "Are Ada and Charles from one city?"; answer, and name the sentences that support it.

Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering", 2018
(https://arxiv.org/abs/1809.09600), distractor setting: two of about ten paragraphs are relevant.
They are one text, as in Beltagy et al., "Longformer", 2020 (https://arxiv.org/abs/2004.05150),
section 6, where the question and the first tokens of paragraphs and sentences are global.

One model answers and selects the support jointly. In two stages, a first model ranks the
paragraphs (`longspan answers`, for each split), and a second one reads the best of them
(`selection`).

Targets are the classes of `longspan.tasks.questions.encoding`. That of the first token of an
example is `ELSEWHERE` plus the type of the answer: span, yes or no.
"""

import dataclasses
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.own_splits import VALIDATION
from longspan.errors import DataError
from longspan.metrics import Metric
from longspan.metrics.multi_hop import answer_agreement, support_agreement
from longspan.shapes import Float, Int
from longspan.tasks.base import Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions import hotpotqa_files as hotpotqa
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
    QuestionEncoder,
    Span,
    Targets,
    bit_labels,
    cut_out,
    first_tokens,
    has_bit,
    in_document,
    predicted_spans,
    question_mask,
)
from longspan.tasks.questions.hotpotqa_files import Fact, MultiHopQuestion
from longspan.tasks.questions.json_files import JsonFiles, find_json_files
from longspan.tasks.questions.question_data import (
    GlobalTokens,
    QuestionData,
    QuestionOptions,
    Share,
    assign_questions,
)
from longspan.tasks.questions.report import Report
from longspan.tasks.registry import register
from longspan.tasks.scoring import IGNORE

K = TypeVar("K", bound=Hashable)

NUM_CLASSES = ELSEWHERE + len(ANSWER_TYPES)


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


Weight = Annotated[float, Field(ge=0, le=1_000)]


@settings
class HotpotQAOptions(QuestionOptions):
    """Encoding, global tokens, support, and the paragraphs that a first stage has ranked."""

    length: Length = setting("tokens of a question and its paragraphs that are kept", 4096)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the paragraphs; first: "
        "the first one; boundaries: those of the question, and the first one of each paragraph and "
        "sentence; none",
        "boundaries",
        in_data=False,
    )
    boundaries: Length = setting(
        "maximum number of paragraphs and sentences whose first token is global "
        "(global_tokens=boundaries)",
        128,
        in_data=False,
    )
    support_weight: Weight = setting("factor of the loss of the support", 1.0, in_data=False)
    support_paragraphs: Length | None = setting(
        "paragraphs that hold the predicted supporting facts, those with the largest scores; none: "
        "any number",
        2,
        in_data=False,
    )
    selection: str | None = setting(
        "two stages: paragraphs that a first model has ranked, a file of longspan answers, or a "
        "folder of those of all splits; none: one stage, all paragraphs",
        None,
    )
    paragraphs: Length = setting("ranked paragraphs of a question that are read (selection)", 4)
    validation: Share = setting("share of the training questions that validation holds out", 0.1)


@register
class HotpotQA(QuestionData[MultiHopQuestion]):
    """Multi-hop questions: answer, its type, supporting sentences and relevant paragraphs.

    Classes are those of the tokens: starts and ends of the answer, first tokens of paragraphs and
    sentences, relevant and supporting ones, and the type of the answer at the first token.
    """

    Options = HotpotQAOptions
    options: HotpotQAOptions
    id_field = "_id"
    outcomes = ("marked", "no_span", "behind_cut", "not_in_context")
    bits = ("starts", "ends", "first of a paragraph", "first of a sentence", "supports", "relevant")
    # A question without its answer still teaches the support.
    unlearnable = ()
    info = TaskInfo(
        name="hotpotqa",
        title="HotpotQA (distractor)",
        summary="Answer a question from two of ten paragraphs, and name the supporting sentences.",
        source=f"HotpotQA 1.1, Yang et al. 2018, {hotpotqa.URL}",
        license="CC BY-SA 4.0",
        vocab_size=259,
        num_classes=NUM_CLASSES,
        metrics=(
            *("joint_f1", "joint_exact_match", "token_f1", "exact_match"),
            *("support_f1", "support_exact_match"),
        ),
        head="multi_hop",
        notes=(
            "Validation is held out of the training questions; test is the published development "
            "set of the distractor setting, since the test set is not public. Scores are those of "
            "the official evaluation, over all questions, also those whose answer or support is "
            "behind the cut, or in a paragraph that a first stage has not selected. In training, "
            "the second stage reads all relevant paragraphs and the best others."
        ),
    )

    def find_source(self, data: Path | None) -> JsonFiles:
        """Return the files of training and development."""
        splits = ("train", "validation")
        return find_json_files(data, hotpotqa.FILES, self.info.name, "hotpotqa", splits)

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a selection is known by its sha256."""
        options = super().data_options()
        path = self.options.selection
        if path is None:
            return options | {"paragraphs": None}
        return options | {"selection": f"sha256:{hotpotqa.selection_sha256(Path(path))}"}

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, MultiHopQuestion]]:
        """Yield the questions, with the selected paragraphs in the second of two stages."""
        chosen = self.options.selection
        selection = None if chosen is None else hotpotqa.read_selection(Path(chosen))
        train, test = self.find_source(data).paths
        held_out: dict[Path, dict[int, float]]
        held_out = {train: {VALIDATION: self.options.validation}, test: {}}
        for path, shares in held_out.items():
            records = hotpotqa.load_records(path)
            splits = assign_questions(list(records), shares)
            for number, (record, split) in enumerate(zip(records.values(), splits, strict=True)):
                where = f"{path}: question {number}"
                question = hotpotqa.read_question(record, where, reports[split])
                if question is not None:
                    yield split, self._select(question, split, selection)

    def encode(
        self, encoder: QuestionEncoder, question: MultiHopQuestion, report: Report
    ) -> tuple[EncodedQuestion, dict[str, Any]] | None:
        """Return a question as tokens with its support, and its details; None without tokens."""
        found = super().encode(encoder, question, report)
        if found is None:
            return None
        encoded, details = found
        marked, more = mark_support(question, encoded)
        return marked, details | more

    def label_arguments(self, targets: Int[Tensor, "B T"]) -> dict[str, Any]:
        """Return the labels of the joint loss, and the weight of support in it."""
        return {**labels_of(targets), "support_weight": self.options.support_weight}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the score of each prediction, and 1 for the question."""
        scores = [
            _scores(found, details)
            for found, details in self._predictions(split, rows, logits, targets)
        ]
        found = {}
        for metric in metrics:
            values = torch.tensor([one[metric.name] for one in scores], dtype=torch.float64)
            found[metric.name] = torch.stack((values, torch.ones_like(values)), dim=1)
        return found

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, dict[str, Any]]:
        """Return the answers and supporting facts by id, as in a file for the official evaluation.

        The titles of the paragraphs of each question, the most relevant first, are added: the
        content of a file for `selection`.
        """
        found = self._predictions(split, rows, logits, targets)
        return {
            "answer": {details["id"]: one.answer for one, details in found},
            "sp": {details["id"]: [list(fact) for fact in one.facts] for one, details in found},
            "paragraphs": {details["id"]: list(one.titles) for one, details in found},
        }

    def class_name(self, label: int) -> str:
        """Return the name of a class of tokens."""
        if label >= ELSEWHERE:
            return f"answer: {ANSWER_TYPES[label - ELSEWHERE]}"
        return super().class_name(label)

    def _select(
        self, question: MultiHopQuestion, split: Split, selection: Mapping[str, list[str]] | None
    ) -> MultiHopQuestion:
        """Return a question with its best paragraphs; in training the relevant ones are the best.

        Raises:
            DataError: the selection has no paragraph of a held-out question.
        """
        if selection is None:
            return question
        ranked = selection.get(question.id, [])
        if split == "train":
            everything = [one.title for one in question.paragraphs]
            ranked = [*(title for title, _ in question.facts), *ranked, *everything]
        known = {one.title for one in question.paragraphs}
        kept = list(dict.fromkeys(title for title in ranked if title in known))
        if not kept:
            raise DataError(
                f"{self.options.selection} has no paragraph of the question {question.id!r} of "
                f"{split}; rank the paragraphs of all questions"
            )
        return hotpotqa.select_paragraphs(question, kept[: self.options.paragraphs])

    def _predictions(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B N"],
        targets: Int[Tensor, "B T"],
    ) -> list[tuple[Prediction, dict[str, Any]]]:
        """Return the prediction for each question, and its details."""
        details = [self.load_details(split, row) for row in rows.tolist()]
        options = self.options
        found = predict(
            logits,
            targets,
            details,
            answer_length=options.answer_length,
            paragraphs=options.support_paragraphs,
        )
        return list(zip(found, details, strict=True))


def _scores(found: Prediction, details: Mapping[str, Any]) -> dict[str, float]:
    """Return the score of a prediction under each metric."""
    answer = answer_agreement(found.answer, details["references"][0])
    support = support_agreement(found.facts, [tuple(fact) for fact in details["facts"]])
    joint = answer.join(support)
    return {
        "joint_f1": joint.f1,
        "joint_exact_match": joint.exact_match,
        "token_f1": answer.f1,
        "exact_match": answer.exact_match,
        "support_f1": support.f1,
        "support_exact_match": support.exact_match,
    }
