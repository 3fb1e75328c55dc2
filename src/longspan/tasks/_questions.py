"""Base of the tasks that answer questions by a span of a document."""

import dataclasses
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.questions.encoding import EncodedQuestion, QuestionEncoder, cut_out
from longspan.data.questions.question import Question
from longspan.data.store import Examples, Spool
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import DataError
from longspan.metrics import Metric
from longspan.metrics.answers import exact_match, normalize_answer, token_f1
from longspan.shapes import Float, Int
from longspan.tasks._grouping import Grouping
from longspan.tasks._pieces import PieceVocabulary, identify_pieces, load_pieces, vocabulary_setting
from longspan.tasks._spans import answerable, predicted_spans, question_mask, span_losses
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split, Task

GlobalTokens = Literal["question", "first", "none"]
Share = Annotated[float, Field(gt=0, lt=1)]

_OUTCOMES = ("marked", "behind_cut", "not_in_context")  # labels of the examples
_CLASSES = ("inside", "start", "end", "start and end")
_SCORES = {"exact_match": exact_match, "token_f1": token_f1}


@settings
class QuestionOptions:
    """Encoding of questions and documents, global tokens, and answers."""

    length: Length = setting("tokens of a question and its document that are kept", 1024)
    vocabulary: PieceVocabulary = vocabulary_setting()
    question_length: Length = setting("tokens of a question that are kept", 64)
    answer_length: PositiveInt = setting("maximum tokens of a predicted answer", 30)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: question: all before the document; first: "
        "the first one; none",
        "question",
    )


# Options that change neither the examples nor their order.
_NOT_IN_DATA = ("answer_length", "global_tokens")


class QuestionTask(Task):
    """Questions about documents; the answer is a span of the document.

    Classes are those of the tokens of the document: starts and ends of right answers. Scores count
    every question, also those whose answer is not in the tokens.
    """

    options: QuestionOptions

    def normalize(self, answer: str) -> str:
        """Return an answer as the official evaluation compares it."""
        return normalize_answer(answer)

    @abstractmethod
    def read(
        self, data: Path | None, counts: dict[Split, Counter[str]]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions and their splits.

        Args:
            data: folder or file of the source.
            counts: receives what is wrong with the source, by split.

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
    def model_fields(self) -> dict[str, Any]:
        """Padding id of the tokenizer."""
        return {"pad_token_id": self.tokenizer.fast.pad_token_id}

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens."""
        before, between, _ = self.tokenizer.pair_frame
        longest = {
            "question": len(before) + self.options.question_length + len(between),
            "first": 1,
            "none": 0,
        }
        return longest[self.options.global_tokens]

    @property
    def tokenizer(self) -> WordPieceTokenizer:
        """Tokenizer of questions and documents.

        Raises:
            DataError: it cannot be loaded.
        """
        return load_pieces(self.options.vocabulary)

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
        learned from them. Others are kept: they count in scores.
        """
        options, tokenizer = self.options, self.tokenizer
        encoder = QuestionEncoder(tokenizer, options.length, options.question_length)
        counts: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
        parts = {split: _SplitWriter(scratch / split, tokenizer) for split in SPLITS}
        for number, (split, question) in enumerate(self.read(data, counts)):
            if number % 100 == 0:
                progress(f"encoding {self.info.name}", number, 0)
            encoded = encoder.encode(question, counts[split])
            if encoded is None or encoded.outcome == "unknown":
                continue
            if split == "train" and encoded.outcome != "marked":
                counts[split]["left_out"] += 1
                continue
            parts[split].add(question, encoded)
        self._check_counts(counts)
        return BuildOutput(
            splits={split: part.examples() for split, part in parts.items()},
            source=self.info.source,
            license=self.info.license,
            facts={
                "answers": {split: dict(sorted(x.items())) for split, x in counts.items()},
                **tokenizer.facts,
            },
        )

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
        return dataclasses.replace(batch, global_mask=mask)

    def losses(
        self, logits: Float[Tensor, "B 2 T"], targets: Int[Tensor, "B T"]
    ) -> Float[Tensor, " B"]:
        """Return the loss of each example, over all of its right answers."""
        return span_losses(logits, targets)

    def count_targets(self, targets: Int[Tensor, "B T"]) -> Int[Tensor, " B"]:
        """Return 1 for each example with a marked answer."""
        return answerable(targets).long()

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the score of each predicted answer, and 1 for the question."""
        answers = self.answers(split, rows, logits, targets)
        references = [_details(self._examples(split), row)["references"] for row in rows.tolist()]
        found = {}
        for metric in metrics:
            score = _SCORES[metric.name]
            scores = [
                score(answer, right, self.normalize)
                for answer, right in zip(answers.values(), references, strict=True)
            ]
            values = torch.tensor(scores, dtype=torch.float64)
            found[metric.name] = torch.stack((values, torch.ones_like(values)), dim=1)
        return found

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, str]:
        """Return the text of the best answer to each question, by its official id.

        This is the content of a file of predictions for the official evaluations.

        Args:
            split: split of the examples.
            rows: their rows.
            logits: scores of first and last tokens.
            targets: targets of their batch, which tell where the documents begin.
        """
        spans = predicted_spans(logits, targets, max_length=self.options.answer_length)
        firsts = question_mask(targets).sum(1)
        found = {}
        for row, start, end in zip(
            rows.tolist(),
            (spans.start - firsts).tolist(),
            (spans.end - firsts).tolist(),
            strict=True,
        ):
            details = _details(self._examples(split), row)
            offsets = np.cumsum(details["offsets"]).reshape(-1, 2)
            found[details["id"]] = cut_out(details["context"], offsets, start, end)
        return found

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the outcome of the search for right answers among the tokens."""
        group = np.asarray(examples.labels, np.int64)
        return [Grouping(name="answer", labels=_OUTCOMES, group=group)]

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        symbols = self.tokenizer.symbols
        return [symbols[token] for token in ids.tolist()]

    def class_name(self, label: int) -> str:
        """Return the name of a class of tokens."""
        return _CLASSES[label]

    def show(self, split: Split, row: int) -> str:
        """Return the question, the document and the right answers."""
        self._example(split, row)
        details = _details(self._examples(split), row)
        right = " / ".join(details["references"])
        return f"{details['question']} | {details['context']} = {right}"

    def _check_counts(self, counts: dict[Split, Counter[str]]) -> None:
        """Refuse a split without any example.

        Raises:
            DataError: a split is empty; the message has its counts.
        """
        for split, found in counts.items():
            unusable = ("documents_empty", "unknown", "left_out")
            if found["questions"] <= sum(found[name] for name in unusable):
                shown = ", ".join(f"{name} {n}" for name, n in sorted(found.items()) if n)
                raise DataError(
                    f"{self.info.name}: split {split!r} has no usable question "
                    f"({shown or 'the source has none'}); choose a larger length, another "
                    "share of the splits, or other files"
                )


class _SplitWriter:
    """Examples of a split in files, since they may be larger than memory."""

    def __init__(self, folder: Path, tokenizer: WordPieceTokenizer):
        self.tokens = Spool(folder / "tokens", tokenizer.dtype)
        self.targets = Spool(folder / "targets", np.uint8)
        self.details = Spool(folder / "details", np.uint8)
        self.labels: list[int] = []

    def add(self, question: Question, encoded: EncodedQuestion) -> None:
        """Append an example."""
        details = {
            "id": question.id,
            "question": question.text,
            "references": question.references,
            "context": encoded.context,
            # differences are shorter; zeros of a character's further bytes are kept
            "offsets": np.diff(encoded.offsets.ravel(), prepend=0).tolist(),
        }
        text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
        self.tokens.add(encoded.ids)
        self.targets.add(encoded.targets)
        self.details.add(np.frombuffer(text.encode(errors="replace"), np.uint8))
        self.labels.append(_OUTCOMES.index(encoded.outcome))

    def examples(self) -> Examples:
        """Return all examples; their sequences are views of the files."""
        return Examples(
            tokens=self.tokens.ragged(),
            targets=self.targets.ragged(),
            details=self.details.ragged(),
            labels=np.array(self.labels, np.uint8),
        )


def _details(examples: Examples, row: int) -> dict[str, Any]:
    """Return the texts of an example, and the changes of its offsets."""
    assert examples.details is not None
    return json.loads(examples.details[row].tobytes())
