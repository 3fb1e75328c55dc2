"""Conversion of a checkpoint: `longify`."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from longspan.errors import DataError, OptionError
from longspan.files import check_new_folder
from longspan.models.attention_layer import SelfAttention
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import POSITIONS, WORDS, Head, Weight
from longspan.models.conversion.plan import make_config, plan_extension
from longspan.models.conversion.positions import stretch_table
from longspan.models.conversion.saving import save_folder
from longspan.models.conversion.source import Source, SourceWeight, open_source
from longspan.models.conversion.tokenizer import carry_tokenizer
from longspan.models.conversion.weights import (
    ConvertedWeight,
    copy_weights,
    drop_weights,
    matches,
    new_weights,
    start_projections,
)

OUTPUT = "lm_head.weight"


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Converted model.

    Attributes:
        model: the model, with a head if the source has one that is kept.
        tokenizer: tokenizer of the source with the new length; None if the source has none.
        weights: a row for each weight of the source and of the model.
    """

    model: LongspanPreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    weights: tuple[ConvertedWeight, ...]


def longify(
    source: str | Path,
    *,
    attention: str | list[str],
    max_length: int,
    out: str | Path | None = None,
    options: dict[str, Any] | list[dict[str, Any]] | None = None,
    positions: str | None = None,
    freeze: str = "none",
    drop: Collection[str] = (),
    new: Collection[str] = (),
    revision: str | None = None,
    seed: int = 0,
) -> Conversion:
    """Convert a short pretrained encoder into a long one with another attention.

    The outputs for a short input equal those of the source if the attention covers the input
    ("full", or a window as long) and the positions of the source are kept.

    Args:
        source: folder of a checkpoint, or its name on the Hugging Face Hub; its `model_type` is in
            `longspan.models.conversion.families.FAMILIES`.
        attention: name of the mechanism, or a list with a name for each layer.
        max_length: maximum number of tokens, at least that of the source.
        out: folder to write, with the tokenizer; None: nothing is written.
        options: options of the mechanism, or a list with those of each layer.
        positions: how positions are extended, see `longspan.models.conversion.positions`; None: the
            first method for the kind of positions that the source has.
        freeze: "none", or "all-but-positions" to train only the positions beyond those of the
            source, see `longspan.models.freezing`.
        drop: patterns of weights of the source to drop, beyond those that have no use.
        new: patterns of weights of the model that the source may lack; they start anew.
        revision: revision of a source on the Hub.
        seed: seed of new weights.

    Raises:
        OptionError: the source cannot be converted, an option is invalid, `max_length` is below
            that of the source, or `out` exists.
        UnknownNameError: a mechanism, option or method does not exist.
        DataError: weights are missing, left over, damaged or pickled, or the tokenizer does not
            match.
        RunError: `out` cannot be written.
    """
    folder = None if out is None else check_new_folder(Path(out))
    opened = open_source(source, revision)
    extension = plan_extension(opened, attention, options, max_length, positions, freeze)
    config = make_config(opened, extension)
    tokenizer = carry_tokenizer(opened.folder, opened.config, max_length)
    weights = opened.read_weights()
    named = {x: "named by the caller" for x, y in weights.items() if matches((x, y.name), drop)}
    kept = {name: x for name, x in weights.items() if name not in named}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        converter = _Converter(opened, kept, config, extension.positions)
        converter.copy(new)
    rows = converter.rows + drop_weights(weights, converter.used, named | converter.reasons)
    if folder is not None:
        save_folder(folder, converter.model, tokenizer)
    return Conversion(converter.model, tokenizer, tuple(rows))


class _Converter:
    """Model with the weights of a source, the rows of the table, and reasons to drop the rest."""

    def __init__(
        self,
        source: Source,
        weights: Mapping[str, SourceWeight],
        config: LongspanConfig,
        positions: str,
    ):
        self.source, self.weights, self.config = source, weights, config
        self.positions = positions
        family = source.family
        has_head = any(name.startswith(family.head_prefix) for name in weights)
        self.head = family.head(source.config) if has_head else None
        self.table = family.weights(source.config)
        config.tie_word_embeddings = self._is_tied()
        made = self.head.model if isinstance(self.head, Head) else family.base
        self.model: LongspanPreTrainedModel = made(config).eval()
        _check_projections(self.model)
        self.rows: list[ConvertedWeight] = []
        self.used: set[str] = set()
        self.reasons = dict(family.dropped)
        if isinstance(self.head, str):
            self.reasons[f"{family.head_prefix}*"] = self.head

    def copy(self, new: Collection[str]) -> None:
        """Copy the weights into the model, and describe those that have no source."""
        base = f"{self.model.base_model_prefix}." if isinstance(self.head, Head) else ""
        table = [weight._replace(target=base + weight.target) for weight in self.table]
        started = {}
        if isinstance(self.head, Head):
            table += self.head.weights
            if self.config.tie_word_embeddings:
                started[OUTPUT] = f"tied to {base}{WORDS}"
                self.reasons[self.head.output] = "equals the word embeddings, to which it is tied"
            else:
                table.append(Weight(OUTPUT, (self.head.output,)))
        stretch = {base + POSITIONS: self._stretch}
        done = copy_weights(table, self.weights, self.model, stretch, new)
        self.model.load_state_dict(done.state, strict=False)
        started |= start_projections(self.model)
        self.rows = done.rows + new_weights(self.model, done.state, started)
        self.used = done.used
        nn.Module.to(self.model, next(iter(done.state.values())).dtype)

    def _is_tied(self) -> bool:
        """Return whether the output matrix is that of the word embeddings, or there is none."""
        tied = bool(self.source.config.tie_word_embeddings)
        output = self.head.output if isinstance(self.head, Head) else ""
        words = next(x.sources[0] for x in self.table if x.target == WORDS)
        if not tied or output not in self.weights or words not in self.weights:
            return tied
        return torch.equal(self.weights[output].tensor, self.weights[words].tensor)

    def _stretch(self, table: Tensor) -> tuple[Tensor, str]:
        """Return the position table of the model, and a description of it."""
        rows, before = self.source.config.max_position_embeddings, 0
        if len(table) != rows:
            raise DataError(
                f"the position table has {len(table):,} rows, config.json states {rows:,}; "
                "the weights are not those of config.json"
            )
        before = self.source.family.rows_before(self.source.config)
        length, scale = self.config.max_position_embeddings, self.config.initializer_range
        made, action = stretch_table(table[before:], length, self.positions, scale)
        return made, f"{action}, without the first {before} (padding)" if before else action


def _check_projections(model: LongspanPreTrainedModel) -> None:
    """Raise OptionError if the scores of a layer cannot come from the source's projections."""
    for module in model.modules():
        if isinstance(module, SelfAttention) and module.query is None:
            raise OptionError(
                f"{module.mechanism.name} has no query and key projections, so that nothing of the "
                "source's attention would remain; choose a mechanism with queries"
            )
