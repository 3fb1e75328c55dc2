"""Multi-query associative recall: `a 3 b 7 . . b . . . a .`, what was bound to b, what to a?

Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models", 2023
(https://arxiv.org/abs/2312.04927), with the distribution of their generator (HazyResearch/zoology,
zoology/data/multiquery_ar.py): pairs of a key and a value first, keys and values drawn without
return; behind them slots of two tokens, whose first may be a query; slot i (from 1) is chosen with
weight i^(power - 1), without return.

What differs: keys are asked in random order, some or several times if so wished, and random
filler is drawn from the keys that the example binds to nothing. So a bound key behind the pairs is
always a query, and no value stands behind the pairs: the answer can be read from its pair alone,
by causal and by bidirectional models.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from longspan.data.sampling import CHUNK, check_vocabulary, chunks, distinct
from longspan.errors import OptionError

BLANK = 1
FIRST_KEY = 2  # ids 0 and 1 are padding and the blank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recall:
    """The form of an example: which tokens stand where.

    Ids below half of the vocabulary are padding (0), the blank (1) and the keys; the values are
    the upper half, and the class of a value is its place there.

    Raises:
        OptionError: there is no such example.
    """

    length: int  # tokens
    pairs: int
    queries: int
    vocabulary: int  # token ids, even
    power: float | int  # of the law of gaps, 0 to 1; 1: all slots are equally likely
    noise: bool  # filler is random keys that are bound to nothing; else it is blank

    def __post_init__(self) -> None:
        """Refuse what does not fit."""
        check_vocabulary(self.vocabulary, "vocabulary")
        if not 0 <= self.power <= 1:
            raise OptionError(f"power={self.power}; expected 0 (near slots) to 1 (any slot)")
        if self.vocabulary % 2:
            raise OptionError(f"vocabulary={self.vocabulary}; half are values, use an even number")
        spare = 1 if self.noise else 0
        if self.pairs + spare > self.keys:
            needed = 2 * (self.pairs + spare + FIRST_KEY)
            raise OptionError(
                f"vocabulary={self.vocabulary} has {self.keys} keys, {self.pairs} pairs"
                f"{' and noise' if spare else ''} need more; use {needed} or more"
            )
        if self.queries > self.slots:
            raise OptionError(
                f"length={self.length} has room for {max(self.slots, 0)} queries behind "
                f"{self.pairs} pairs, not for {self.queries}; use "
                f"{2 * (self.pairs + self.queries)} or more"
            )

    @property
    def keys(self) -> int:
        """How many ids are keys."""
        return self.vocabulary // 2 - FIRST_KEY

    @property
    def values(self) -> int:
        """How many ids are values: the classes."""
        return self.vocabulary // 2

    @property
    def head(self) -> int:
        """Tokens of the pairs."""
        return 2 * self.pairs

    @property
    def slots(self) -> int:
        """Places where a query may stand."""
        return (self.length - self.head) // 2


def generate(
    form: Recall, count: int, *, seed: int, stream: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield tokens and targets, both (rows, length) uint16, of `count` examples in all.

    A target is 0 where nothing is asked and c + 1 where the answer is class c. Example n depends
    on the form, the seed, the stream and n alone.

    Args:
        form: of every example.
        count: examples.
        seed: of the data.
        stream: e.g. the split; two streams share no draws.
    """
    return chunks(f"recall {stream}", seed, count, lambda draws: _chunk(form, draws))


def _chunk(form: Recall, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.full((CHUNK, form.length), BLANK, np.uint16)
    targets = np.zeros_like(tokens)
    keys = distinct(draws, CHUNK, form.keys, form.pairs)
    values = distinct(draws, CHUNK, form.values, form.pairs)
    tokens[:, 0 : form.head : 2] = keys + FIRST_KEY
    tokens[:, 1 : form.head : 2] = values + form.values
    places = form.head + 2 * _slots(form, draws)
    asked = _asked(form, draws)
    if form.noise:
        tokens[:, form.head :] = _unbound(form, draws, keys) + FIRST_KEY
    np.put_along_axis(tokens, places, np.take_along_axis(keys, asked, 1) + FIRST_KEY, 1)
    np.put_along_axis(targets, places, np.take_along_axis(values, asked, 1) + 1, 1)
    return tokens, targets


def _slots(form: Recall, draws: np.random.Generator) -> np.ndarray:
    """Slots of the queries in ascending order.

    Draws without return by weight are the first arrivals when each slot arrives after an
    exponential time of rate its weight.
    """
    weights = np.arange(1, form.slots + 1) ** (form.power - 1.0)
    arrivals = draws.standard_exponential((CHUNK, form.slots)) / weights
    return np.sort(np.argsort(arrivals, 1, kind="stable")[:, : form.queries], 1)


def _asked(form: Recall, draws: np.random.Generator) -> np.ndarray:
    """Which pair each query asks for: every one once before any is asked again."""
    every = np.broadcast_to(np.arange(form.pairs), (CHUNK, form.pairs))
    rounds = -(-form.queries // form.pairs)
    shuffled = [draws.permuted(every, axis=1) for _ in range(rounds)]
    return np.concatenate(shuffled, 1)[:, : form.queries]


def _unbound(form: Recall, draws: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    """Random keys for the places behind the pairs, none that the example binds."""
    free = np.ones((CHUNK, form.keys), bool)
    np.put_along_axis(free, keys, False, 1)
    unbound = np.nonzero(free)[1].reshape(CHUNK, -1)
    drawn = draws.integers(0, unbound.shape[1], (CHUNK, form.length - form.head))
    return np.take_along_axis(unbound, drawn, 1)
