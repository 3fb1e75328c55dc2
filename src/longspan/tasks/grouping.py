"""Groupings of examples, for scores by slice: in given ranges, or of about equal size."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouping:
    """Examples of a split grouped by a property, for scores by slice.

    Attributes:
        name: property, such as length or depth.
        labels: labels of the groups, in their natural order.
        group: group of each row, (N,); -1 for none.
    """

    name: str
    labels: tuple[str, ...]
    group: np.ndarray


def group_by_ranges(name: str, values: np.ndarray, edges: np.ndarray) -> Grouping:
    """Group values in the ranges edges[i] to edges[i + 1] - 1; values outside have no group.

    Args:
        name: property.
        values: integers (N,), one for each row.
        edges: ascending integers; equal ones count once.
    """
    edges = np.unique(edges)
    group = np.searchsorted(edges, values, side="right") - 1
    group[group == len(edges) - 1] = -1
    bounds = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True)
    return Grouping(name=name, labels=tuple(_range_label(*pair) for pair in bounds), group=group)


def group_by_quantiles(
    name: str, values: np.ndarray, num_groups: int, unit: str = ""
) -> list[Grouping]:
    """Group values in at most `num_groups` groups of about equal size; equal values stay together.

    Args:
        name: property.
        values: integers (N,), one for each row.
        num_groups: largest number of groups.
        unit: text after the range in each label.

    Returns:
        One grouping; none if all rows fall into one group.
    """
    sorted_values = np.sort(values)
    bounds = np.unique(sorted_values[np.arange(1, num_groups) * len(sorted_values) // num_groups])
    _, group = np.unique(np.searchsorted(bounds, values, side="right"), return_inverse=True)
    if not group.max():
        return []
    members = [values[group == number] for number in range(group.max() + 1)]
    labels = tuple(_range_label(int(x.min()), int(x.max())) + unit for x in members)
    return [Grouping(name=name, labels=labels, group=group)]


def _range_label(low: int, high: int) -> str:
    return f"{low}-{high}" if low < high else str(low)
