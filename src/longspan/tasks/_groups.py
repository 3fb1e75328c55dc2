"""Groups of examples by a whole number: in given ranges, or in groups of about one size."""

import numpy as np

from longspan.tasks.base import Grouping


def ranges(name: str, values: np.ndarray, edges: np.ndarray) -> Grouping:
    """Group i holds edges[i] up to edges[i + 1] - 1; what lies outside has none.

    Args:
        name: of the property.
        values: whole numbers (N,), one for each row.
        edges: ascending whole numbers; equal ones count once.
    """
    edges = np.unique(edges)
    group = np.searchsorted(edges, values, side="right") - 1
    group[group == len(edges) - 1] = -1
    bounds = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True)
    return Grouping(name=name, labels=tuple(_between(*pair) for pair in bounds), group=group)


def even(name: str, values: np.ndarray, parts: int, unit: str = "") -> list[Grouping]:
    """At most `parts` groups of about as many rows each, equal values together.

    Args:
        name: of the property.
        values: whole numbers (N,), one for each row.
        parts: how many groups.
        unit: written behind the range of each.

    Returns:
        One grouping; none where the rows are all of one group.
    """
    ranked = np.sort(values)
    inner = np.unique(ranked[np.arange(1, parts) * len(ranked) // parts])
    _, group = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    if not group.max():
        return []
    spans = [values[group == number] for number in range(group.max() + 1)]
    labels = tuple(_between(int(one.min()), int(one.max())) + unit for one in spans)
    return [Grouping(name=name, labels=labels, group=group)]


def _between(low: int, high: int) -> str:
    return f"{low}-{high}" if low < high else str(low)
