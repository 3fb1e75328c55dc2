"""Recall: `k3 v7 k1 v4 . k1 . . k3`; at each query, give the value that was bound to the key.

Multi-query associative recall: Arora et al., "Zoology: Measuring and Improving Recall in Efficient
Language Models", 2023 (https://arxiv.org/abs/2312.04927). A mechanism solves it if it can look up
one of many positions by its content.

Pairs and queries have the distribution of its generator (HazyResearch/zoology,
zoology/data/multiquery_ar.py): pairs of a key and a value first, keys and values sampled without
replacement; then slots of two tokens, of which the first may be a query. Slot i (from 1) is chosen
with weight i^(power - 1), without replacement.

Differences: the keys are queried in random order, and optionally only some or some several times.
Random filler is drawn from the keys that the example does not bind. So a bound key after the pairs
is always a query, and no value occurs after the pairs: the answer can be read from its pair alone,
by causal and by bidirectional models.
"""

import textwrap

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
from longspan.tasks.grouping import group_by_quantiles
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule
from longspan.tasks.synthetic.generated import GeneratedOptions, GeneratedTask

BLANK = 1
_FIRST_KEY = 2  # ids 0 and 1 are padding and the blank


@settings
class RecallOptions(GeneratedOptions):
    """Sizes of the splits, and difficulty."""

    validation: NumExamples = setting("validation examples", 3_000)
    test: NumExamples = setting("test examples", 3_000)
    length: Length = setting("tokens of an example", 512)
    pairs: PositiveInt = setting("pairs of a key and a value, at the start", 64)
    queries: PositiveInt | None = setting("queries after the pairs; none: each key once", None)
    vocabulary: PositiveInt = setting(
        "token ids: half are values, the rest keys, padding, blank", 8_192
    )
    power: float = setting(
        "query slot i has weight i^(power - 1): 1 is uniform, 0 favors slots near the pairs", 0.01
    )
    noise: bool = setting("fill with random unbound keys instead of blanks", False)

    def __post_init__(self) -> None:
        """Check the difficulty.

        Raises:
            OptionError: the options contradict each other.
        """
        check_vocab_size(self.vocabulary, "vocabulary")
        if not 0 <= self.power <= 1:
            raise OptionError(f"power={self.power}; expected 0 (near slots) to 1 (any slot)")
        if self.vocabulary % 2:
            raise OptionError(f"vocabulary={self.vocabulary}; half are values, use an even number")
        num_fillers = 1 if self.noise else 0
        if self.pairs + num_fillers > self.keys:
            min_vocabulary = 2 * (self.pairs + num_fillers + _FIRST_KEY)
            raise OptionError(
                f"vocabulary={self.vocabulary} has {self.keys} keys, {self.pairs} pairs"
                f"{' and noise' if num_fillers else ''} need more; use {min_vocabulary} or more"
            )
        if self.num_queries > self.slots:
            raise OptionError(
                f"length={self.length} has room for {max(self.slots, 0)} queries after "
                f"{self.pairs} pairs, not for {self.num_queries}; use "
                f"{2 * (self.pairs + self.num_queries)} or more"
            )

    @property
    def num_queries(self) -> int:
        """Number of queries; `queries` resolved."""
        return self.pairs if self.queries is None else self.queries

    @property
    def keys(self) -> int:
        """Number of key ids."""
        return self.vocabulary // 2 - _FIRST_KEY

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


def _draw_slots(options: RecallOptions, draws: np.random.Generator) -> np.ndarray:
    """Draw the slots of the queries, ascending.

    Sampling by weight without replacement equals taking the first arrivals, where each slot
    arrives after an exponential time whose rate is its weight.
    """
    weights = np.arange(1, options.slots + 1) ** (options.power - 1.0)
    arrivals = draws.standard_exponential((CHUNK_SIZE, options.slots)) / weights
    return np.sort(np.argsort(arrivals, 1, kind="stable")[:, : options.num_queries], 1)


def _draw_queries(options: RecallOptions, draws: np.random.Generator) -> np.ndarray:
    """Draw the pair of each query; every pair is queried once before any is queried again."""
    pairs = np.broadcast_to(np.arange(options.pairs), (CHUNK_SIZE, options.pairs))
    rounds = -(-options.num_queries // options.pairs)
    permutations = [draws.permuted(pairs, axis=1) for _ in range(rounds)]
    return np.concatenate(permutations, 1)[:, : options.num_queries]


def _draw_unbound_keys(
    options: RecallOptions, draws: np.random.Generator, keys: np.ndarray
) -> np.ndarray:
    """Draw keys that the example does not bind, for the positions after the pairs."""
    free = np.ones((CHUNK_SIZE, options.keys), bool)
    np.put_along_axis(free, keys, False, 1)
    unbound = np.nonzero(free)[1].reshape(CHUNK_SIZE, -1)
    columns = draws.integers(0, unbound.shape[1], (CHUNK_SIZE, options.length - options.head))
    return np.take_along_axis(unbound, columns, 1)


@register
class RecallTask(GeneratedTask):
    """Hardest setting of figure 2 of Arora et al. 2023 at the default options."""

    Options = RecallOptions
    options: RecallOptions
    info = TaskInfo(
        name="recall",
        title="Associative recall",
        summary="Give the value bound to each queried key, several queries to a sequence.",
        source="generated, after Arora et al. 2023, https://arxiv.org/abs/2312.04927",
        license="Apache-2.0 (generated by longspan)",
        metrics=("accuracy",),
        head="token_classification",
        notes=(
            "A diagnostic task, not part of Long Range Arena. Chance is a guess among all values; "
            "a guess among the values of the example scores 1/pairs. Arora et al. train causal "
            "models; here no value follows the pairs, so a bidirectional model finds no answer "
            "next to a query. Keys are queried in random order, and random filler is drawn from "
            "unbound keys; Arora et al. query the first pair in the slot drawn first, and fill "
            "from all ids."
        ),
    )

    @property
    def num_classes(self) -> int:
        """Number of values."""
        return self.options.values

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Prediction from the last pair alone, which needs no look-up by the key."""
        return (
            Rule(
                name="last value",
                summary="the value that was bound last, at every query",
                predict=self._predict_by_last_value,
            ),
        )

    def _predict_by_last_value(self, train: Examples, examples: Examples) -> np.ndarray:
        """Return the value of the last pair at every query; nothing is fitted."""
        options = self.options
        tokens = examples.tokens.values.reshape(-1, options.length)
        last = tokens[:, options.head - 1].astype(np.int64) - options.values
        return last.repeat(options.num_queries)

    def draw_chunk(self, split: Split, draws: np.random.Generator) -> TokensAndTargets:
        """Draw the tokens and targets of `CHUNK_SIZE` examples, both (rows, length) uint16.

        The target of a query is c + 1 if its value has class c; other targets are 0.
        """
        options = self.options
        head = options.head
        tokens = np.full((CHUNK_SIZE, options.length), BLANK, np.uint16)
        targets = np.zeros_like(tokens)
        keys = sample_distinct(draws, CHUNK_SIZE, options.keys, options.pairs)
        values = sample_distinct(draws, CHUNK_SIZE, options.values, options.pairs)
        tokens[:, 0:head:2] = keys + _FIRST_KEY
        tokens[:, 1:head:2] = values + options.values
        positions = head + 2 * _draw_slots(options, draws)
        pairs = _draw_queries(options, draws)
        if options.noise:
            tokens[:, head:] = _draw_unbound_keys(options, draws, keys) + _FIRST_KEY
        np.put_along_axis(tokens, positions, np.take_along_axis(keys, pairs, 1) + _FIRST_KEY, 1)
        np.put_along_axis(targets, positions, np.take_along_axis(values, pairs, 1) + 1, 1)
        return tokens, targets

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by the distance from the pair to its query, if examples have one query."""
        options, targets = self.options, examples.targets
        if options.num_queries > 1 or targets is None:
            return []
        tokens = examples.tokens.values.reshape(-1, options.length)
        query_position = targets.values.reshape(tokens.shape).argmax(1)
        query = np.take_along_axis(tokens, query_position[:, None], 1)
        key_position = 2 * (tokens[:, : options.head : 2] == query).argmax(1)
        return group_by_quantiles("distance", query_position - key_position, 4)

    def show(self, split: Split, row: int) -> str:
        """Return the pairs, then each query with its position and its value."""
        tokens, targets = self._tokens_and_targets(split, row)
        head, token_name = self.options.head, self._token_name
        bindings = [
            f"{token_name(key)}={token_name(value)}"
            for key, value in zip(tokens[0:head:2], tokens[1:head:2], strict=True)
        ]
        queries = [
            f"{token_name(token)}@{position}=v{target - 1}"
            for position, (token, target) in enumerate(zip(tokens, targets, strict=True))
            if target
        ]
        filler = "unbound keys" if self.options.noise else "blanks"
        lines = (
            _list_items("pairs", bindings),
            _list_items("queries, key@position", queries),
            f"the other {self.length - head - len(queries)} tokens are {filler}",
        )
        return "\n".join(lines)

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return the names of keys and values, and dots for blanks."""
        return [self._token_name(token) if token > BLANK else "." for token in ids.tolist()]

    def _token_name(self, token: int) -> str:
        """Return the name of a key or a value, numbered from 0."""
        half = self.num_classes
        return f"v{token - half}" if token >= half else f"k{token - _FIRST_KEY}"


def _list_items(name: str, items: list[str]) -> str:
    text = f"{len(items)} {name}: {', '.join(items)}"
    return textwrap.fill(text, 96, subsequent_indent="  ")
