"""Value of a ListOps expression with the operators below some level replaced by their mean."""

import numba
import numpy as np

from longspan.data.store import Ragged, as_read_only
from longspan.tasks.lra.generators._listops_vocabulary import CLOSE, MAX, MIN, SM, ZERO

_DEEPEST = 64  # levels of a tree


def operator_means(expressions: Ragged) -> np.ndarray:
    """Return the mean value of the subtrees of each operator, rounded; (4,), MIN to SM."""
    totals, counts = np.zeros(4), np.zeros(4)
    _evaluate(*_arrays(expressions), _DEEPEST, np.zeros(4, np.int64), totals, counts)
    return np.rint(totals / counts).astype(np.int64)


def truncated_values(expressions: Ragged, levels: int, means: np.ndarray) -> np.ndarray:
    """Return the value of each expression, (N,), with `levels` levels of operators computed.

    Args:
        expressions: ids of the symbols, without an end symbol.
        levels: levels from the root; an operator below them has the value of `means`.
        means: value of each operator, MIN to SM.
    """
    return _evaluate(*_arrays(expressions), levels, means, np.zeros(4), np.zeros(4))


def _arrays(expressions: Ragged) -> tuple[np.ndarray, np.ndarray]:
    return as_read_only(expressions.values), as_read_only(expressions.offsets)


@numba.njit(cache=True)
def _value(operator, counts):
    """Return the value of an operator on arguments, given as the number of each digit."""
    number, total, low, high = 0, 0, 10, -1
    for digit in range(10):
        if counts[digit]:
            low, high = min(low, digit), digit
        number += counts[digit]
        total += digit * counts[digit]
    if operator == MIN:
        return low
    if operator == MAX:
        return high
    if operator == SM:
        return total % 10
    # the integer part of the mean of the two middle arguments
    middle, before = 0, 0
    for digit in range(10):
        for place in ((number - 1) // 2, number // 2):
            if before <= place < before + counts[digit]:
                middle += digit
        before += counts[digit]
    return middle // 2


@numba.njit(cache=True)
def _evaluate(values, offsets, levels, means, totals, numbers):
    """Return the value of each expression; add those of all operators to `totals`."""
    results = np.empty(len(offsets) - 1, np.int64)
    arguments, operators = np.zeros((_DEEPEST + 1, 10), np.int64), np.zeros(_DEEPEST + 1, np.int64)
    for row in range(len(results)):
        depth, result = 0, 0  # operators that are open
        for symbol in values[offsets[row] : offsets[row + 1]]:
            if MIN <= symbol <= SM:
                depth += 1
                operators[depth] = symbol
                arguments[depth] = 0
                continue
            if symbol == CLOSE:
                operator = operators[depth]
                result = _value(operator, arguments[depth])
                if depth > levels:
                    result = means[operator - MIN]
                totals[operator - MIN] += result
                numbers[operator - MIN] += 1
                depth -= 1
            else:
                result = np.int64(symbol) - ZERO
            arguments[depth, result] += 1
        results[row] = result
    return results
