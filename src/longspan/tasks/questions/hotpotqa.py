"""HotpotQA: "Are Ada and Charles from one city?"; answer, and name the sentences that support it.

Yang et al., "HotpotQA: A Dataset for Diverse, Explainable Multi-hop Question Answering", 2018
(https://arxiv.org/abs/1809.09600), distractor setting: two of about ten paragraphs are relevant.
They are one text, as in Beltagy et al., "Longformer", 2020 (https://arxiv.org/abs/2004.05150),
section 6, where the question and the first tokens of paragraphs and sentences are global.

One model answers and selects the support jointly. In two stages, a first model ranks the
paragraphs (`longspan answers`, for each split), and a second one reads the best of them
(`selection`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.own_splits import VALIDATION, assign_splits
from longspan.errors import DataError
from longspan.metrics import Metric
from longspan.metrics.multi_hop import answer_agreement, support_agreement
from longspan.shapes import Float, Int
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions import hotpotqa_files as hotpotqa
from longspan.tasks.questions.answers import Share
from longspan.tasks.questions.encoding import EncodedQuestion, QuestionEncoder
from longspan.tasks.questions.hotpotqa_files import MultiHopQuestion
from longspan.tasks.questions.json_sources import JsonFiles, find_json_files
from longspan.tasks.questions.multi_hop import (
    NUM_CLASSES,
    Prediction,
    class_name,
    labels_of,
    mark_support,
    predict,
)
from longspan.tasks.questions.question_data import GlobalTokens, QuestionData, QuestionOptions
from longspan.tasks.questions.report import Report
from longspan.tasks.registry import register

Weight = Annotated[float, Field(ge=0, le=1_000)]

# Options that change neither the examples nor their order.
_NOT_IN_DATA = ("support_paragraphs", "support_weight")


@settings
class HotpotQAOptions(QuestionOptions):
    """Encoding, global tokens, support, and the paragraphs that a first stage has ranked."""

    length: Length = setting("tokens of a question and its paragraphs that are kept", 4096)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the paragraphs; first: "
        "the first one; boundaries: those of the question, and the first one of each paragraph and "
        "sentence; none",
        "boundaries",
    )
    boundaries: Length = setting(
        "maximum number of paragraphs and sentences whose first token is global "
        "(global_tokens=boundaries)",
        128,
    )
    support_weight: Weight = setting("factor of the loss of the support", 1.0)
    support_paragraphs: Length | None = setting(
        "paragraphs that hold the predicted supporting facts, those with the largest scores; none: "
        "any number",
        2,
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
    # A question without its answer still teaches the support.
    unlearnable = ()
    info = TaskInfo(
        name="hotpotqa",
        version=1,
        title="HotpotQA (distractor)",
        summary="Answer a question from two of ten paragraphs, and name the supporting sentences.",
        source=f"HotpotQA 1.1, Yang et al. 2018, {hotpotqa.URL}",
        checksum=None,
        license="CC BY-SA 4.0",
        sizes={},
        vocab_size=259,
        num_classes=NUM_CLASSES,
        metrics=(
            *("joint_f1", "joint_exact_match", "token_f1", "exact_match"),
            *("support_f1", "support_exact_match"),
        ),
        chance=None,
        head="multi_hop",
        published=(),
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
        options = {k: v for k, v in super().data_options().items() if k not in _NOT_IN_DATA}
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
            keys = [(name,) for name in records]
            splits = assign_splits(keys, np.zeros(len(keys), np.int8), shares).splits.tolist()
            for number, (record, given) in enumerate(zip(records.values(), splits, strict=True)):
                split: Split = SPLITS[given] if shares else "test"
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
        return class_name(label)

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
