"""Copying: `. . 4 . 2 . . . 7 . | ? ? ?`; repeat the symbols that occur among the filler.

Plain copying, with all symbols together at the start: Hochreiter and Schmidhuber, "Long Short-Term
Memory", 1997; in this form Arjovsky et al., "Unitary Evolution Recurrent Neural Networks", 2016
(https://arxiv.org/abs/1511.06464). Selective copying, with scattered symbols: Jing et al., "Gated
Orthogonal Recurrent Units", 2019 (https://arxiv.org/abs/1706.02761); Gu and Dao, "Mamba", 2023,
section 4.1 (https://arxiv.org/abs/2312.00752). One symbol: a needle in a haystack.
"""

import dataclasses
import math

import numpy as np

from longspan.data.sampling import (
    CHUNK_SIZE,
    TokensAndTargets,
    check_vocab_size,
    sample_distinct,
)
from longspan.errors import OptionError

MARKER = 1
_FIRST_FILLER = 2  # ids 0 and 1 are padding and the marker


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyingSettings:
    """Settings of the generator.

    Ids are padding (0), the marker (1), the filler tokens and the symbols to copy. The class of a
    symbol is its index among the symbols.

    Raises:
        OptionError: the settings contradict each other.
    """

    length: int  # tokens, markers included
    count: int  # symbols to copy, and markers
    symbols: int  # different symbols
    noise: int  # different filler tokens
    together: bool  # the symbols are adjacent
    depth: float | int | None  # position of the first one: 0 start, 1 end, None random

    def __post_init__(self) -> None:
        """Check the settings."""
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
        """Number of token ids, padding included."""
        return self.first_symbol + self.symbols

    @property
    def first_symbol(self) -> int:
        """Smallest id of a symbol."""
        return _FIRST_FILLER + self.noise

    @property
    def context(self) -> int:
        """Number of tokens before the markers."""
        return self.length - self.count


def draw_chunk(settings: CopyingSettings, draws: np.random.Generator) -> TokensAndTargets:
    """Draw the tokens and targets of `CHUNK_SIZE` examples, both (rows, length) uint16.

    The target of marker i is c + 1 if symbol i has class c; other targets are 0.
    """
    tokens = np.full((CHUNK_SIZE, settings.length), MARKER, np.uint16)
    targets = np.zeros_like(tokens)
    copied = draws.integers(0, settings.symbols, (CHUNK_SIZE, settings.count))
    positions = _draw_positions(settings, draws)
    filler = draws.integers(0, settings.noise, (CHUNK_SIZE, settings.context), np.uint16)
    tokens[:, : settings.context] = filler + np.uint16(_FIRST_FILLER)
    np.put_along_axis(tokens, positions, copied + settings.first_symbol, 1)
    targets[:, settings.context :] = copied + 1
    return tokens, targets


def _draw_positions(settings: CopyingSettings, draws: np.random.Generator) -> np.ndarray:
    """Draw the positions of the symbols, ascending: (CHUNK_SIZE, count)."""
    if not settings.together and settings.depth is None:
        return np.sort(sample_distinct(draws, CHUNK_SIZE, settings.context, settings.count), 1)
    last = settings.context - settings.count
    if settings.depth is None:
        starts = draws.integers(0, last + 1, (CHUNK_SIZE, 1))
    else:
        starts = np.full((CHUNK_SIZE, 1), math.floor(settings.depth * last + 0.5))
    return starts + np.arange(settings.count)
