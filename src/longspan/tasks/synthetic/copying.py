"""Copying: `. . 4 . 2 . . . 7 . | ? ? ?`; at the markers, repeat the symbols among the filler.

Plain copying, with all symbols together at the start: Hochreiter and Schmidhuber 1997, Arjovsky et
al. 2016 (https://arxiv.org/abs/1511.06464). Selective copying, with scattered symbols: Jing et al.
2019 (https://arxiv.org/abs/1706.02761); Gu and Dao, "Mamba", 2023, section 4.1
(https://arxiv.org/abs/2312.00752). One symbol: a needle in a haystack.
"""

import functools
import itertools
import math

import numpy as np
from pydantic import PositiveInt

from longspan.config import Length, NumExamples, setting, settings
from longspan.data.sampling import (
    CHUNK_SIZE,
    TokensAndTargets,
    check_vocab_size,
    sample_distinct,
)
from longspan.data.store import Examples
from longspan.errors import OptionError
from longspan.tasks.base import Grouping, Split
from longspan.tasks.grouping import group_by_ranges
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule
from longspan.tasks.synthetic.generated import GeneratedOptions, GeneratedTask

MARKER = 1
_FIRST_FILLER = 2  # ids 0 and 1 are padding and the marker


def _predict_by_symbol_counts(
    options: "SymbolChecks", train: Examples, examples: Examples
) -> np.ndarray:
    """Return the most frequent symbol of the example at every marker; nothing is fitted.

    Of symbols that occur equally often, the lowest.
    """
    tokens = examples.tokens.values
    symbols = tokens[tokens >= options.first_symbol].astype(np.int64) - options.first_symbol
    rows = symbols.reshape(-1, options.count)
    return np.array([np.bincount(row).argmax() for row in rows]).repeat(options.count)


class SymbolChecks:
    """Checks and sizes of the options of copying, and of one symbol."""

    length: int
    count: int
    symbols: int
    noise: int
    together: bool
    depth: float | None

    def __post_init__(self) -> None:
        """Check the difficulty.

        Raises:
            OptionError: the options contradict each other.
        """
        check_vocab_size(self.vocabulary, "symbols or noise")
        if self.length < 2 * self.count:
            raise OptionError(
                f"length={self.length} is too short for {self.count} symbols and as many markers; "
                f"use {2 * self.count} or more"
            )
        if self.depth is None:
            return
        if not 0 <= self.depth <= 1:
            raise OptionError(f"depth={self.depth}; expected 0 (the start) to 1, or none")
        if self.count > 1 and not self.together:
            raise OptionError(f"depth={self.depth} needs adjacent symbols; set together=true")

    @property
    def vocabulary(self) -> int:
        """Number of token ids: padding, the marker, the filler and the symbols."""
        return self.first_symbol + self.symbols

    @property
    def first_symbol(self) -> int:
        """Smallest id of a symbol; the class of a symbol is its index among them."""
        return _FIRST_FILLER + self.noise

    @property
    def context(self) -> int:
        """Number of tokens before the markers."""
        return self.length - self.count


@settings
class CopyingOptions(SymbolChecks, GeneratedOptions):
    """Sizes of the splits, and difficulty."""

    validation: NumExamples = setting("validation examples", 2_000)
    test: NumExamples = setting("test examples", 2_000)
    length: Length = setting("tokens of an example, markers included", 1_024)
    count: PositiveInt = setting("symbols to copy, and markers at the end; 1: a needle", 16)
    symbols: PositiveInt = setting("different symbols", 14)
    noise: PositiveInt = setting("different filler tokens; 1: all blank", 1)
    together: bool = setting("place the symbols side by side (plain copying)", False)
    depth: float | None = setting(
        "position of the first symbol, 0 (start) to 1 (before the markers); none: random", None
    )


def _draw_positions(options: SymbolChecks, draws: np.random.Generator) -> np.ndarray:
    """Draw the positions of the symbols, ascending: (CHUNK_SIZE, count)."""
    if not options.together and options.depth is None:
        return np.sort(sample_distinct(draws, CHUNK_SIZE, options.context, options.count), 1)
    last = options.context - options.count
    if options.depth is None:
        starts = draws.integers(0, last + 1, (CHUNK_SIZE, 1))
    else:
        starts = np.full((CHUNK_SIZE, 1), math.floor(options.depth * last + 0.5))
    return starts + np.arange(options.count)


@register
class CopyingTask(GeneratedTask):
    """Selective copying of 16 symbols among blanks at the default options."""

    Options = CopyingOptions
    options: CopyingOptions
    info = TaskInfo(
        name="copying",
        title="Copying",
        summary="Repeat the symbols that are scattered among blanks, in order.",
        source="generated, after Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 4.1",
        license="Apache-2.0 (generated by longspan)",
        sizes={"train": 100_000, "validation": 2_000, "test": 2_000},
        vocab_size=17,
        num_classes=14,
        metrics=("accuracy",),
        chance=1 / 14,
        head="token_classification",
        published=published_scores("copying"),
        notes=(
            "A diagnostic task, not part of Long Range Arena. Gu and Dao use length 4096 and "
            "generate every batch anew; here the examples of a split are fixed. Plain copying: "
            "together=true, depth=0. One symbol: the task needle. With few symbols, noise=1 and "
            "count=1 there are few different examples, so test examples occur in train."
        ),
    )

    @property
    def vocab_size(self) -> int:
        """Number of token ids, padding included."""
        return self.options.vocabulary

    @property
    def num_classes(self) -> int:
        """Number of symbols."""
        return self.options.symbols

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Prediction from the symbols without their order; none for a single symbol, a needle."""
        if self.options.count == 1:
            return ()
        return (
            Rule(
                name="most frequent symbol",
                summary="the most frequent symbol of the example, at every marker",
                predict=functools.partial(_predict_by_symbol_counts, self.options),
            ),
        )

    def draw_chunk(self, split: Split, draws: np.random.Generator) -> TokensAndTargets:
        """Draw the tokens and targets of `CHUNK_SIZE` examples, both (rows, length) uint16.

        The target of marker i is c + 1 if symbol i has class c; other targets are 0.
        """
        options = self.options
        tokens = np.full((CHUNK_SIZE, options.length), MARKER, np.uint16)
        targets = np.zeros_like(tokens)
        symbols = draws.integers(0, options.symbols, (CHUNK_SIZE, options.count))
        positions = _draw_positions(options, draws)
        filler = draws.integers(0, options.noise, (CHUNK_SIZE, options.context), np.uint16)
        tokens[:, : options.context] = filler + np.uint16(_FIRST_FILLER)
        np.put_along_axis(tokens, positions, symbols + options.first_symbol, 1)
        targets[:, options.context :] = symbols + 1
        return tokens, targets

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the position of the first symbol, in quarters; not if symbols are scattered."""
        options = self.options
        if options.depth is not None or (options.count > 1 and not options.together):
            return []
        tokens = examples.tokens.values.reshape(-1, options.length)[:, : options.context]
        edges = np.linspace(0, options.context - options.count + 1, 5).astype(np.int64)
        first_positions = (tokens >= options.first_symbol).argmax(1)
        return [group_by_ranges("position", first_positions, edges)]

    def show(self, split: Split, row: int) -> str:
        """Return the symbols, the amount of filler between them, and the targets."""
        tokens, targets = self._tokens_and_targets(split, row)
        options = self.options
        first, words = options.first_symbol, []
        runs = itertools.groupby(tokens[: options.context], lambda token: token < first)
        for is_filler, run in runs:
            ids = list(run)
            words += [f"({len(ids)} filler)"] if is_filler else [f"s{x - first}" for x in ids]
        answer = " ".join(f"s{target - 1}" for target in targets if target)
        return f"{' '.join(words)} ({options.count} markers) = {answer}"
