"""Weights of a source in a model of ours: what `longify` and `convert` share."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longspan.errors import DataError, OptionError
from longspan.models.attention_layer import SelfAttention
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import DECODER, POSITIONS, WORDS, Head, Weight
from longspan.models.conversion.positions import stretch_table
from longspan.models.conversion.source import Source, SourceWeight
from longspan.models.conversion.weights import (
    ConvertedWeight,
    copy_weights,
    drop_weights,
    load_weights,
    matches,
)
from longspan.models.parts import decoder_config

OUTPUT = "lm_head.weight"
Model = TypeVar("Model", bound=PreTrainedModel)


@dataclasses.dataclass(frozen=True)
class Conversion(Generic[Model]):
    """Converted model.

    Attributes:
        model: the model, with a head if the source has one that is kept.
        tokenizer: tokenizer of the source with the new length; None if the source has none.
        weights: a row for each weight of the source and of the model.
    """

    model: Model
    tokenizer: PreTrainedTokenizerBase | None
    weights: tuple[ConvertedWeight, ...]


def convert_weights(
    source: Source,
    config: LongspanConfig,
    positions: str,
    drop: Collection[str],
    new: Collection[str],
    seed: int,
) -> tuple[LongspanPreTrainedModel, tuple[ConvertedWeight, ...]]:
    """Return the model of a configuration with the weights of a source, and a row for each weight.

    Args:
        source: the source.
        config: configuration of the model; fields of the head are added to it.
        positions: method to extend positions.
        drop: patterns of weights of the source to drop.
        new: patterns of weights of the model that the source may lack.
        seed: seed of new weights.

    Raises:
        OptionError: the scores of a mechanism cannot come from the source's projections.
        DataError: weights are missing, left over, damaged or pickled.
    """
    weights = source.read_weights()
    drops = {x: "named by the caller" for x, y in weights.items() if matches((x, y.name), drop)}
    remaining = {name: x for name, x in weights.items() if name not in drops}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        converter = _Converter(source, remaining, config, positions)
        converter.copy(new)
    dropped = drop_weights(weights, converter.used, drops | converter.reasons)
    return converter.model, tuple(converter.rows + dropped)


def set_head_fields(config: LongspanConfig, head: Head | None) -> None:
    """Set the fields that a head has, for a mechanism with global tokens or without."""
    for name, value in ({} if head is None else head.fields).items():
        if name != "default_global_tokens" or config.supports_global_tokens:
            setattr(config, name, value)


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
        self.reasons = dict(family.dropped)
        self.head = self._choose_head()
        self.table = family.weights(source.config)
        config.tie_word_embeddings = self._is_tied()
        set_head_fields(config, self.head)
        model_class = family.base if self.head is None else self.head.model
        self.model: LongspanPreTrainedModel = model_class(config).eval()
        _check_projections(self.model)
        self.rows: list[ConvertedWeight] = []
        self.used: set[str] = set()

    def copy(self, new: Collection[str]) -> None:
        """Copy the weights into the model, and describe those that have no source."""
        base = "" if self.head is None else f"{self.model.base_model_prefix}."
        table = [weight._replace(target=base + weight.target) for weight in self.table]
        if self.head is not None:
            table += self.head.weights
        started = {}
        for target, source in self._word_copies(base).items():
            if self.config.tie_word_embeddings:
                started[target] = f"tied to {base}{self.source.family.part}{WORDS}"
                self.reasons[source] = "equals the word embeddings, to which it is tied"
            else:
                words = source if source in self.weights else self._words()
                table.append(Weight(target, (words,)))
        stretch = {base + name: function for name, function in self._position_tables().items()}
        state, rows, self.used = copy_weights(table, self.weights, self.model, stretch, new)
        self.rows = rows + load_weights(self.model, state, started)

    def _choose_head(self) -> Head | None:
        """Return the head that the weights have, or None; note why one cannot be kept."""
        for prefix, make in self.source.family.heads.items():
            if any(name.startswith(prefix) for name in self.weights):
                head = make(self.source.config)
                if not isinstance(head, str):
                    return head
                self.reasons[f"{prefix}*"] = head
                return None
        return None

    def _is_tied(self) -> bool:
        """Return whether the output matrix is that of the word embeddings, or there is none."""
        words = self.weights.get(self._words())
        copies = [self.weights[x] for x in self._word_copies("").values() if x in self.weights]
        equal = words is None or all(torch.equal(x.tensor, words.tensor) for x in copies)
        return bool(self.source.config.tie_word_embeddings) and equal

    def _words(self) -> str:
        """Return the name of the word embeddings in the source."""
        target = self.source.family.part + WORDS
        names = next(x.sources for x in self.table if x.target == target)
        return next((name for name in names if name in self.weights), names[0])

    def _word_copies(self, base: str) -> dict[str, str]:
        """Return the targets of matrices that may be tied to the word embeddings, and sources."""
        output = None if self.head is None else self.head.output
        copies = {} if output is None else {OUTPUT: output}
        words = self.source.family.decoder_words
        return copies | ({f"{base}{DECODER}{WORDS}": words} if words else {})

    def _position_tables(self) -> dict[str, Callable[[Tensor], tuple[Tensor, str]]]:
        """Return the function that stretches each position table, by target."""
        family, config = self.source.family, self.config
        rows, length = family.position_rows(self.source.config), config.max_position_embeddings
        tables: dict[str, Callable[[Tensor], tuple[Tensor, str]]] = {
            family.part + POSITIONS: functools.partial(self._stretch, rows, length)
        }
        if family.decoder_words:
            rows = family.decoder_rows(self.source.config)
            length = decoder_config(config).max_position_embeddings
            tables[DECODER + POSITIONS] = functools.partial(self._stretch, rows, length)
        return tables

    def _stretch(self, rows: int, length: int, table: Tensor) -> tuple[Tensor, str]:
        """Return the position table of the model, and a description of it.

        Args:
            rows: rows that the configuration of the source states.
            length: rows to return.
            table: rows of the source.
        """
        if len(table) != rows:
            raise DataError(
                f"the position table has {len(table):,} rows, config.json states {rows:,}; "
                "the weights are not those of config.json"
            )
        before = self.source.family.rows_before(self.source.config)
        scale = self.config.initializer_range
        new_table, action = stretch_table(table[before:], length, self.positions, scale)
        return new_table, f"{action}, without the first {before} (padding)" if before else action


def _check_projections(model: LongspanPreTrainedModel) -> None:
    """Raise OptionError if the scores of a layer cannot come from the source's projections."""
    for module in model.modules():
        if isinstance(module, SelfAttention) and module.query is None:
            raise OptionError(
                f"{module.mechanism.name} has no query and key projections, so that nothing of the "
                "source's attention would remain; choose a mechanism with queries"
            )
