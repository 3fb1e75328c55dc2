"""Masked inputs: predict hidden symbols, bytes or pixels of a task of Long Range Arena.

Amos, Berant and Gupta, "Never Train from Scratch", 2024 (https://arxiv.org/abs/2310.02980): models
are pretrained on the inputs of the task that they are trained on next. Shares are those of the
paper: 10 % of the symbols of ListOps, 15 % of texts, 50 % of the pixels. As in its code
(IdoAmos/not-from-scratch at f919137, src/dataloaders/base.py and lra.py) the mask token replaces
every masked token, a masked pixel is the number 0, and both texts of a pair are examples.
Differences: the number of masked tokens is the share of the example, rounded at random, in place
of a draw for each token; no second input channel tells which pixels are masked, as no pixel has the
number 0; and the loss is cross entropy over gray levels on Image too, where the paper has L1.
"""

import dataclasses
import functools
import itertools
from typing import Any, ClassVar, cast

import numpy as np

from longspan.config import setting, settings
from longspan.data.store import Examples, Ragged
from longspan.tasks.base import Split, Task
from longspan.tasks.batching import Batch
from longspan.tasks.global_tokens import mark_global_tokens
from longspan.tasks.lra.image import ImageTask
from longspan.tasks.lra.listops import ListOps
from longspan.tasks.lra.pathfinder import Pathfinder, PathX
from longspan.tasks.lra.pixels import LEVELS, PixelTask, draw_as_text
from longspan.tasks.lra.retrieval import Retrieval
from longspan.tasks.lra.text import Text
from longspan.tasks.masking import (
    MaskedTask,
    Masking,
    Probability,
    Share,
    check_shares,
    mask_rows,
)
from longspan.tasks.registry import register

PREFIX = "masked_"  # of the names of these tasks
MASKED = "[masked]"
_MASK_COLOR = (43, 92, 138)  # of masked pixels in pictures
_NOTES = (
    "Masks of training are drawn anew for every batch; a held-out example has one fixed mask. "
    "Perplexity is that of the masked tokens: it is comparable under one vocabulary and one share "
    "of masked tokens only. The data set is that of {name}, whose labels are not read."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BothTexts(Examples):
    """First texts of pairs, then their second ones; labels are the numbers of the pairs.

    Attributes:
        pairs: the pairs, with the checksums of their texts.
    """

    pairs: Examples

    def check(self, rows: np.ndarray) -> None:
        """Compare the pairs of some texts with their recorded CRC.

        Raises:
            DataError: a pair has changed since it was written.
        """
        self.pairs.check(np.unique(self.labels[rows]))


class _Chain(Ragged):
    """Sequences of two parts, one after the other, without copies of their values."""

    def __init__(self, first: Ragged, second: Ragged):
        lengths = np.concatenate((first.lengths, second.lengths))
        offsets = np.concatenate((np.zeros(1, np.int64), lengths.cumsum()))
        super().__init__(np.empty(0, first.values.dtype), offsets)
        object.__setattr__(self, "parts", (first, second))

    def __getitem__(self, row: int | np.integer) -> np.ndarray:
        first, second = cast(Any, self).parts
        return first[row] if row < len(first) else second[row - len(first)]


class MaskedInputs(MaskedTask):
    """Task of predicting the masked inputs of another; subclasses are made by `_mask_inputs`."""

    base: ClassVar[type[Task]]
    image_side = None  # a picture of the inputs would show what is masked
    rules = ()  # those of the other task predict its labels

    @functools.cached_property
    def other(self) -> Task:
        """Task whose inputs are masked, under the same options."""
        names = [field.name for field in dataclasses.fields(self.base.Options)]
        return self.base(self.base.Options(**{x: getattr(self.options, x) for x in names}))

    @property
    def head_name(self) -> str:
        """Masked tokens; continuous inputs have a class, their gray level, at masked positions."""
        return "masked_lm" if self.input_features is None else "token_classification"

    @property
    def vocab_size(self) -> int:
        """Number of token ids: those of the other task, and the mask token."""
        return self._num_symbols + 1

    @property
    def num_classes(self) -> int:
        """Number of tokens that are predicted; of continuous pixels, of gray levels."""
        return self.vocab_size if self.input_features is None else LEVELS

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split; both texts of a pair are examples."""
        sizes, factor = self.other.sizes, 2 if self._has_pairs else 1
        return {split: size and factor * size for split, size in sizes.items()}

    @functools.cached_property
    def masking(self) -> Masking:
        """Masks of these options; special tokens are neither masked nor drawn, black pixels are."""
        special = {self._num_symbols}
        if not isinstance(self, PixelTask):
            special.add(0)
        if pieces := getattr(self, "_word_pieces", None):
            special |= pieces.special_ids
        return self.make_masking(self._num_symbols, special)

    @property
    def data_name(self) -> str:
        """Name of the other task, whose data set is read."""
        return self.base.info.name

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples with masked tokens; see `CorpusTask.collate`.

        Raises:
            DataError: a row has changed on disk since it was written.
        """
        examples.check(rows)
        batch = mask_rows(examples.tokens, rows, self.masking, draw, self.length)
        if self.input_features is None:
            return mark_global_tokens(batch, getattr(self.options, "global_tokens", "none"))
        ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
        is_hidden = ids == self._num_symbols
        numbers = self.to_inputs(ids.masked_fill(is_hidden, 0).numpy())
        numbers = numbers.masked_fill(is_hidden[..., None], 0.0)
        return dataclasses.replace(batch, inputs={"input_values": numbers, "attention_mask": mask})

    def units(self, split: Split) -> np.ndarray | None:
        """Return the number of the pair that each text is of; None where examples are no pairs."""
        return self._examples(split).labels if self._has_pairs else None

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        is_mask = ids == self._num_symbols
        tokens = super().ids_to_tokens(np.where(is_mask, 0, ids))
        return [MASKED if x else token for x, token in zip(is_mask.tolist(), tokens, strict=True)]

    def show(self, split: Split, row: int) -> str:
        """Return an example as evaluation masks it; a masked pixel is blank."""
        ids = self._masked_example(split, row)
        if isinstance(self, PixelTask):
            visible = np.where(ids == self._num_symbols, 0, ids)
            return f"{draw_as_text(visible.reshape(self.side, -1))}\n(masked pixels are blank)"
        pair = f"pair {self._example(split, row)[1]}: " if self._has_pairs else ""
        return pair + self._text(ids)

    def svg(self, split: Split, row: int) -> str | None:
        """Return the masked image as a picture; None of texts and expressions."""
        return super().svg(split, row) if isinstance(self, PixelTask) else None

    def picture(self, split: Split, row: int) -> np.ndarray:
        """Return the colors (n, n, 3) of an image whose masked pixels are blue."""
        ids = self._masked_example(split, row)
        visible = np.where(ids == self._num_symbols, 0, ids).astype(np.uint8)
        colors = np.repeat(visible[:, None], 3, axis=1)
        colors[ids == self._num_symbols] = _MASK_COLOR
        side = cast(Any, self).side
        return colors.reshape(side, side, 3)

    def overlay(self, split: Split, row: int) -> str:
        """Return nothing: a drawing of the labels would show what is masked."""
        return ""

    def _masked_example(self, split: Split, row: int) -> np.ndarray:
        """Return the token ids of an example under its mask in evaluation."""
        self._example(split, row)  # a row that does not exist is refused
        tokens = self._examples(split).tokens
        batch = mask_rows(tokens, np.array([row]), self.masking, None, self.length)
        return batch.inputs["input_ids"][batch.inputs["attention_mask"]].numpy()

    def _text(self, ids: np.ndarray) -> str:
        """Return token ids as text."""
        decode = getattr(self, "decode", None)
        if decode is None:
            return " ".join(self.ids_to_tokens(ids))
        runs = itertools.groupby(ids.tolist(), lambda x: x == self._num_symbols)
        parts = (
            MASKED * len(list(run)) if is_mask else decode(np.array(list(run)))
            for is_mask, run in runs
        )
        return "".join(parts)

    @property
    def _num_symbols(self) -> int:
        return self.other.vocab_size

    @property
    def _has_pairs(self) -> bool:
        return self.base.info.head == "pair_classification"

    def _examples(self, split: str) -> Examples:
        examples = super()._examples(split)
        if examples.second is None:
            return examples
        numbers = np.arange(len(examples))
        tokens = _Chain(examples.tokens, examples.second)
        return BothTexts(tokens=tokens, labels=np.concatenate((numbers, numbers)), pairs=examples)


def _mask_inputs(base: type[Task], mask_probability: float) -> type[MaskedInputs]:
    """Return the task of predicting the masked inputs of another task.

    Args:
        base: task over one or two token sequences, or over images.
        mask_probability: share of the tokens that are masked by default.
    """
    info = base.info
    factor = 2 if info.head == "pair_classification" else 1
    masked_info = dataclasses.replace(
        info,
        name=f"{PREFIX}{info.name}",
        title=f"{info.title}, masked",
        summary=f"Predict the masked inputs of {info.name} from the others.",
        sizes={split: factor * size for split, size in info.sizes.items()},
        vocab_size=info.vocab_size + 1,
        num_classes=info.vocab_size + 1,
        metrics=("perplexity", "accuracy"),
        chance=None,
        head="masked_lm",
        published=(),
        notes=_NOTES.format(name=info.name),
    )
    members = {
        "__doc__": masked_info.summary,
        "__module__": __name__,  # records name the file of the task
        "base": base,
        "info": masked_info,
        "Options": _options(base.Options, mask_probability),
        "unit": "pair" if factor == 2 else "example",
    }
    return cast(type[MaskedInputs], type(f"Masked{base.__name__}", (MaskedInputs, base), members))


def _options(base: Any, probability: float) -> type:
    """Return the options of a task with those of masks."""

    @settings
    class Options(base):
        """Options of the other task, and masks."""

        mask_probability: Probability = setting(
            "share of the tokens that are masked", probability, in_data=False
        )
        replaced: Share = setting(
            "share of the masked tokens that the mask token replaces", 1.0, in_data=False
        )
        random: Share = setting(
            "share of the masked tokens that a random token replaces", 0.0, in_data=False
        )

        def __post_init__(self) -> None:
            """Check the options of the other task, and the shares."""
            if hasattr(base, "__post_init__"):
                base.__post_init__(self)
            check_shares(self.replaced, self.random)

    return Options


MASK_PROBABILITIES: dict[type[Task], float] = {
    ListOps: 0.1,
    Text: 0.15,
    Retrieval: 0.15,
    ImageTask: 0.5,
    Pathfinder: 0.5,
    PathX: 0.5,
}
for _base, _probability in MASK_PROBABILITIES.items():
    register(_mask_inputs(_base, _probability))
