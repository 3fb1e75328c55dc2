"""Bases of the tasks that answer questions about documents: examples, report, spans and scores."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.json_files import find_lines
from longspan.data.own_splits import assign_splits
from longspan.data.source_files import SourceFiles
from longspan.data.store import Examples
from longspan.metrics import Metric
from longspan.metrics.answers import (
    EXACT_MATCH,
    EXACT_MATCH_MLQA,
    TOKEN_F1,
    TOKEN_F1_MLQA,
    exact_match,
    is_split,
    normalize_squad_answer,
    token_f1,
)
from longspan.shapes import Float, Int
from longspan.tasks import source_report as reporting
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split
from longspan.tasks.example_writer import ExampleWriter
from longspan.tasks.grouping import Grouping
from longspan.tasks.pieces import PieceTask, PieceVocabulary, vocabulary_setting
from longspan.tasks.questions.encoding import (
    ENDS,
    STARTS,
    EncodedQuestion,
    Question,
    QuestionEncoder,
    bit_labels,
    boundary_mask,
    cut_out,
    in_document,
    question_mask,
)
from longspan.tasks.scoring import statistics_of_mean
from longspan.tasks.source_report import Report
from longspan.wording import counted

Share = Annotated[float, Field(gt=0, lt=1)]
GlobalTokens = Literal["question", "first", "boundaries", "none"]
Q = TypeVar("Q", bound=Question)

# Counts of questions whose answers the rule of the metric does not compare as meant.
_WITHOUT_TOKEN, _UNSPLIT = "answers_without_token", "answers_unsplit"
_SCORES = {
    EXACT_MATCH.name: exact_match,
    EXACT_MATCH_MLQA.name: exact_match,
    TOKEN_F1.name: token_f1,
    TOKEN_F1_MLQA.name: token_f1,
}


@settings
class QuestionOptions:
    """Encoding of questions and documents, global tokens, and answers."""

    length: Length = setting("tokens of a question and its document that are kept", 1024)
    vocabulary: PieceVocabulary = vocabulary_setting()
    question_length: Length = setting("tokens of a question that are kept", 64)
    answer_length: Length = setting("maximum tokens of a predicted answer", 30, in_data=False)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the document; first: "
        "the first one; boundaries: those of the question, and the first one of each passage; none",
        "question",
        in_data=False,
    )
    boundaries: Length = setting(
        "maximum number of passages whose first token is global (global_tokens=boundaries)",
        64,
        in_data=False,
    )


class QuestionData(PieceTask, Generic[Q]):
    """Questions about documents, as tokens of both.

    A subclass reads its files (`find_source`, `read`), and writes and scores the answers.
    """

    options: QuestionOptions
    id_field: ClassVar[str]  # name of the field of ids in the source files
    bits: ClassVar[tuple[str, ...]] = ("starts", "ends", "first of a passage")  # of a class
    outcomes: ClassVar[tuple[str, ...]] = ("marked", "behind_cut", "not_in_context")  # labels
    # Outcomes of which nothing can be learned: training leaves these questions out.
    unlearnable: ClassVar[tuple[str, ...]] = ("behind_cut", "not_in_context")

    @abstractmethod
    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of questions.

        Raises:
            DataError: they are missing.
        """

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the form and the names of the files, and the sha256 of their content."""
        source = self.find_source(data)
        return {"form": source.form, "sha256": source.checksums()}

    @abstractmethod
    def read(self, data: Path | None, reports: Mapping[Split, Report]) -> Iterator[tuple[Split, Q]]:
        """Yield the questions and their splits.

        Args:
            data: folder or file of the source.
            reports: receive what is wrong with the source, by split.

        Raises:
            DataError: the source is missing or malformed.
        """

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens."""
        options = self.options
        if options.global_tokens in ("first", "none"):
            return int(options.global_tokens == "first")
        before, between, _ = self.tokenizer.pair_frame
        question = len(before) + options.question_length + len(between)
        is_question = options.global_tokens == "question"
        return min(options.length, question if is_question else question + options.boundaries)

    @property
    def build_notes(self) -> list[str]:
        """Number of questions in the report, by reason, and its path."""
        nouns = "question|questions or document|documents"
        cases = reporting.describe_cases(self.facts["cases"], nouns, self.dataset.folder)
        return [*_describe_rule(self.facts["answers"]), *cases]

    def normalize(self, answer: str) -> str:
        """Return an answer as the evaluation of the task compares it."""
        return normalize_squad_answer(answer)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the questions, one at a time.

        Training questions without a right answer among their tokens are left out, as nothing can be
        learned from them. Others are kept: they count in scores. Both are in the report.
        """
        tokenizer = self.tokenizer
        encoder = QuestionEncoder(tokenizer, self.options.length, self.options.question_length)
        reports: dict[Split, Report] = {split: Report() for split in SPLITS}
        parts = {
            split: ExampleWriter(scratch / split, tokens=tokenizer.dtype, targets=np.uint8)
            for split in SPLITS
        }
        for number, (split, question) in enumerate(self.read(data, reports)):
            if number % 100 == 0:
                progress(f"encoding {self.info.name}", number, 0)
            example = self.encode(encoder, question, reports[split])
            if example is not None and self._is_kept(split, example[0], reports[split]):
                encoded, details = example
                label = self.outcomes.index(encoded.outcome)
                parts[split].add(label, details, tokens=encoded.ids, targets=encoded.targets)
        remedy = "choose a larger length, another share of the splits, or other files"
        reporting.refuse_empty(self.info.name, parts, reports, "no usable question", remedy)
        cases = reporting.count_cases(reports)
        return BuildOutput(
            splits={split: part.examples() for split, part in parts.items()},
            facts={
                "answers": {split: dict(sorted(x.counts.items())) for split, x in reports.items()},
                "cases": cases,
                **tokenizer.facts,
            },
            reports=self._format_cases(data, reports) if cases else {},
        )

    def encode(
        self, encoder: QuestionEncoder, question: Q, report: Report
    ) -> tuple[EncodedQuestion, dict[str, Any]] | None:
        """Return a question as tokens and its details, or None if its document has no token.

        Details are what no model reads: the texts and, for scores, the right answers, as JSON.
        Questions without a marked answer are listed in the report.
        """
        encoded = encoder.encode(question, report.counts)
        if references := question.references:
            if not any(map(self.normalize, references)):
                report.counts[_WITHOUT_TOKEN] += 1
            if not is_split(references, self.normalize):
                report.counts[_UNSPLIT] += 1
        outcome = "documents_empty" if encoded is None else encoded.outcome
        if outcome not in ("marked", "no_span"):
            report.list_case(outcome, question.id, question.where)
        if encoded is None:
            return None
        return encoded, {
            "id": question.id,
            "question": question.text,
            "references": question.references,
            "context": encoded.context,
            # differences are shorter; zeros of a character's further bytes are kept
            "offsets": np.diff(encoded.offsets.ravel(), prepend=0).tolist(),
        }

    def load_details(self, split: Split, row: int) -> dict[str, Any]:
        """Return the details of an example; `offsets` are the characters of its tokens, (N, 2)."""
        details = super().load_details(split, row)
        return details | {"offsets": np.cumsum(details["offsets"]).reshape(-1, 2)}

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch, with its global tokens."""
        batch = super().collate(examples, rows, draw)
        choice = self.options.global_tokens
        if choice == "none":
            return batch
        mask = question_mask(batch.targets)
        if choice == "first":
            mask = torch.zeros_like(mask)
            mask[:, 0] = True
        elif choice == "boundaries":
            mask |= boundary_mask(batch.targets, self.options.boundaries)
        inputs = {**batch.inputs, "global_attention_mask": mask}
        return dataclasses.replace(batch, inputs=inputs)

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the outcome of the search for right answers among the tokens."""
        group = np.asarray(examples.labels, np.int64)
        return [Grouping(name="answer", labels=self.outcomes, group=group)]

    def class_name(self, label: int) -> str:
        """Return the name of a class of tokens."""
        names = [name for place, name in enumerate(self.bits) if label >> place & 1]
        return ", ".join(names) or "inside"

    def show(self, split: Split, row: int) -> str:
        """Return the question, the document and the right answers."""
        self._example(split, row)
        details = self.load_details(split, row)
        right = " / ".join(details["references"])
        return f"{details['question']} | {details['context']} = {right}"

    def record_id(self, question: str) -> str:
        """Return the id of the record of a question in the source files."""
        return question

    def _best_answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> list[tuple[dict[str, Any], str]]:
        """Return the details of each example, and the text of the best answer."""
        # The models import transformers, which lists of tasks do not need.
        from longspan.models.heads.question_answering import best_spans

        starts, ends = logits.float().unbind(1)
        length = self.options.answer_length
        spans = best_spans(starts, ends, in_document(targets), max_length=length)
        firsts = question_mask(targets).sum(1)
        sides = ((side - firsts).tolist() for side in (spans.start, spans.end))
        answers = []
        for row, *span in zip(rows.tolist(), *sides, strict=True):
            details = self.load_details(split, row)
            answers.append((details, cut_out(details["context"], details["offsets"], *span)))
        return answers

    def _is_kept(self, split: Split, encoded: EncodedQuestion, report: Report) -> bool:
        """Return whether a question is an example of its split."""
        is_left_out = split == "train" and encoded.outcome in self.unlearnable
        report.counts["left_out"] += is_left_out
        return not is_left_out and encoded.outcome != "unknown"

    def _format_cases(self, data: Path | None, reports: dict[Split, Report]) -> dict[str, str]:
        """Return the report of a build, by the name of its file."""
        lines = find_lines(self.find_source(data), self.id_field)
        text = reporting.format_cases(reports, lambda one: lines.get(self.record_id(one)))
        return {reporting.FILE: text}


def assign_questions(keys: Sequence[str], shares: dict[int, float]) -> list[Split]:
    """Return the split of each question, by the sha256 of its key; equal keys are in one split.

    Args:
        keys: key of each question, such as its id.
        shares: share of the training questions to hold out, by split; empty: the questions of the
            published development set, which are for test.
    """
    if not shares:
        return ["test"] * len(keys)
    splits = assign_splits([(key,) for key in keys], np.zeros(len(keys), np.int8), shares).splits
    return [SPLITS[split] for split in splits]


def _describe_rule(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a sentence for answers that the rule of the metric does not compare as meant."""
    messages = {
        _WITHOUT_TOKEN: "question|questions has|have no answer with a token under the rule of the "
        "metric; their F1 is 0",
        _UNSPLIT: "question|questions has|have answers in a script without spaces, which the rule "
        "of the metric does not split; their F1 is that of whole runs of text",
    }
    totals = {name: sum(split.get(name, 0) for split in counts.values()) for name in messages}
    return [counted(totals[name], text) for name, text in messages.items() if totals[name]]


class QuestionTask(QuestionData[Question]):
    """Questions about documents; the answer is a span of the document.

    Classes are those of the tokens of the document: starts and ends of right answers, and first
    tokens of passages. Scores count every question, also those whose answer is not in the tokens.
    """

    def label_arguments(self, targets: Int[Tensor, "B T"]) -> dict[str, Int[Tensor, "B T"]]:
        """Return the labels of all tokens, as starts and as ends of right answers."""
        sides = {"start_positions": STARTS, "end_positions": ENDS}
        return {name: bit_labels(targets, bit) for name, bit in sides.items()}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the score of each predicted answer, and 1 for the question."""
        answers = self._best_answers(split, rows, logits, targets)
        return {
            metric.name: statistics_of_mean(
                [_SCORES[metric.name](text, x["references"], self.normalize) for x, text in answers]
            )
            for metric in metrics
        }

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, str]:
        """Return the text of the best answer to each question, by its official id."""
        answers = self._best_answers(split, rows, logits, targets)
        return {details["id"]: text for details, text in answers}
