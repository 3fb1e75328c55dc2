"""Tasks made of imported files: one class of `OwnTexts` for each import, under its name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data import own_texts
from longspan.data.cache import BuildOutput
from longspan.data.own_texts import OwnDescription, OwnSplit
from longspan.data.store import Examples
from longspan.data.tokenizers import ByteTokenizer, Tokenizer
from longspan.metrics import Metric
from longspan.shapes import Float, Int
from longspan.tasks._encoded_text import (
    EncodedTextTask,
    EncodingOptions,
    count_unknown,
    encode_texts,
)
from longspan.tasks.base import ProgressCallback, Split, Task
from longspan.tasks.imported import imported_names, make_class, register_imported
from longspan.tasks.info import TaskInfo
from longspan.wording import first_of

_NOTES = (
    "Unless files were given for the splits, the different texts are ordered by their sha256, and "
    "the first ones of each class are held out. Equal texts (of pairs: equal pairs) are in one "
    "split."
)


@settings
class OwnTextOptions(EncodingOptions):
    """Encoding of imported texts."""

    length: Length = setting("tokens of a text that are kept", 1024)
    minimum: PositiveInt = setting(
        "occurrences in the training texts that make a character known", 2
    )


class OwnTexts(EncodedTextTask):
    """Texts of an imported file with a class or a number each; subclasses are made by `_make`."""

    Options = OwnTextOptions
    options: OwnTextOptions
    is_own = True
    folder: ClassVar[Path]
    description: ClassVar[OwnDescription]

    @property
    def is_regression(self) -> bool:
        """True if the targets are numbers."""
        return self.description.is_regression

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the imported rows; `data` has no effect."""
        return {"form": "import", "sha256": self.description.rows_sha256}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the imported texts."""
        described = self.description
        progress(f"encoding {described.name}", 0, sum(described.sizes.values()))
        rows = own_texts.load_splits(self.folder, described)
        tokenizer = self.make_tokenizer(
            lambda: ((text.encode(), 1) for texts in rows["train"].texts for text in texts)
        )
        cut: dict[str, int] = {}
        splits = {}
        for split, own in rows.items():
            splits[split], cut[split] = self._encode_split(tokenizer, own)
        return BuildOutput(
            splits=splits,
            source=self.info.source,
            license=self.info.license,
            facts={
                "files": described.files,
                "columns": described.columns,
                "classes": described.classes,
                **described.counts,
                "cut": cut,
                **count_unknown(tokenizer, splits),
                **tokenizer.facts,
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

    def label_arguments(
        self, targets: Int[Tensor, " B"] | Float[Tensor, " B"]
    ) -> dict[str, Tensor]:
        """Return the classes, or the standardized numbers."""
        known = self._standardized(targets) if self.is_regression else targets
        return super().label_arguments(known)

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "*B C"],
        targets: Int[Tensor, "*B"] | Float[Tensor, "*B"],
    ) -> dict[str, Tensor]:
        """Return the statistics of accuracy, or of R² (standardized) and RMSE (in own units)."""
        if not self.is_regression:
            return super().example_statistics(metrics, split, rows, logits, targets)
        numbers = self._standardized(targets)
        error = (logits[..., 0].double() - numbers).square()
        statistics = {
            "r2": torch.stack((error, numbers.square()), dim=-1),
            "rmse": torch.stack(
                (error * self.description.deviation**2, torch.ones_like(error)), dim=-1
            ),
        }
        return {metric.name: statistics[metric.name] for metric in metrics}

    def show(self, split: Split, row: int) -> str:
        """Return the texts and the class, or the number."""
        examples = self._examples(split)
        tokens, _ = self._example(split, row)
        texts = [tokens] if examples.second is None else [tokens, examples.second[row]]
        target = examples.labels[row]
        shown = f"{target:g}" if self.is_regression else self.class_name(int(target))
        return f"{' | '.join(map(self.decode, texts))} = {shown}"

    def _standardized(self, targets: Tensor) -> Float[Tensor, "*B"]:
        return (targets.double() - self.description.mean) / self.description.deviation

    def _encode_split(self, tokenizer: Tokenizer, rows: OwnSplit) -> tuple[Examples, int]:
        """Return the examples of a split, and how many of its texts are longer than the length."""
        encoded = [
            encode_texts(tokenizer, (text.encode() for text in texts), self.options.length)
            for texts in zip(*rows.texts, strict=True)
        ]
        sides = [tokens for tokens, _ in encoded]
        second = sides[1] if len(sides) > 1 else None
        examples = Examples(tokens=sides[0], second=second, labels=rows.targets)
        return examples, sum(count for _, count in encoded)


def register_own_texts(cache: Path) -> list[str]:
    """Register the imported texts in a cache as tasks; return their names.

    See `register_imported` for those of another cache and damaged ones.
    """
    return register_imported(OwnTexts, own_texts.OWN_TEXTS, cache, _make)


def own_names() -> list[str]:
    """Return the names of the registered tasks that are imports."""
    return imported_names(OwnTexts)


def _make(folder: Path, description: OwnDescription) -> type[Task]:
    """Return the task class of an import."""
    count = len(description.classes)
    files, columns = first_of(description.files), description.columns
    what = f"one of {count} classes" if count else "a number"
    info = TaskInfo(
        name=description.name,
        version=1,
        title=f"{description.name} ({files})",
        summary=f"Predict {columns['target']!r}, {what}, from {columns['text']!r}"
        + (f" and {columns['pair']!r}." if description.is_pair else "."),
        source=f"{files}, imported",
        checksum=None,
        license="that of the file",
        sizes=description.sizes,
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=max(1, count),
        metrics=("accuracy",) if count else ("r2", "rmse"),
        chance=1 / count if count else 0.0,
        head="pair_classification" if description.is_pair else "sequence_classification",
        published=(),
        notes=_NOTES,
    )
    return make_class(OwnTexts, info, folder, description)
