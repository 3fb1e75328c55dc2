"""Multi-query associative recall: `a 3 b 7 . . b . . . a .`; give the value bound to each query.

Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models", 2023
(https://arxiv.org/abs/2312.04927), with the distribution of their generator (HazyResearch/zoology,
zoology/data/multiquery_ar.py): pairs of a key and a value first, keys and values sampled without
replacement; then slots of two tokens, of which the first may be a query. Slot i (from 1) is chosen
with weight i^(power - 1), without replacement.

Differences: the keys are queried in random order, and optionally only some or some several times.
Random filler is drawn from the keys that the example does not bind. So a bound key after the pairs
is always a query, and no value occurs after the pairs: the answer can be read from its pair alone,
by causal and by bidirectional models.
"""

import dataclasses

import numpy as np

from longspan.data.sampling import (
    CHUNK_SIZE,
    TokensAndTargets,
    check_vocab_size,
    sample_distinct,
)
from longspan.errors import OptionError

BLANK = 1
FIRST_KEY = 2  # ids 0 and 1 are padding and the blank


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallSettings:
    """Settings of the generator.

    Ids in the lower half of the vocabulary are padding (0), the blank (1) and the keys; ids in the
    upper half are the values. The class of a value is its index there.

    Raises:
        OptionError: the settings contradict each other.
    """

    length: int  # tokens
    pairs: int
    queries: int
    vocabulary: int  # token ids, even
    power: float | int  # exponent of the gap distribution, 0 to 1; 1: all slots are equally likely
    noise: bool  # the filler is random unbound keys instead of blanks

    def __post_init__(self) -> None:
        """Check the settings."""
        check_vocab_size(self.vocabulary, "vocabulary")
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
                f"length={self.length} has room for {max(self.slots, 0)} queries after "
                f"{self.pairs} pairs, not for {self.queries}; use "
                f"{2 * (self.pairs + self.queries)} or more"
            )

    @property
    def keys(self) -> int:
        """Number of key ids."""
        return self.vocabulary // 2 - FIRST_KEY

    @property
    def values(self) -> int:
        """Number of value ids, which is the number of classes."""
        return self.vocabulary // 2

    @property
    def head(self) -> int:
        """Number of tokens of the pairs."""
        return 2 * self.pairs

    @property
    def slots(self) -> int:
        """Number of possible positions of a query."""
        return (self.length - self.head) // 2


def draw_chunk(settings: RecallSettings, draws: np.random.Generator) -> TokensAndTargets:
    """Draw the tokens and targets of `CHUNK_SIZE` examples, both (rows, length) uint16.

    The target of a query is c + 1 if its value has class c; other targets are 0.
    """
    head = settings.head
    tokens = np.full((CHUNK_SIZE, settings.length), BLANK, np.uint16)
    targets = np.zeros_like(tokens)
    keys = sample_distinct(draws, CHUNK_SIZE, settings.keys, settings.pairs)
    values = sample_distinct(draws, CHUNK_SIZE, settings.values, settings.pairs)
    tokens[:, 0:head:2] = keys + FIRST_KEY
    tokens[:, 1:head:2] = values + settings.values
    positions = head + 2 * _draw_slots(settings, draws)
    queried = _draw_queries(settings, draws)
    if settings.noise:
        tokens[:, head:] = _draw_unbound_keys(settings, draws, keys) + FIRST_KEY
    np.put_along_axis(tokens, positions, np.take_along_axis(keys, queried, 1) + FIRST_KEY, 1)
    np.put_along_axis(targets, positions, np.take_along_axis(values, queried, 1) + 1, 1)
    return tokens, targets


def _draw_slots(settings: RecallSettings, draws: np.random.Generator) -> np.ndarray:
    """Draw the slots of the queries, ascending.

    Sampling by weight without replacement equals taking the first arrivals, where each slot
    arrives after an exponential time whose rate is its weight.
    """
    weights = np.arange(1, settings.slots + 1) ** (settings.power - 1.0)
    arrivals = draws.standard_exponential((CHUNK_SIZE, settings.slots)) / weights
    return np.sort(np.argsort(arrivals, 1, kind="stable")[:, : settings.queries], 1)


def _draw_queries(settings: RecallSettings, draws: np.random.Generator) -> np.ndarray:
    """Draw the pair of each query; every pair is queried once before any is queried again."""
    every = np.broadcast_to(np.arange(settings.pairs), (CHUNK_SIZE, settings.pairs))
    rounds = -(-settings.queries // settings.pairs)
    shuffled = [draws.permuted(every, axis=1) for _ in range(rounds)]
    return np.concatenate(shuffled, 1)[:, : settings.queries]


def _draw_unbound_keys(
    settings: RecallSettings, draws: np.random.Generator, keys: np.ndarray
) -> np.ndarray:
    """Draw keys that the example does not bind, for the positions after the pairs."""
    free = np.ones((CHUNK_SIZE, settings.keys), bool)
    np.put_along_axis(free, keys, False, 1)
    unbound = np.nonzero(free)[1].reshape(CHUNK_SIZE, -1)
    drawn = draws.integers(0, unbound.shape[1], (CHUNK_SIZE, settings.length - settings.head))
    return np.take_along_axis(unbound, drawn, 1)
