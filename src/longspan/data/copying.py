"""Copying: `. . 4 . 2 . . . 7 . | ? ? ?`, what were the tokens among the blanks?

Plain copying, all tokens together at the start: Hochreiter and Schmidhuber, "Long Short-Term
Memory", 1997; in this form Arjovsky et al., "Unitary Evolution Recurrent Neural Networks", 2016
(https://arxiv.org/abs/1511.06464). Selective copying, tokens scattered: Jing et al., "Gated
Orthogonal Recurrent Units", 2019 (https://arxiv.org/abs/1706.02761); Gu and Dao, "Mamba", 2023,
section 4.1 (https://arxiv.org/abs/2312.00752). One token in a hay of many: a needle.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from longspan.data.sampling import CHUNK, check_vocabulary, chunks, distinct
from longspan.errors import OptionError

MARKER = 1
_FIRST_FILLER = 2  # ids 0 and 1 are padding and the marker


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copying:
    """The form of an example: which tokens stand where.

    Ids are padding (0), the marker (1), the filler tokens and the symbols to be copied; the class
    of a symbol is its place among the symbols.

    Raises:
        OptionError: there is no such example.
    """

    length: int  # tokens, those of the markers included
    count: int  # symbols to be copied, and markers
    symbols: int  # different ones
    noise: int  # different filler tokens; 1: all blank
    together: bool  # the symbols stand side by side
    depth: (
        float | int | None
    )  # where they begin: 0 at the start, 1 before the markers; None: anywhere

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        check_vocabulary(self.vocabulary, "symbols or noise")
        if self.length < 2 * self.count:
            raise OptionError(
                f"length={self.length} has no room for {self.count} symbols and as many markers; "
                f"use {2 * self.count} or more"
            )
        if self.depth is None:
            return
        if not 0 <= self.depth <= 1:
            raise OptionError(f"depth={self.depth}; expected 0 (the start) to 1, or none")
        if self.count > 1 and not self.together:
            raise OptionError(
                f"depth={self.depth} is a place for symbols that stand together; set together=true"
            )

    @property
    def vocabulary(self) -> int:
        """Token ids, padding included."""
        return self.first_symbol + self.symbols

    @property
    def first_symbol(self) -> int:
        """The least id of a symbol."""
        return _FIRST_FILLER + self.noise

    @property
    def context(self) -> int:
        """Tokens before the markers."""
        return self.length - self.count


def generate(
    form: Copying, count: int, *, seed: int, stream: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield tokens and targets, both (rows, length) uint16, of `count` examples in all.

    The target of marker i is c + 1 where symbol i is class c, elsewhere 0. Example n depends on
    the form, the seed, the stream and n alone.

    Args:
        form: of every example.
        count: examples.
        seed: of the data.
        stream: e.g. the split; two streams share no draws.
    """
    return chunks(f"copying {stream}", seed, count, lambda draws: _chunk(form, draws))


def _chunk(form: Copying, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.full((CHUNK, form.length), MARKER, np.uint16)
    targets = np.zeros_like(tokens)
    copied = draws.integers(0, form.symbols, (CHUNK, form.count))
    places = _places(form, draws)
    filler = draws.integers(0, form.noise, (CHUNK, form.context), np.uint16)
    tokens[:, : form.context] = filler + np.uint16(_FIRST_FILLER)
    np.put_along_axis(tokens, places, copied + form.first_symbol, 1)
    targets[:, form.context :] = copied + 1
    return tokens, targets


def _places(form: Copying, draws: np.random.Generator) -> np.ndarray:
    """Places of the symbols, ascending: (CHUNK, count)."""
    if not form.together and form.depth is None:
        return np.sort(distinct(draws, CHUNK, form.context, form.count), 1)
    last = form.context - form.count
    if form.depth is None:
        starts = draws.integers(0, last + 1, (CHUNK, 1))
    else:
        starts = np.full((CHUNK, 1), math.floor(form.depth * last + 0.5))
    return starts + np.arange(form.count)
