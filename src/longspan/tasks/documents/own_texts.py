"""Tasks made of imported texts: classes and numbers, or summaries."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.imports import texts
from longspan.data.imports.targets import label_matrix, label_separator
from longspan.data.imports.texts import TextsDescription, TextsSplit
from longspan.data.summarized_document import SummarizedDocument, split_sentences
from longspan.errors import OptionError
from longspan.metrics import Metric
from longspan.shapes import Bool, Float, Int
from longspan.tasks.base import ProgressCallback, Split, Task
from longspan.tasks.encoded_text import (
    EncodedTextTask,
    EncodingOptions,
    LabeledTexts,
)
from longspan.tasks.imported import ImportedTask, make_task, makes_tasks
from longspan.tasks.scoring import statistics_of_mean
from longspan.tasks.source_report import Report
from longspan.tasks.summaries.summaries import METRICS, SummaryTask
from longspan.wording import first_of

_NOTES = (
    "Unless files were given for the splits, the different texts are ordered by their sha256, and "
    "the first ones of each class are held out. Equal texts (of pairs: equal pairs) are in one "
    "split."
)
_SUMMARY_NOTES = (
    "Unless files were given for the splits, the different texts are ordered by their sha256, and "
    "the first ones are held out. Equal texts are in one split. Texts are split into sentences "
    "after periods, question and exclamation marks, and line breaks. ROUGE counts words of any "
    "script; with `rouge=rouge-score` it is the published one, of a-z and 0-9 alone."
)


@settings
class OwnTextOptions(EncodingOptions):
    """Encoding of imported texts."""

    length: Length = setting("tokens of a text that are kept", 1024)
    minimum: PositiveInt = setting(
        "occurrences in the training texts that make a character known", 2
    )
    class_weights: Literal["none", "balanced"] = setting(
        "weights of the classes in the loss: none; or balanced: by the inverse of their number of "
        "training texts",
        "none",
        in_data=False,
    )
    truncation: Literal["head", "head_tail"] = setting(
        "tokens of a longer text that are kept: head, the first ones; or head_tail, a quarter from "
        "its head and the rest from its tail (Sun et al. 2019)",
        "head",
    )
    train_on: Literal["train", "all"] = setting(
        "texts that are trained on: train, those of the split; or all, with none held out, so that "
        "the model has no score",
        "train",
    )


class OwnTexts(ImportedTask, EncodedTextTask):
    """Texts of imported files with a class or a number each; subclasses are made by `_make`."""

    Options = OwnTextOptions
    options: OwnTextOptions
    is_own = True
    description: ClassVar[TextsDescription]

    @property
    def truncation(self) -> str:
        """Tokens of a longer text that are kept; see `kept_tokens`."""
        return self.options.truncation

    @property
    def is_regression(self) -> bool:
        """True if the targets are numbers."""
        return self.description.is_regression

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Texts by split: all of them in training, if they are trained on."""
        sizes = super().sizes
        if self.options.train_on == "train":
            return sizes
        return {**dict.fromkeys(sizes, 0), "train": sum(x or 0 for x in sizes.values())}

    @property
    def is_multi_label(self) -> bool:
        """True if the texts were imported with several labels each."""
        return self.description.kind == "labels"

    def count_classes(self, labels: np.ndarray) -> dict[Any, int]:
        """Return the number of texts of each class."""
        if not self.is_multi_label:
            return super().count_classes(labels)
        return dict(enumerate(label_matrix(labels, self.num_classes).sum(0).tolist()))

    @property
    def model_fields(self) -> dict[str, Any]:
        """Weights of the classes, if they are balanced: 1 on average over the training texts.

        Raises:
            OptionError: the targets are numbers or several labels.
        """
        fields = super().model_fields
        if self.is_multi_label:
            fields = {**fields, "problem_type": "multi_label_classification"}
        if self.options.class_weights == "none":
            return fields
        if self.description.kind != "class":
            raise OptionError(
                "class_weights='balanced' is of one class a text; omit it for numbers and for "
                "several labels"
            )
        counts_by_split = self.description.class_counts
        trained = counts_by_split if self.options.train_on == "all" else ("train",)
        counts = np.sum([counts_by_split[split] for split in trained], axis=0)
        weights = counts.sum() / (max(1, (counts > 0).sum()) * np.maximum(counts, 1))
        return {**fields, "class_weights": weights.tolist()}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the imported texts."""
        description = self.description
        progress(f"encoding {description.name}", 0, sum(description.sizes.values()))
        rows = texts.load_splits(self.folder, description)
        if self.options.train_on == "all":
            rows = {"train": texts.join_splits(rows)}
        splits, facts = self.encode_splits({x: _to_labeled_texts(y) for x, y in rows.items()})
        return BuildOutput(
            splits=splits,
            facts={
                "files": description.files,
                "columns": description.columns,
                "classes": description.classes,
                **description.counts,
                **facts,
            },
        )

    def class_name(self, label: int) -> str:
        """Return the name of a class, as in the file."""
        return self.description.classes[label]

    def predicted_numbers(self, logits: Float[Tensor, "*B 1"]) -> Float[Tensor, "*B"]:
        """Return the numbers that the model's outputs stand for, in units of the file.

        The model predicts standardized numbers: of mean 0 and deviation 1 in training.
        """
        return logits[..., 0].double() * self.description.deviation + self.description.mean

    def probabilities(self, logits: Float[Tensor, "*B C"]) -> Float[Tensor, "..."]:
        """Return the probabilities of the classes, or the numbers without their axis."""
        if self.is_regression:
            return self.predicted_numbers(logits)
        return logits.sigmoid() if self.is_multi_label else logits.softmax(-1)

    def label_arguments(
        self, targets: Int[Tensor, " B"] | Float[Tensor, " B"]
    ) -> dict[str, Tensor]:
        """Return the classes, which labels apply, or the standardized numbers."""
        labels = self._standardize(targets) if self.is_regression else targets
        if self.is_multi_label:
            labels = self._which_apply(targets).float()
        return super().label_arguments(labels)

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "*B C"],
        targets: Int[Tensor, "*B"] | Float[Tensor, "*B"],
    ) -> dict[str, Tensor]:
        """Return the statistics of accuracy, of micro F1, or of R² and RMSE (in own units)."""
        if self.is_multi_label:
            predicted, true = logits > 0, self._which_apply(targets)
            counts = (predicted & true, predicted & ~true, ~predicted & true)
            return {"f1": torch.stack([x.double().sum(-1) for x in counts], dim=-1)}
        if not self.is_regression:
            return super().example_statistics(metrics, split, rows, logits, targets)
        numbers = self._standardize(targets)
        error = (logits[..., 0].double() - numbers).square()
        statistics = {
            "r2": torch.stack((error, numbers.square()), dim=-1),
            "rmse": statistics_of_mean(error * self.description.deviation**2),
        }
        return {metric.name: statistics[metric.name] for metric in metrics}

    def show(self, split: Split, row: int) -> str:
        """Return the texts and the class, or the number."""
        examples = self._examples(split)
        tokens, _ = self._example(split, row)
        sides = [tokens] if examples.second is None else [tokens, examples.second[row]]
        target = examples.labels[row]
        if self.is_multi_label:
            names = np.array(self.description.classes)
            applying = names[label_matrix(np.array([target]), len(names))[0]]
            shown = label_separator(self.description.classes).join(applying)
        else:
            shown = f"{target:g}" if self.is_regression else self.class_name(int(target))
        return f"{' | '.join(map(self.decode, sides))} = {shown}"

    def _which_apply(self, targets: Tensor) -> Bool[Tensor, "*B C"]:
        return (
            targets[..., None] >> torch.arange(self.num_classes, device=targets.device)
        ) % 2 == 1

    def _standardize(self, targets: Tensor) -> Float[Tensor, "*B"]:
        return (targets.double() - self.description.mean) / self.description.deviation


def _to_labeled_texts(rows: TextsSplit) -> LabeledTexts:
    sides = [[text.encode() for text in side] for side in zip(*rows.texts, strict=True)]
    return LabeledTexts(sides[0], rows.targets, sides[1] if len(sides) > 1 else None)


class OwnSummaries(ImportedTask, SummaryTask):
    """Texts of imported files and their summaries; subclasses are made by `_make`."""

    is_own = True
    description: ClassVar[TextsDescription]

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, SummarizedDocument]]:
        """Yield the imported rows."""
        for name, part in texts.load_splits(self.folder, self.description).items():
            for row, ((text,), summary) in enumerate(zip(part.texts, part.targets, strict=True)):
                place = f"{texts.ROWS}: row {row + 1} of {name}"
                yield name, SummarizedDocument("", place, *map(split_sentences, (text, summary)))


@makes_tasks(TextsDescription)
def _make(folder: Path, description: TextsDescription) -> type[Task]:
    """Return the task class of an import."""
    files, columns = first_of(description.files), description.columns
    if description.kind == "summary":
        return make_task(
            OwnSummaries,
            folder,
            description,
            files,
            version=2,
            summary=f"Write {columns['target']!r}, the summary of {columns['text']!r}.",
            metrics=METRICS["unicode"],
            head="seq2seq",
            notes=_SUMMARY_NOTES,
        )
    count = len(description.classes)
    has_labels = description.kind == "labels"
    what = f"{'some' if has_labels else 'one'} of {count} classes" if count else "a number"
    metrics = ("f1",) if has_labels else ("accuracy",) if count else ("r2", "rmse")
    return make_task(
        OwnTexts,
        folder,
        description,
        files,
        summary=f"Predict {columns['target']!r}, {what}, from {columns['text']!r}"
        + (f" and {columns['pair']!r}." if description.is_pair else "."),
        num_classes=max(1, count),
        metrics=metrics,
        chance=None if has_labels else 1 / count if count else 0.0,
        head="pair_classification" if description.is_pair else "sequence_classification",
        notes=_NOTES,
    )
