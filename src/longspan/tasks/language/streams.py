"""Streams: left-to-right language models of documents, read segment by segment.

Every row of a batch walks through one document after another. A model with a memory keeps its state
from a segment to the next (Dai et al. 2019, section 3.2), and forgets it where a document ends.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from longspan.attention import MECHANISMS
from longspan.config import Length, NumExamples, setting, settings
from longspan.data.cache import BuiltDataset
from longspan.data.sampling import random_stream
from longspan.data.stream_vocabularies import StreamVocabulary
from longspan.errors import OptionError
from longspan.metrics import Metric
from longspan.shapes import Float, Int
from longspan.tasks.base import SPLITS, Batch, Split, Task
from longspan.tasks.batching import SAMPLE_SEED, check_batches, text_inputs
from longspan.tasks.grouping import Grouping, group_by_quantiles
from longspan.tasks.language.segments import (
    Segments,
    cut_windows,
    evaluation_walks,
    training_walks,
)
from longspan.tasks.scoring import IGNORE, LOGIT_STATISTICS, cross_entropy

FEW_DOCUMENTS, BLOCKS = 20, 100  # see `StreamTask.units`
_KEEP = (
    "models whose state passes from a segment to the next: memory: those of recurrent mechanisms; "
    "all: every model, however large its state grows; none"
)
_EVALUATION = (
    "segments: held-out segments follow each other, as in training; sliding: windows overlap, and "
    "each scores its last tokens only"
)


@settings
class StreamOptions:
    """Segments of training, and the evaluation of held-out documents: all read the same tokens."""

    length: Length = setting("tokens of a training segment", 512, in_data=False)
    keep_state: Literal["memory", "all", "none"] = setting(_KEEP, "memory", in_data=False)
    evaluation: Literal["segments", "sliding"] = setting(_EVALUATION, "segments", in_data=False)
    evaluation_length: Length | None = setting(
        "tokens of a held-out segment or window; none: as many as in training", None, in_data=False
    )
    stride: PositiveInt | None = setting(
        "distance of two sliding windows, and the tokens that each scores; none: half a window",
        None,
        in_data=False,
    )
    held_out_tokens: NumExamples | None = setting(
        "most tokens of a held-out document, from its first one on; none: all of it",
        None,
        in_data=False,
    )

    def __post_init__(self) -> None:
        """Check the stride, and that a held-out document has a token to predict.

        Raises:
            OptionError: the stride is longer than the window, or there are no windows; or one token
                of a document is left.
        """
        if self.held_out_tokens == 1:
            raise OptionError(
                "held_out_tokens=1 leaves nothing to predict: the first token of a document is not "
                "scored; use 2 or more"
            )
        if self.stride is None:
            return
        if self.evaluation != "sliding":
            raise OptionError(
                f"stride={self.stride} is the distance of sliding windows; set "
                "evaluation=sliding, or stride=none"
            )
        if self.stride > self.window:
            raise OptionError(
                f"stride must be at most the {self.window} tokens of a window, got {self.stride}: "
                "tokens between two windows would not be scored"
            )

    @property
    def window(self) -> int:
        """Tokens of a held-out segment or window; `evaluation_length` resolved."""
        return self.evaluation_length or self.length

    @property
    def resolved_stride(self) -> int:
        """Distance of two held-out segments or windows; `stride` resolved."""
        if self.evaluation == "segments":
            return self.window
        return self.stride or max(1, self.window // 2)


class StreamTask(Task):
    """Next tokens of documents.

    A subclass stores documents in rows of tokens whose labels are the ascending numbers of the
    documents, as `longspan.data.document_rows` writes them, and defines their vocabulary.
    """

    Options = StreamOptions
    options: StreamOptions

    def __init__(self, options: object | None = None):
        """Store the given options, or the defaults."""
        super().__init__(options)
        self._segments: dict[str, Segments] = {}

    @property
    @abstractmethod
    def vocabulary(self) -> StreamVocabulary:
        """Vocabulary of the tokens; that of an open task, if texts define it."""

    @property
    def length(self) -> int:
        """Maximum number of tokens of a segment, those of held-out ones included."""
        return max(self.options.length, self.options.window)

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Unknown: the number of segments follows from the lengths of the documents."""
        return dict.fromkeys(SPLITS)

    @property
    def model_fields(self) -> dict[str, Any]:
        """A decoder."""
        return {"is_decoder": True}

    def keeps_state(self, mechanisms: Sequence[str]) -> bool:
        """Return whether a model of these mechanisms passes its state on between segments."""
        if self.options.keep_state != "memory":
            return self.options.keep_state == "all"
        return any(MECHANISMS[x].traits.family == "recurrence" for x in mechanisms)

    def _use_dataset(self, dataset: BuiltDataset | None) -> None:
        super()._use_dataset(dataset)
        self._segments = {}

    def size(self, split: Split) -> int:
        """Return the number of segments, or windows, of a split."""
        return len(self.segments(split))

    def sequence_lengths(self, split: Split) -> dict[str, np.ndarray]:
        """Return the tokens of each segment, or window, of a split."""
        return {"tokens": self.segments(split).lengths}

    def segments(self, split: Split) -> Segments:
        """Return the segments of a split, or its sliding windows."""
        if split not in self._segments:
            options, is_training = self.options, split == "train"
            length = options.length if is_training else options.window
            stride = length if is_training else options.resolved_stride
            self._segments[split] = self.windows(split, length, stride)
        return self._segments[split]

    def windows(self, split: Split, length: int, stride: int) -> Segments:
        """Cut the documents of a split into windows of another length; see `cut_windows`.

        Of a held-out document they cover the tokens that are scored.
        """
        limit = None if split == "train" else self.options.held_out_tokens
        return cut_windows(self._examples(split), length, stride, limit)

    def batches_of(self, segments: Segments, batch_size: int) -> Iterator[Batch]:
        """Yield segments once, in batches whose rows walk through documents."""
        for step in evaluation_walks(segments, np.arange(len(segments)), batch_size, 0):
            yield self._make_batch(segments, *step)

    def batches(
        self,
        split: Split,
        *,
        batch_size: int,
        seed: int = 0,
        start: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[Batch]:
        """Yield batches, beginning with number `start`, whose rows walk through documents.

        `train` is endless, and its documents are in another order in each epoch. Other splits, and
        given rows, are yielded once, in their order.

        Raises:
            OptionError: batch_size, seed or start is out of range.
        """
        segments = self.segments(split)
        is_training = split == "train" and rows is None
        check_batches(len(segments) if is_training else None, batch_size, seed, start)
        if is_training:
            walks = training_walks(segments, batch_size, seed, start)
        else:
            rows = np.arange(len(segments)) if rows is None else np.sort(rows)
            walks = evaluation_walks(segments, rows, batch_size, start)
        follows = split == "train" or self.options.evaluation == "segments"
        batches = (self._make_batch(segments, *step) for step in walks)
        return batches if follows else (replace(x, continues=None) for x in batches)

    def sample_rows(self, split: Split, count: int) -> np.ndarray:
        """Return segments that follow each other, from a random one on, so that state passes on."""
        size = self.size(split)
        count = min(count, size)
        first = random_stream(SAMPLE_SEED).integers(size - count + 1)
        return np.arange(first, first + count)

    def _make_batch(self, segments: Segments, rows: np.ndarray, continues: np.ndarray) -> Batch:
        """Return segments as a batch, padded to the longest of them."""
        segments.check(rows)
        lengths, scored = segments.lengths[rows], segments.scored[rows]
        width = int(lengths.max())
        tokens = np.zeros((len(rows), width + 1), np.int64)
        for line, row in zip(tokens, rows, strict=True):
            sequence = segments.tokens(row)
            line[: len(sequence)] = sequence
        places = np.arange(width)
        real = places < lengths[:, None]
        is_scored = real & (places >= (lengths - scored)[:, None])
        inputs = text_inputs(torch.from_numpy(np.where(real, tokens[:, :-1], 0)), real)
        if real.all():  # a mask that hides nothing
            del inputs["attention_mask"]
        return Batch(
            inputs=inputs,
            targets=torch.from_numpy(np.where(is_scored, tokens[:, 1:], IGNORE)),
            rows=torch.from_numpy(rows),
            continues=torch.from_numpy(continues),
        )

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B T V"] | Float[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the nats of each segment, and the tokens, bytes, characters or words they are of.

        Arguments are those of `Task.example_statistics`, with the losses of the targets in place of
        the logits if the metrics follow from nats.
        """
        losses = logits if logits.shape == targets.shape else cross_entropy(logits, targets)
        statistics, nats = {}, losses.double().sum(1)
        for metric in metrics:
            if not metric.is_likelihood:
                statistics[metric.name] = LOGIT_STATISTICS[metric.name](logits, targets)
                continue
            count = self._count(metric.columns[1], split, rows, targets)
            statistics[metric.name] = torch.stack((nats, count.to(nats.device)), dim=1)
        return statistics

    def _count(self, name: str, split: Split, rows: Tensor, targets: Tensor) -> Tensor:
        """Return the tokens, bytes, characters or words among the targets of each segment."""
        if name == "tokens":
            return (targets != IGNORE).sum(1).double()
        segments, counts = self.segments(split), []
        for row in rows.tolist():
            is_scored = np.arange(segments.lengths[row], 0, -1) <= segments.scored[row]
            counts.append(self.vocabulary.count(name, segments.tokens(row), is_scored))
        return torch.tensor(counts, dtype=torch.float64)

    def labels(self, split: Split, rows: np.ndarray | None = None) -> Int[Tensor, " N"]:
        """Return the scored targets of some rows of a split, in their order; None: of all."""
        segments = self.segments(split)
        rows = np.arange(len(segments)) if rows is None else rows
        parts = [segments.tokens(row)[-segments.scored[row] :] for row in rows]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    def units(self, split: Split) -> np.ndarray:
        """Return the number of the document of each segment, or of its block of the split.

        A split of fewer than 20 documents is divided into 100 blocks of segments that follow each
        other, so that intervals do not rest on a few documents.
        """
        segments = self.segments(split)
        if self.unit_name(split) == "document":
            return segments.documents
        count = len(segments)
        return np.arange(count) * min(BLOCKS, count) // count

    def unit_name(self, split: Split) -> str:
        """Return "document", or "block" where there are few documents."""
        documents = np.unique(self.segments(split).documents)
        return "document" if len(documents) >= FEW_DOCUMENTS else "block"

    def groupings(self, split: Split) -> list[Grouping]:
        """Return groups of segments by their distance from the beginning of the document."""
        if split not in self._groupings:
            segments = self.segments(split)
            is_first = np.append(True, np.diff(segments.documents) != 0)
            begins = segments.starts[is_first][np.cumsum(is_first) - 1]
            groupings = group_by_quantiles("tokens before", segments.starts - begins, 4)
            self._groupings[split] = groupings
        return self._groupings[split]

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text.

        Raises:
            OptionError: the vocabulary lacks a character of it.
        """
        return self.vocabulary.encode(text)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        return self.vocabulary.decode(ids)

    def class_name(self, label: int) -> str:
        """Return the token of an id."""
        return self.vocabulary.symbols[label]

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of a segment."""
        return [self.vocabulary.symbols[token] for token in ids.tolist()]

    def show(self, split: Split, row: int) -> str:
        """Return the text of a segment."""
        segments = self.segments(split)
        if not 0 <= row < len(segments):
            raise OptionError(f"row {row} of {split!r}: expected 0 to {len(segments) - 1}")
        return f"document {segments.documents[row]}: {self.decode(segments.tokens(row))}"
