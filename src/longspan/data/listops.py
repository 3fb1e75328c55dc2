"""ListOps expressions with the distribution of Long Range Arena (Tay et al. 2021).

An expression, e.g. `[MAX 2 9 [MIN 4 7 X 0 X` with the value 9, is a tree: a node below the
greatest depth is an operator with probability 1/4, otherwise a digit. Expressions are kept when
`min_length < tokens < max_length`. The tokens of an expression depend on the options, the seed
and its place in the stream alone: not on the number of threads, nor on the process.
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

from longspan.data._listops_vocabulary import CLOSE, MIN, SM, VOCABULARY, ZERO
from longspan.data.store import Examples, Ragged, as_read_only
from longspan.errors import DataError, OptionError

_CHUNK = 1 << 14  # candidates drawn from one seed
# A stream is given up when so many chunks, or kept expressions, hold fewer new ones than this.
_PATIENCE_CHUNKS, _PATIENCE_KEPT, _MINIMUM = 256, 1 << 17, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grammar:
    """Which expressions are kept; the root has depth 1. Lengths are in tokens, both bounds strict.

    Raises:
        OptionError: no expression can meet the bounds.
    """

    max_depth: int
    max_args: int
    min_length: int
    max_length: int

    def __post_init__(self) -> None:
        """Refuse bounds that no expression meets."""
        if self.max_depth < 2:
            raise OptionError(f"max_depth={self.max_depth} leaves only digits; use 2 or more")
        if self.max_args < 2:
            raise OptionError(f"max_args={self.max_args}: an operator takes 2 or more arguments")
        if self.min_length < 1:
            raise OptionError(f"min_length={self.min_length} keeps single digits; use 1 or more")
        shortest = max(self.min_length + 1, 4)
        if self.max_length <= shortest:
            raise OptionError(
                f"max_length={self.max_length} leaves no expression (tokens of one: more than "
                f"{shortest - 1}, fewer than max_length); use {shortest + 1} or more"
            )


def generate(
    grammar: Grammar,
    count: int,
    *,
    seed: int,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Examples:
    """Return the first `count` distinct expressions of the stream, with their values.

    Args:
        grammar: which expressions are kept.
        count: how many distinct ones are wanted.
        seed: names the stream.
        workers: threads; as many as there are cores by default. The result does not depend on it.
        progress: called with (done, count) after each part.

    Raises:
        OptionError: there are too few distinct expressions within these bounds.
    """
    seen: set[bytes] = set()
    parts: list[Examples] = []
    chunks = kept = fresh = 0
    for chunk in _chunks(grammar, seed, workers or os.cpu_count() or 1):
        part = _unseen(chunk, seen, count - len(seen))
        parts.append(part)
        if progress:
            progress(len(seen), count)
        if len(seen) == count:
            break
        chunks, kept, fresh = chunks + 1, kept + len(chunk), fresh + len(part)
        if chunks < _PATIENCE_CHUNKS and kept < _PATIENCE_KEPT:
            continue
        if fresh < _MINIMUM:
            raise OptionError(
                f"found {len(seen)} of {count} distinct expressions with {grammar}; "
                "ask for fewer or widen the bounds"
            )
        chunks = kept = fresh = 0
    return Examples.concatenate(parts)


def symbols(ids: Sequence[int] | np.ndarray) -> list[str]:
    """The symbols of token ids; padding is left out."""
    return [VOCABULARY[token] for token in ids if token]


class Node(NamedTuple):
    """An operator with its arguments, or a digit, and its value."""

    symbol: str  # as in VOCABULARY
    value: int
    tokens: int = 1  # of the expression that this is the root of
    arguments: tuple["Node", ...] = ()


_DIGITS = {digit: Node(digit, int(digit)) for digit in VOCABULARY[ZERO : ZERO + 10]}


def evaluate(expression: Sequence[str]) -> int:
    """The value of an expression, given as symbols.

    Raises:
        DataError: this is no expression.
    """
    return parse(expression).value


def parse(expression: Sequence[str]) -> Node:
    """The tree of an expression, given as symbols (plain Python, independent of the generator).

    MED is the integer part of the median, SM the sum modulo 10.

    Raises:
        DataError: this is no expression.
    """
    operators: dict[str, Callable[[list[int]], int]] = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    # operator, its place, its arguments so far
    frames: list[tuple[str, int, list[Node]]] = [("root", -1, [])]
    for place, symbol in enumerate(expression):
        if symbol in operators:
            frames.append((symbol, place, []))
        elif symbol == "X" and len(frames) > 1 and frames[-1][2]:
            name, start, arguments = frames.pop()
            value = operators[name]([one.value for one in arguments])
            frames[-1][2].append(Node(name, value, place + 1 - start, tuple(arguments)))
        elif symbol in _DIGITS:
            frames[-1][2].append(_DIGITS[symbol])
        else:
            raise DataError(f"ListOps expression: symbol {symbol!r} at {place} has no place there")
    roots = frames[0][2]
    if len(frames) > 1 or len(roots) != 1:
        raise DataError(
            f"ListOps expression: {len(frames) - 1} operators are not closed and there are "
            f"{len(roots)} values at the top; expected 0 and 1"
        )
    return roots[0]


def depths(expressions: Ragged) -> np.ndarray:
    """The depth of each tree, (N,): the root has depth 1, an argument one more than its operator.

    Symbols beyond the vocabulary count for nothing.
    """
    steps = np.zeros(256, np.int8)
    steps[MIN : SM + 1], steps[CLOSE] = 1, -1
    # every operator is closed, so that each expression begins at zero
    open_ = np.cumsum(steps[expressions.values], dtype=np.int32)
    return 1 + np.maximum.reduceat(open_, expressions.offsets[:-1])


def deciding_depths(expressions: Ragged) -> np.ndarray:
    """How many levels of each tree are enough to know its value, (N,).

    What lies deeper may be any digit; a sum of which a part is unknown is unknown, as bounds of
    the other operators are exact. Symbols beyond the vocabulary count for nothing.
    """
    from longspan.data._listops_compiled import decide

    found = np.empty(len(expressions), np.int64)
    decide(as_read_only(expressions.values), as_read_only(expressions.offsets), found)
    return found


def _unseen(chunk: Examples, seen: set[bytes], wanted: int) -> Examples:
    """The first `wanted` expressions of the chunk that are not yet in `seen`, which they join."""
    rows: list[int] = []
    for row in range(len(chunk)):
        if len(rows) == wanted:
            break
        digest = hashlib.blake2b(chunk.tokens[row].data, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            rows.append(row)
    return chunk if len(rows) == len(chunk) else chunk.select(rows)


def _chunks(grammar: Grammar, seed: int, workers: int) -> Iterator[Examples]:
    """Yield chunk 0, 1, 2, ... without end, each drawn from its own seed by a pool of threads."""
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
    """The generator's start for a chunk: 64 bits of a digest, so that chunks are unrelated."""
    digest = hashlib.blake2b(f"listops {seed} {number}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _chunk(grammar: Grammar, state: np.uint64) -> Examples:
    # the compiler takes a while to import: only for who draws
    from longspan.data._listops_compiled import draw_chunk

    tokens, offsets, labels = draw_chunk(
        state,
        _CHUNK,
        grammar.max_depth,
        grammar.max_args,
        grammar.min_length,
        grammar.max_length,
    )
    return Examples(tokens=Ragged(tokens, offsets), labels=labels)
