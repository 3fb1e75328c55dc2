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
from typing import NamedTuple, no_type_check

import numba
import numpy as np

from longspan.data.store import Examples, Ragged, read_only
from longspan.errors import DataError, OptionError

# The id of a token is its place here; id 0 is padding. Fixed for ever: a checkpoint depends on it.
VOCABULARY = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")

_ZERO = VOCABULARY.index("0")
_MIN, _MAX, _MED, _SM = (VOCABULARY.index(name) for name in ("[MIN", "[MAX", "[MED", "[SM"))
_CLOSE = VOCABULARY.index("X")

_CHUNK = 1 << 14  # candidates drawn from one seed
# A stream is given up when so many chunks, or kept expressions, hold fewer new ones than this.
_PATIENCE_CHUNKS, _PATIENCE_KEPT, _MINIMUM = 256, 1 << 17, 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


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


_DIGITS = {digit: Node(digit, int(digit)) for digit in VOCABULARY[_ZERO : _ZERO + 10]}


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
    steps[_MIN : _SM + 1], steps[_CLOSE] = 1, -1
    # every operator is closed, so that each expression begins at zero
    open_ = np.cumsum(steps[expressions.values], dtype=np.int32)
    return 1 + np.maximum.reduceat(open_, expressions.offsets[:-1])


def deciding_depths(expressions: Ragged) -> np.ndarray:
    """How many levels of each tree are enough to know its value, (N,).

    What lies deeper may be any digit; a sum of which a part is unknown is unknown, as bounds of
    the other operators are exact. Symbols beyond the vocabulary count for nothing.
    """
    found = np.empty(len(expressions), np.int64)
    _decide(read_only(expressions.values), read_only(expressions.offsets), found)
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
    tokens, offsets, labels = _draw_chunk(
        state,
        _CHUNK,
        grammar.max_depth,
        grammar.max_args,
        grammar.min_length,
        grammar.max_length,
    )
    return Examples(tokens=Ragged(tokens, offsets), labels=labels)


# The functions below are compiled. `no_type_check` keeps the tests' type checker from wrapping
# them, which numba cannot compile.


@numba.njit(nogil=True, cache=True)
@no_type_check
def _draw_chunk(state, candidates, max_depth, max_args, min_length, max_length):
    """Draw `candidates` trees; return those kept: flat tokens, offsets, values."""
    tokens = np.empty(4 * max_length, np.uint8)
    offsets = np.zeros(candidates + 1, np.int64)
    labels = np.empty(candidates, np.uint8)
    children = np.empty(max_depth, np.int64)
    values, frames = np.empty(max_length, np.int64), np.empty(max_depth, np.int64)
    used, kept = 0, 0
    for _ in range(candidates):
        if used + max_length > len(tokens):
            grown = np.empty(2 * len(tokens), np.uint8)
            grown[:used] = tokens[:used]
            tokens = grown
        length, state = _draw_tree(state, tokens[used:], children, max_depth, max_args, max_length)
        if length > min_length:
            labels[kept] = _value(tokens[used : used + length], values, frames)
            used += length
            kept += 1
            offsets[kept] = used
    return tokens[:used].copy(), offsets[: kept + 1].copy(), labels[:kept].copy()


@numba.njit(nogil=True, cache=True)
@no_type_check
def _draw_tree(state, out, children, max_depth, max_args, max_length):
    """Write one tree in prefix order; return its length (0: too long) and the next state.

    One 64-bit draw (splitmix64) decides a node: bits 62-63 operator or digit, bits 32-33 which
    operator, bits 0-31 the digit or the number of arguments (multiply-shift: off by less than
    max_args / 2^32). LRA draws an operator after its arguments; the draws are independent, so the
    order changes no distribution. The root is always an operator, since a single digit is never
    longer than min_length.
    """
    used, level = 0, -1
    # tokens still needed if every open argument were a digit, closers included
    owed = 1
    while True:
        state += _GOLDEN
        bits = (state ^ (state >> np.uint64(30))) * _MIX_A
        bits = (bits ^ (bits >> np.uint64(27))) * _MIX_B
        bits = bits ^ (bits >> np.uint64(31))
        low = bits & np.uint64(0xFFFFFFFF)
        owed -= 1
        if level < 0 or (level + 2 < max_depth and bits >> np.uint64(62) == np.uint64(0)):
            level += 1
            arguments = 2 + np.int64((low * np.uint64(max_args - 1)) >> np.uint64(32))
            children[level] = arguments
            out[used] = _MIN + np.int64((bits >> np.uint64(32)) & np.uint64(3))
            owed += arguments + 1
        else:
            out[used] = _ZERO + np.int64((low * np.uint64(10)) >> np.uint64(32))
        used += 1
        if used + owed >= max_length:
            return 0, state
        while level >= 0 and children[level] == 0:
            out[used] = _CLOSE
            used += 1
            owed -= 1
            level -= 1
        if level < 0:
            return used, state
        children[level] -= 1


@numba.njit(nogil=True, cache=True)
@no_type_check
def _value(tokens, values, frames):
    """The value of an expression; `values` and `frames` are scratch space for its two stacks."""
    held, depth = 0, 0
    for token in tokens:
        if token < _MIN:
            values[held] = token - _ZERO
            held += 1
        elif token < _CLOSE:
            # where the arguments begin, and the operator in the low four bits
            frames[depth] = held * 16 + token
            depth += 1
        else:
            depth -= 1
            start = frames[depth] >> 4
            values[start] = _apply(frames[depth] & 15, values[start:held])
            held = start + 1
    return values[0]


@numba.njit(nogil=True, cache=True)
@no_type_check
def _decide(tokens, offsets, found):
    """Fill in the levels that are enough, trying one more until the bounds of the value meet."""
    longest = np.diff(offsets).max() + 1
    low, high = np.empty(longest, np.int64), np.empty(longest, np.int64)
    frames = np.empty(longest, np.int64)
    for row in range(len(found)):
        found[row] = 1
        low[0], high[0] = 0, 9
        while low[0] < high[0]:
            found[row] += 1
            _bound(tokens[offsets[row] : offsets[row + 1]], found[row], low, high, frames)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _bound(tokens, levels, low, high, frames):
    """Bounds of a value, left in low[0] and high[0], from the upper levels of its tree."""
    held, depth = 0, 0
    for token in tokens:
        if token < _MIN and depth < levels:
            low[held] = high[held] = token - _ZERO
            held += 1
        elif _MIN <= token < _CLOSE:
            depth += 1
            frames[depth] = held * 16 + token
        elif token == _CLOSE:
            start, operator = frames[depth] >> 4, frames[depth] & 15
            known = depth < levels
            for i in range(start, held if operator == _SM else start):
                known &= low[i] == high[i]
            low[start] = _apply(operator, low[start:held]) if known else 0
            high[start] = _apply(operator, high[start:held]) if known else 9
            held = start + 1
            depth -= 1


@numba.njit(nogil=True, cache=True)
@no_type_check
def _apply(operator, values):
    """The value of one operator; the arguments may be reordered."""
    if operator == _MED:
        return _median(values)
    best, total = values[0], 0
    for value in values:
        total += value
        best = min(best, value) if operator == _MIN else max(best, value)
    return total % 10 if operator == _SM else best


@numba.njit(nogil=True, cache=True)
@no_type_check
def _median(values):
    """The integer part of the median; sorts the values in place."""
    for i in range(1, len(values)):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    middle = len(values) // 2
    if len(values) % 2:
        return values[middle]
    return (values[middle - 1] + values[middle]) // 2
