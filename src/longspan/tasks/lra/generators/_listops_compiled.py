"""Compiled generator of ListOps expressions, and their values."""

from typing import no_type_check

import numba
import numpy as np

from longspan.tasks.lra.generators._listops_vocabulary import CLOSE, MED, MIN, SM, ZERO
from longspan.tasks.lra.generators._splitmix import GOLDEN, mix_bits

# `no_type_check` keeps the tests' type checker from wrapping these functions for numba.


@numba.njit(nogil=True, cache=True)
@no_type_check
def draw_chunk(state, candidates, max_depth, max_args, min_length, max_length):
    """Draw `candidates` trees; return the flat tokens, offsets and values of those kept."""
    tokens = np.empty(4 * max_length, np.uint8)
    offsets = np.zeros(candidates + 1, np.int64)
    labels = np.empty(candidates, np.uint8)
    children = np.empty(max_depth, np.int64)
    values, frames = np.empty(max_length, np.int64), np.empty(max_depth, np.int64)
    used, count = 0, 0
    for _ in range(candidates):
        if used + max_length > len(tokens):
            buffer = np.empty(2 * len(tokens), np.uint8)
            buffer[:used] = tokens[:used]
            tokens = buffer
        length, state = _draw_tree(state, tokens[used:], children, max_depth, max_args, max_length)
        if length > min_length:
            labels[count] = _value(tokens[used : used + length], values, frames)
            used += length
            count += 1
            offsets[count] = used
    return tokens[:used].copy(), offsets[: count + 1].copy(), labels[:count].copy()


@numba.njit(nogil=True, cache=True)
@no_type_check
def _draw_tree(state, out, children, max_depth, max_args, max_length):
    """Write one tree in prefix order; return its length (0: too long) and the next state.

    One 64-bit draw determines a node: bits 62-63 operator or digit, bits 32-33 the operator, bits
    0-31 the digit or the number of arguments (multiply-shift, with a bias below max_args / 2^32).
    LRA draws an operator after its arguments; the draws are independent, so the order does not
    change the distribution. The root is always an operator, since a single digit is never longer
    than min_length.
    """
    used, level = 0, -1
    # tokens still needed if every open argument is a digit, closers included
    num_pending = 1
    while True:
        state += GOLDEN
        bits = mix_bits(state)
        low = bits & np.uint64(0xFFFFFFFF)
        num_pending -= 1
        if level < 0 or (level + 2 < max_depth and bits >> np.uint64(62) == np.uint64(0)):
            level += 1
            arguments = 2 + np.int64((low * np.uint64(max_args - 1)) >> np.uint64(32))
            children[level] = arguments
            out[used] = MIN + np.int64((bits >> np.uint64(32)) & np.uint64(3))
            num_pending += arguments + 1
        else:
            out[used] = ZERO + np.int64((low * np.uint64(10)) >> np.uint64(32))
        used += 1
        if used + num_pending >= max_length:
            return 0, state
        while level >= 0 and children[level] == 0:
            out[used] = CLOSE
            used += 1
            num_pending -= 1
            level -= 1
        if level < 0:
            return used, state
        children[level] -= 1


@numba.njit(nogil=True, cache=True)
@no_type_check
def _value(tokens, values, frames):
    """Return the value of an expression; `values` and `frames` are buffers for two stacks."""
    stack_size, depth = 0, 0
    for token in tokens:
        if token < MIN:
            values[stack_size] = token - ZERO
            stack_size += 1
        elif token < CLOSE:
            # index of the first argument, and the operator in the low four bits
            frames[depth] = stack_size * 16 + token
            depth += 1
        else:
            depth -= 1
            start = frames[depth] >> 4
            values[start] = _apply(frames[depth] & 15, values[start:stack_size])
            stack_size = start + 1
    return values[0]


@numba.njit(nogil=True, cache=True)
@no_type_check
def count_deciding_levels(tokens, offsets, levels):
    """Set the number of levels that determine each value: add levels until its bounds meet."""
    longest = np.diff(offsets).max() + 1
    low, high = np.empty(longest, np.int64), np.empty(longest, np.int64)
    frames = np.empty(longest, np.int64)
    for row in range(len(levels)):
        levels[row] = 1
        low[0], high[0] = 0, 9
        while low[0] < high[0]:
            levels[row] += 1
            _bound(tokens[offsets[row] : offsets[row + 1]], levels[row], low, high, frames)


@numba.njit(nogil=True, cache=True)
@no_type_check
def _bound(tokens, levels, low, high, frames):
    """Set low[0] and high[0] to the bounds of a value given the upper levels of its tree."""
    stack_size, depth = 0, 0
    for token in tokens:
        if token < MIN and depth < levels:
            low[stack_size] = high[stack_size] = token - ZERO
            stack_size += 1
        elif MIN <= token < CLOSE:
            depth += 1
            frames[depth] = stack_size * 16 + token
        elif token == CLOSE:
            start, operator = frames[depth] >> 4, frames[depth] & 15
            is_known = depth < levels
            for i in range(start, stack_size if operator == SM else start):
                is_known &= low[i] == high[i]
            low[start] = _apply(operator, low[start:stack_size]) if is_known else 0
            high[start] = _apply(operator, high[start:stack_size]) if is_known else 9
            stack_size = start + 1
            depth -= 1


@numba.njit(nogil=True, cache=True)
@no_type_check
def _apply(operator, values):
    """Return the value of one operator; the arguments may be reordered in place."""
    if operator == MED:
        return _median(values)
    best, total = values[0], 0
    for value in values:
        total += value
        best = min(best, value) if operator == MIN else max(best, value)
    return total % 10 if operator == SM else best


@numba.njit(nogil=True, cache=True)
@no_type_check
def _median(values):
    """Return the integer part of the median; sort the values in place."""
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
