"""Tasks: metadata, data, head, metrics.

A task never yields test examples for training or selection, and evaluation covers every example.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from longspan.data.store import Examples
from longspan.errors import OptionError
from longspan.metrics import Metric, get_metric
from longspan.shapes import Float, Int
from longspan.tasks.batching import (
    Batch,
    RankedDocuments,
    check_batches,
    evaluation_rows,
    pad_sequences,
    sample_rows,
    scored_targets,
    text_inputs,
    training_rows,
)
from longspan.tasks.grouping import Grouping
from longspan.tasks.rules import Rule
from longspan.tasks.scoring import IGNORE, LOGIT_STATISTICS
from longspan.tasks.task_data import HELD_OUT, SPLITS, ProgressCallback, Split, TaskData

if TYPE_CHECKING:
    from longspan.models.heads.base import Head

__all__ = ["HELD_OUT", "SPLITS", "Batch", "Grouping", "ProgressCallback", "Split", "Task"]


class Task(TaskData):
    """A task with its options; `open` prepares the data, `batches` yields it.

    Examples are one or two token sequences and labels; id 0 is padding. A subclass defines how the
    splits are built (`build_splits`) and, unless they are generated, which source files they come
    from (`find_source`).
    """

    unit: ClassVar[str] = "example"  # name of what `units` returns the numbers of
    class_names: ClassVar[tuple[str, ...]] = ()  # empty: numbers
    has_answers: ClassVar[bool] = False  # True: `answers` returns them as text
    is_own: ClassVar[bool] = False  # made of a user's texts, which have no published length
    sorts_by_frequency: ClassVar[bool] = False  # ids by decreasing frequency of their words

    @property
    def length(self) -> int:
        """Maximum number of tokens of an example."""
        return self.options.length

    @property
    def head_name(self) -> str:
        """File of the model head under these options; see `longspan.models.heads`."""
        return self.info.head

    @property
    def head(self) -> "type[Head]":
        """Model class that the task trains."""
        # The models import transformers, which lists of tasks do not need.
        from longspan.models.heads import find_head

        return find_head(self.head_name)

    @property
    def image_side(self) -> int | None:
        """Number of rows, and of columns, of an image read row by row; None: there is none."""
        return None

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each input of the largest example, by argument of the model.

        Override where a head reads more than one text of full length, or other inputs.
        """
        return dict.fromkeys(self.head.texts, (self.length,))

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split under these options; None where the build alone tells.

        Sizes that no option sets are those of the published files; override where others follow.
        """
        option_sizes = {split: getattr(self.options, split, None) for split in SPLITS}
        published_sizes = self.info.sizes
        return {
            split: x if isinstance(x, int) else published_sizes.get(split)
            for split, x in option_sizes.items()
        }

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task, the main one first."""
        return tuple(get_metric(name) for name in self.info.metrics)

    @property
    def selection_metrics(self) -> tuple[Metric, ...]:
        """Metrics of the evaluations during training, of which the first selects the checkpoint.

        Override where a model generates texts: these metrics follow from logits.
        """
        return self.metrics

    @property
    def training_metrics(self) -> tuple[Metric, ...]:
        """Metrics computed from every training batch; override where the main one is slow."""
        return self.selection_metrics[:1]

    @property
    def generation(self) -> dict[str, Any] | None:
        """Fields of transformers' `GenerationConfig` for scored texts; None: logits are scored.

        `metrics` without the `selection_metrics` are then those of `generation_statistics`.
        """
        return None

    @property
    def vocab_size(self) -> int:
        """Number of token ids under these options."""
        return self.info.vocab_size

    @property
    def num_added_tokens(self) -> int:
        """Number of last token ids that are markers of the task alone.

        A checkpoint that has no embeddings of them gets randomly initialized ones.
        """
        return 0

    @property
    def num_classes(self) -> int:
        """Number of classes under these options."""
        return self.info.num_classes

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers, of which the model predicts one for each example."""
        return False

    @property
    def is_multi_label(self) -> bool:
        """True if any number of the classes applies to an example; bits of its target say which."""
        return False

    def count_classes(self, labels: np.ndarray) -> dict[Any, int]:
        """Return the number of targets of each class."""
        classes, numbers = np.unique(labels, return_counts=True)
        return dict(zip(classes.tolist(), numbers.tolist(), strict=True))

    @property
    def chance(self) -> float | None:
        """Expected main metric of a uniform guess under these options."""
        return self.info.chance

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Predictions without a model under these options, to compare scores with."""
        return ()

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Names of the rules that `rule_scores` scores."""
        return tuple(rule.name for rule in self.rules) if self._scores_accuracy else ()

    @property
    def _scores_accuracy(self) -> bool:
        return self.info.metrics[0] == "accuracy"

    @property
    def input_features(self) -> int | None:
        """Numbers at each position of continuous inputs; None for token ids."""
        return None

    @property
    def model_fields(self) -> dict[str, Any]:
        """Fields of the model's configuration that the task decides, such as special tokens."""
        return {}

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens of an example under these options."""
        return 0

    @property
    def validation_is_test(self) -> bool:
        """True if the validation split is the test split, as in some papers."""
        return False

    def labels(
        self, split: Split, rows: np.ndarray | None = None
    ) -> Int[Tensor, " N"] | Float[Tensor, " N"]:
        """Return all scored targets of some rows of a split, in their order; None: of all rows."""
        return torch.from_numpy(scored_targets(self._examples(split), rows))

    def to_inputs(self, padded: np.ndarray) -> Int[Tensor, "B T"] | Float[Tensor, "B T F"]:
        """Return the model's inputs for padded tokens (B, T): their ids."""
        return torch.from_numpy(padded.astype(np.int64))

    def batches(
        self,
        split: Split,
        *,
        batch_size: int,
        seed: int = 0,
        start: int = 0,
        rows: np.ndarray | None = None,
    ) -> Iterator[Batch]:
        """Yield batches, beginning with number `start`.

        `train` is endless: each epoch is a permutation drawn from (seed, epoch), the last partial
        batch of an epoch is dropped, and batch n depends on (seed, n) alone, so a resumed run
        sees the batches of an uninterrupted one. Other splits are yielded once, every example
        exactly once, sorted by length to minimize padding. So are the given rows of any split.

        Args:
            split: split.
            batch_size: examples per batch; the last one of an evaluation may have fewer.
            seed: seed of the permutations of `train`.
            start: number of the first batch.
            rows: rows to yield once; None: see above.

        Raises:
            OptionError: batch_size, seed or start is out of range.
        """
        examples = self._examples(split)
        is_training = split == "train" and rows is None
        check_batches(len(examples) if is_training else None, batch_size, seed, start)
        if not is_training:
            row_batches = evaluation_rows(examples, batch_size, start, rows)
            return (self.collate(examples, batch_rows) for batch_rows in row_batches)
        numbered_batches = enumerate(self._training_rows(batch_size, seed, start), start)
        return (
            self.collate(examples, batch_rows, (seed, number))
            for number, batch_rows in numbered_batches
        )

    def _training_rows(self, batch_size: int, seed: int, start: int) -> Iterator[np.ndarray]:
        """Return the rows of each training batch; the arguments are those of `batches`.

        They are endless, and batch n depends on (seed, n) alone. Override to draw them in other
        shares.
        """
        return training_rows(self.size("train"), batch_size, seed, start)

    def sample_rows(self, split: Split, count: int) -> np.ndarray:
        """Return `count` rows of a split, or all, in ascending order: the same in every run.

        Override where examples are read in their order.
        """
        return sample_rows(self.size(split), count)

    def keeps_state(self, mechanisms: Sequence[str]) -> bool:
        """Return whether a model of these mechanisms passes its state on from batch to batch.

        Override where the rows of a batch continue those of the last one (`Batch.continues`).
        """
        return False

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return a batch as wide as its longest example, rounded up; see `pad_sequences`.

        Override to mark global tokens, or to mask tokens.

        Args:
            examples: examples of a split, or new ones.
            rows: rows of the batch.
            draw: seed and number of a training batch, from which random changes are drawn; None:
                an evaluation, whose batches depend on the examples alone.

        Raises:
            DataError: a row has changed on disk since it was written.
        """
        examples.check(rows)
        tokens, key_mask = pad_sequences(examples.tokens, rows, self.length)
        inputs = text_inputs(self.to_inputs(tokens), key_mask)
        if examples.second is not None:
            second, mask = pad_sequences(examples.second, rows, self.length)
            inputs |= text_inputs(self.to_inputs(second), mask, "input_ids_b")
        if examples.targets is None:
            targets = scored_targets(examples, rows)
        else:
            targets = pad_sequences(examples.targets, rows, self.length)[0].astype(np.int64) - 1
            targets[targets < 0] = IGNORE
        return Batch(inputs=inputs, targets=torch.from_numpy(targets), rows=torch.from_numpy(rows))

    def label_arguments(
        self, targets: Int[Tensor, "B ..."] | Float[Tensor, "B ..."]
    ) -> dict[str, Any]:
        """Return the targets of a batch as the arguments from which the model computes its loss.

        Override where a head has other labels, or none.
        """
        return {self.head.label: targets}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "*B C"],
        targets: Int[Tensor, "*B"] | Float[Tensor, "*B"],
    ) -> dict[str, Tensor]:
        """Return the per-example statistics (B, K) of some of the task's metrics, by name.

        Override for metrics that need more than logits and targets, such as reference texts.

        Args:
            metrics: metrics to compute.
            split: split of the examples.
            rows: rows of the examples, to look up references that are no targets.
            logits: predictions.
            targets: classes, `IGNORE` where unscored; or numbers.
        """
        return {metric.name: LOGIT_STATISTICS[metric.name](logits, targets) for metric in metrics}

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B ..."],
        targets: Int[Tensor, "B ..."],
    ) -> dict[str, Any]:
        """Return the answers to some examples, as in a file for the official evaluation.

        Override it, and `has_answers`, where an official evaluation reads a file of answers.

        Args:
            split: split of the examples.
            rows: their rows.
            logits: scores of the model.
            targets: targets of their batch, which may tell where the documents begin.

        Raises:
            OptionError: the task has none.
        """
        raise OptionError(f"{self.info.name} has no answers for an official evaluation")

    def generation_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        generated: Int[Tensor, "B U"],
    ) -> dict[str, Tensor]:
        """Return the per-example statistics (B, K) of metrics of generated texts, by name.

        Define it together with `generation`.

        Args:
            metrics: metrics to compute.
            split: split of the examples.
            rows: rows of the examples, to look up reference texts.
            generated: tokens of each text, padded behind its end token.
        """
        raise NotImplementedError(f"{self.info.name} scores no generated texts")

    def ranked_documents(self, split: Split, rows: np.ndarray) -> RankedDocuments | None:
        """Return the documents among which an evaluation ranks those that answer its queries.

        The statistics of a query follow from its ranking: `example_statistics` takes the
        similarities of its best documents as logits (B, K), best first, and their numbers as
        targets (B, K), -1 where there are fewer. None: a model compares the sequences of a batch.

        Args:
            split: split of the queries.
            rows: rows of the queries that are scored, in this order.
        """
        return None

    def majority_baseline(self, split: Split, rows: np.ndarray | None = None) -> float | None:
        """Return the main metric of always predicting the most frequent class.

        None where the main metric is not accuracy.

        Args:
            split: split.
            rows: scored rows; None: all.
        """
        if not self._scores_accuracy:
            return None
        labels = self.labels(split, rows)
        return int(labels.bincount().max()) / len(labels)

    def rule_scores(self, split: Split) -> dict[str, float]:
        """Return the main metric of each rule on a split, computed once for an open data set.

        Rules are fitted on the training split. Empty where the main metric is not accuracy, unless
        a task overrides it, together with `rule_names`.

        Raises:
            DataError: an example has changed on disk since it was written.
        """
        if not self._scores_accuracy:
            return {}
        if split not in self._rule_scores:
            train, examples = self._examples("train"), self._examples(split)
            scores = {rule.name: rule.correct(train, examples).mean() for rule in self.rules}
            for part in (train, examples) if scores else ():
                part.check(np.arange(len(part)))
            self._rule_scores[split] = {name: float(score) for name, score in scores.items()}
        return self._rule_scores[split]

    def units(self, split: Split) -> np.ndarray | None:
        """Return the number of the unit that each example is a part of, such as its document.

        Intervals and paired tests resample whole units. None: examples are independent.
        """
        return None

    def unit_name(self, split: Split) -> str:
        """Return the name of what `units` returns the numbers of."""
        return self.unit

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example as text; by default its id."""
        return [str(token) for token in ids.tolist()]

    def class_name(self, label: int) -> str:
        """Return the name of a class; by default its number."""
        return self.class_names[label] if self.class_names else str(label)

    @abstractmethod
    def show(self, split: Split, row: int) -> str:
        """Return an example as text."""

    def svg(self, split: Split, row: int) -> str | None:
        """Return an example as an SVG picture; None where text suffices."""
        return None
