"""Examples of the tasks that answer questions about documents: encoding, report, global tokens."""

import dataclasses
import functools
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.source_files import SourceFiles
from longspan.data.store import Examples, Spool
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import DataError
from longspan.metrics.answers import is_split, normalize_squad_answer
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split, Task
from longspan.tasks.grouping import Grouping
from longspan.tasks.pieces import PieceVocabulary, identify_pieces, load_pieces, vocabulary_setting
from longspan.tasks.questions import report as reporting
from longspan.tasks.questions.encoding import EncodedQuestion, QuestionEncoder
from longspan.tasks.questions.json_files import find_lines
from longspan.tasks.questions.question import Question
from longspan.tasks.questions.report import Report
from longspan.tasks.questions.spans import boundary_mask, question_mask
from longspan.wording import counted

GlobalTokens = Literal["question", "first", "boundaries", "none"]
Q = TypeVar("Q", bound=Question)

# Counts of questions whose answers the rule of the metric does not compare as meant.
_WITHOUT_TOKEN, _UNSPLIT = "answers_without_token", "answers_unsplit"
# Counts of questions that are no examples, for the message about an empty split.
_UNUSABLE = ("documents_empty", "unknown", "left_out")


@settings
class QuestionOptions:
    """Encoding of questions and documents, global tokens, and answers."""

    length: Length = setting("tokens of a question and its document that are kept", 1024)
    vocabulary: PieceVocabulary = vocabulary_setting()
    question_length: Length = setting("tokens of a question that are kept", 64)
    answer_length: Length = setting("maximum tokens of a predicted answer", 30)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the document; first: "
        "the first one; boundaries: those of the question, and the first one of each passage; none",
        "question",
    )
    boundaries: Length = setting(
        "maximum number of passages whose first token is global (global_tokens=boundaries)", 64
    )


# Options that change neither the examples nor their order.
_NOT_IN_DATA = ("answer_length", "global_tokens", "boundaries")


class QuestionData(Task, Generic[Q]):
    """Questions about documents, as tokens of both.

    A subclass reads its files (`find_source`, `read`), and writes and scores the answers.
    """

    options: QuestionOptions
    has_answers = True
    id_field: ClassVar[str]  # name of the field of ids in the source files
    outcomes: ClassVar[tuple[str, ...]] = ("marked", "behind_cut", "not_in_context")  # labels
    # Outcomes of which nothing can be learned: training leaves these questions out.
    unlearnable: ClassVar[tuple[str, ...]] = ("behind_cut", "not_in_context")

    @abstractmethod
    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of questions.

        Raises:
            DataError: they are missing.
        """

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
    def length(self) -> int:
        """Maximum number of tokens of a question and its document."""
        return self.options.length

    @property
    def vocab_size(self) -> int:
        """Number of token ids, those of special tokens included."""
        return self.tokenizer.vocab_size

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Unknown before the build: what cannot be learned from is left out."""
        return dict.fromkeys(SPLITS)

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id of the tokenizer."""
        return {"pad_token_id": self.tokenizer.fast.pad_token_id}

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

    @functools.cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        """Tokenizer of questions and documents, loaded once.

        Raises:
            DataError: it cannot be loaded.
        """
        return load_pieces(self.options.vocabulary)

    @property
    def build_notes(self) -> list[str]:
        """Number of questions in the report, by reason, and its path."""
        notes, cases = _describe_rule(self.facts["answers"]), self.facts["cases"]
        if not cases:
            return notes
        counts = ", ".join(f"{name} {count:,}" for name, count in cases.items())
        path = self.dataset.folder / reporting.FILE
        listed = "question|questions or document|documents is|are listed in"
        return [*notes, f"{counted(sum(cases.values()), listed)} {path}: {counts}"]

    def normalize(self, answer: str) -> str:
        """Return an answer as the evaluation of the task compares it."""
        return normalize_squad_answer(answer)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the files of questions."""
        return self.find_source(data).origin

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a tokenizer is known by its files."""
        options = {
            **super().data_options(),
            "vocabulary": identify_pieces(self.options.vocabulary),
        }
        return {name: x for name, x in options.items() if name not in _NOT_IN_DATA}

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
        parts = {split: _SplitWriter(scratch / split, tokenizer) for split in SPLITS}
        for number, (split, question) in enumerate(self.read(data, reports)):
            if number % 100 == 0:
                progress(f"encoding {self.info.name}", number, 0)
            found = self.encode(encoder, question, reports[split])
            if found is not None and self._is_kept(split, found[0], reports[split]):
                parts[split].add(*found, self.outcomes.index(found[0].outcome))
        self._check_counts(reports)
        cases = sum((found.case_counts for found in reports.values()), Counter[str]())
        return BuildOutput(
            splits={split: part.examples() for split, part in parts.items()},
            source=self.info.source,
            license=self.info.license,
            facts={
                "answers": {split: dict(sorted(x.counts.items())) for split, x in reports.items()},
                "cases": dict(sorted(cases.items())),
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
        details = self._examples(split).details
        assert details is not None
        found = json.loads(details[row].tobytes())
        return found | {"offsets": np.cumsum(found["offsets"]).reshape(-1, 2)}

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

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        symbols = self.tokenizer.symbols
        return [symbols[token] for token in ids.tolist()]

    def show(self, split: Split, row: int) -> str:
        """Return the question, the document and the right answers."""
        self._example(split, row)
        details = self.load_details(split, row)
        right = " / ".join(details["references"])
        return f"{details['question']} | {details['context']} = {right}"

    def record_id(self, question: str) -> str:
        """Return the id of the record of a question in the source files."""
        return question

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

    def _check_counts(self, reports: dict[Split, Report]) -> None:
        """Refuse a split without any example.

        Raises:
            DataError: a split is empty; the message has its counts.
        """
        for split, found in reports.items():
            counts = found.counts
            if counts["questions"] <= sum(counts[name] for name in _UNUSABLE):
                shown = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()) if n)
                raise DataError(
                    f"{self.info.name}: split {split!r} has no usable question "
                    f"({shown or 'the source has none'}); choose a larger length, another "
                    "share of the splits, or other files"
                )


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


class _SplitWriter:
    """Examples of a split in files, since they may be larger than memory."""

    def __init__(self, folder: Path, tokenizer: WordPieceTokenizer):
        self.tokens = Spool(folder / "tokens", tokenizer.dtype)
        self.targets = Spool(folder / "targets", np.uint8)
        self.details = Spool(folder / "details", np.uint8)
        self.labels: list[int] = []

    def add(self, encoded: EncodedQuestion, details: dict[str, Any], label: int) -> None:
        """Append an example."""
        text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
        self.tokens.add(encoded.ids)
        self.targets.add(encoded.targets)
        self.details.add(np.frombuffer(text.encode(errors="replace"), np.uint8))
        self.labels.append(label)

    def examples(self) -> Examples:
        """Return all examples; their sequences are views of the files."""
        return Examples(
            tokens=self.tokens.ragged(),
            targets=self.targets.ragged(),
            details=self.details.ragged(),
            labels=np.array(self.labels, np.uint8),
        )
