"""Generator of ListOps expressions with the distribution of Long Range Arena (Tay et al. 2021).

An expression, e.g. `[MAX 2 9 [MIN 4 7 X 0 X` with the value 9, is a tree: a node above the maximum
depth is an operator with probability 1/4, otherwise a digit. Expressions are kept if
`min_length < tokens < max_length`. An expression depends only on the grammar, the seed and its
index in the stream, not on the number of threads or the process.
"""

import dataclasses
import hashlib
import itertools
import os
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from longspan.data.store import Examples, Ragged, as_read_only
from longspan.errors import DataError, OptionError
from longspan.tasks.lra.generators._listops_vocabulary import CLOSE, MIN, SM, VOCABULARY, ZERO
from longspan.wording import counted

_CHUNK = 1 << 14  # candidates drawn from one seed
# Generation fails if this many chunks, or kept expressions, have fewer new expressions than
# _MINIMUM.
_PATIENCE_CHUNKS, _PATIENCE_EXPRESSIONS, _MINIMUM = 256, 1 << 17, 16
# Sample that estimates the mean length: its first number of candidates; expressions or tokens that
# suffice; tokens that candidates may have, as most may be too long.
_FIRST_SAMPLE, _SAMPLE, _SAMPLE_TOKENS, _MAX_SYMBOLS = 16, 256, 1 << 24, 1 << 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grammar:
    """Bounds of the expressions; the root has depth 1, lengths are in tokens and exclusive.

    The options of the task bound each value.

    Raises:
        OptionError: no expression is within the bounds.
    """

    max_depth: int
    max_args: int
    min_length: int
    max_length: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        shortest = max(self.min_length + 1, 4)
        if self.max_length <= shortest:
            raise OptionError(
                f"max_length={self.max_length} leaves no expression (it has more than "
                f"{shortest - 1} and fewer than max_length tokens); use {shortest + 1} or more"
            )


def generate(
    grammar: Grammar,
    count: int,
    *,
    seed: int,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Examples:
    """Generate the first `count` distinct expressions of a stream, with their values.

    Args:
        grammar: bounds of the expressions.
        count: number of distinct expressions.
        seed: seed of the stream.
        workers: number of threads, by default the number of cores. It does not affect the result.
        progress: called with (done, count) after each chunk.

    Raises:
        OptionError: there are too few distinct expressions within the bounds.
    """
    digests: set[bytes] = set()
    parts: list[Examples] = []
    chunks = num_expressions = fresh = 0
    for chunk in _chunks(grammar, seed, workers or os.cpu_count() or 1):
        part = _select_new(chunk, digests, count - len(digests))
        parts.append(part)
        if progress:
            progress(len(digests), count)
        if len(digests) == count:
            break
        chunks, num_expressions, fresh = chunks + 1, num_expressions + len(chunk), fresh + len(part)
        if chunks < _PATIENCE_CHUNKS and num_expressions < _PATIENCE_EXPRESSIONS:
            continue
        if fresh < _MINIMUM:
            raise OptionError(
                f"found {len(digests)} of {count} distinct expressions with {grammar}; "
                "request fewer or widen the bounds"
            )
        chunks = num_expressions = fresh = 0
    return Examples.concatenate(parts)


def estimate_length(grammar: Grammar, seed: int) -> float:
    """Estimate the mean number of tokens of the expressions of a stream.

    Samples are drawn until one has enough expressions or tokens. Without any expression, the
    estimate is the least length, so that no stream is taken for longer than it is.
    """
    count, most = _FIRST_SAMPLE, min(_CHUNK, _MAX_SYMBOLS // grammar.max_length)
    while True:
        lengths = _chunk(grammar, _chunk_state(seed, 0), count).tokens.lengths
        if len(lengths) >= _SAMPLE or lengths.sum() >= _SAMPLE_TOKENS or 4 * count > most:
            return float(lengths.mean()) if len(lengths) else float(grammar.min_length + 1)
        count *= 4


def ids_to_symbols(ids: Sequence[int] | np.ndarray) -> list[str]:
    """Convert token ids to symbols; padding is dropped."""
    return [VOCABULARY[token] for token in ids if token]


class Node(NamedTuple):
    """Operator with its arguments, or a digit, and its value."""

    symbol: str  # as in VOCABULARY
    value: int
    tokens: int = 1  # length of the expression below this node
    arguments: tuple["Node", ...] = ()


_DIGITS = {digit: Node(digit, int(digit)) for digit in VOCABULARY[ZERO : ZERO + 10]}


def parse(expression: Sequence[str]) -> Node:
    """Parse an expression, given as symbols, into a tree (independently of the generator's code).

    MED is the integer part of the median, SM the sum modulo 10.

    Raises:
        DataError: the symbols are not an expression.
    """
    operators: dict[str, Callable[[list[int]], int]] = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    # operator, its index, its arguments so far
    frames: list[tuple[str, int, list[Node]]] = [("root", -1, [])]
    for index, symbol in enumerate(expression):
        if symbol in operators:
            frames.append((symbol, index, []))
        elif symbol == "X" and len(frames) > 1 and frames[-1][2]:
            name, start, arguments = frames.pop()
            value = operators[name]([one.value for one in arguments])
            frames[-1][2].append(Node(name, value, index + 1 - start, tuple(arguments)))
        elif symbol in _DIGITS:
            frames[-1][2].append(_DIGITS[symbol])
        else:
            raise DataError(
                f"ListOps expression: symbol {symbol!r} at index {index} is not allowed there"
            )
    roots = frames[0][2]
    if len(frames) > 1 or len(roots) != 1:
        still_open = counted(len(frames) - 1, "operator|operators is|are not closed")
        raise DataError(
            f"ListOps expression: {still_open} and the top level has "
            f"{counted(len(roots), 'value|values')}; expected 0 and 1"
        )
    return roots[0]


def tree_depths(expressions: Ragged) -> np.ndarray:
    """Return the depth of each tree, (N,); the root has depth 1.

    Symbols outside the vocabulary are ignored.
    """
    steps = np.zeros(256, np.int8)
    steps[MIN : SM + 1], steps[CLOSE] = 1, -1
    # every operator is closed, so each expression begins at zero
    open_ = np.cumsum(steps[expressions.values], dtype=np.int32)
    return 1 + np.maximum.reduceat(open_, expressions.offsets[:-1])


def deciding_depths(expressions: Ragged) -> np.ndarray:
    """Return the number of levels of each tree that determine its value, (N,).

    A deeper node may be any digit. A sum with an unknown argument is unknown; the bounds of the
    other operators are exact. Symbols outside the vocabulary are ignored.
    """
    from longspan.tasks.lra.generators._listops_compiled import count_deciding_levels

    depths = np.empty(len(expressions), np.int64)
    count_deciding_levels(
        as_read_only(expressions.values), as_read_only(expressions.offsets), depths
    )
    return depths


def _select_new(chunk: Examples, digests: set[bytes], count: int) -> Examples:
    """Return the first `count` expressions of a chunk that are not in `digests`; add them to it."""
    rows: list[int] = []
    for row in range(len(chunk)):
        if len(rows) == count:
            break
        digest = hashlib.blake2b(chunk.tokens[row].data, digest_size=16).digest()
        if digest not in digests:
            digests.add(digest)
            rows.append(row)
    return chunk if len(rows) == len(chunk) else chunk.select(rows)


def _chunks(grammar: Grammar, seed: int, workers: int) -> Iterator[Examples]:
    """Yield chunks endlessly, each drawn from its own seed by a pool of threads."""
    states = (_chunk_state(seed, number) for number in itertools.count())
    waiting: deque[Future[Examples]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            while len(waiting) < workers + 1:
                waiting.append(pool.submit(_chunk, grammar, next(states)))
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _chunk_state(seed: int, number: int) -> np.uint64:
    """Return the initial state of a chunk, a digest, so that chunks are independent."""
    digest = hashlib.blake2b(f"listops {seed} {number}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _chunk(grammar: Grammar, state: np.uint64, candidates: int = _CHUNK) -> Examples:
    # numba takes a while to import
    from longspan.tasks.lra.generators._listops_compiled import draw_chunk

    bounds = dataclasses.astuple(grammar)
    tokens, offsets, labels = draw_chunk(state, candidates, *bounds)
    return Examples(tokens=Ragged(tokens, offsets), labels=labels)
