"""Verdict on a leaderboard: what its statistics say, as a few sentences.

Everything follows from the ranks, the intervals and the costs of the table below it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from longspan.report.leaderboard.levels import SOLVED, has_solved_level, is_at_floor, is_solved
from longspan.report.leaderboard.values import Cell, Cost, Leaderboard, Row, RowGroup, TaskColumn
from longspan.report.numbers import Number, count, magnitude, memory
from longspan.report.statistics.survival import Survival, seeds_needed

NAMED = 10  # rows that a sentence names; more are counted alone
UNSCORED_RULES = "rules were not scored by the version that trained it"


class _Task(NamedTuple):
    """Cells with a score of the ranked rows of a table on one task, by label."""

    column: TaskColumn
    cells: dict[str, Cell]

    @property
    def has_goal(self) -> bool:
        """True if runs of the task end at a score."""
        return self.column.goal is not None

    @property
    def can_be_solved(self) -> bool:
        """True if the task has a goal, or its metric a best value and a known floor."""
        return self.has_goal or (has_solved_level(self.column) and self.column.has_rules)

    @property
    def times(self) -> dict[str, Survival]:
        """Times to the goal, by row."""
        return {label: x for label, cell in self.cells.items() if (x := cell.survival)}

    @property
    def solved(self) -> list[str]:
        """Rows whose seeds all reach the goal, else whose 95 % interval is at least `SOLVED`."""
        if self.has_goal:
            return [label for label, one in self.times.items() if one.share == 1]
        solved = [x for x, cell in self.cells.items() if is_solved(cell, self.column)]
        return solved if self.can_be_solved else []

    @property
    def single(self) -> set[str]:
        """Rows with one seed and no seed variance to borrow, which times never have."""
        if self.has_goal:
            return {label for label, cell in self.cells.items() if len(cell.runs) == 1}
        noises = ((label, cell.noise) for label, cell in self.cells.items())
        return {label for label, noise in noises if noise and noise.seed_error is None}


def verdict(
    board: Leaderboard, group: RowGroup | None = None, *, has_costs: bool = True
) -> tuple[str, ...]:
    """Return the verdict on the ranked rows of a table, the most important sentence first.

    Args:
        board: leaderboard.
        group: its table; the first one by default.
        has_costs: name the fastest row; False where runs shared a processor.

    Returns:
        No sentence unless two rows have a score.
    """
    rows = (group or board.groups[0]).ranked
    tasks = [
        _Task(column, {x.label: y for x in rows if (y := x.cells[i]).score is not None})
        for i, column in enumerate(board.columns)
    ]
    if len({label for task in tasks for label in task.cells}) < 2:
        return ()
    solvers = [row for row in rows if all(row.label in task.solved for task in tasks)]
    return (
        *_overall(rows, tasks, solvers),
        *(_costs(solvers) if has_costs else ()),
        *(sentence for task in tasks for sentence in _sentences(task, rows, tasks)),
        *_single_seeds(rows, tasks),
    )


def verdict_sentences(board: Leaderboard) -> tuple[str, ...]:
    """Return the verdicts on all tables of a leaderboard as sentences."""
    return tuple(
        f"With {group.overrides}: {sentence}" if group.overrides else sentence
        for group in board.groups
        for sentence in verdict(board, group)
    )


def podium(group: RowGroup, size: int = 3) -> list[Row]:
    """Return the best rows, as far as each beats all that follow it and none is at chance."""
    winners: list[Row] = []
    for place, row in enumerate(group.ranked[:size], 1):
        is_alone = (at := row.overall.placement) is not None and at.ranks == (place, place)
        if not is_alone or any(cell.is_at_chance for cell in row.cells):
            break
        winners.append(row)
    return winners


def _overall(rows: Sequence[Row], tasks: Sequence[_Task], solvers: Sequence[Row]) -> Iterator[str]:
    """Say how many rows solve every task, if one can and at least one row solves one."""
    if not all(task.can_be_solved for task in tasks) or not any(task.solved for task in tasks):
        return
    names = [task.column.label for task in tasks]
    both = f"both {' and '.join(names)}" if len(names) == 2 else f"all {len(names)} tasks"
    number = str(len(solvers)) if solvers else "None"
    verb = "solve" if len(solvers) > 1 else "solves" if solvers else "is shown to solve"
    sentence = f"{number} of {_count(rows)} {verb} {names[0] if len(names) == 1 else both} "
    sentence += f"({_solving_rule(tasks)})"
    single = {label for task in tasks for label in task.single}
    sentence += _in_one_seed([row.label for row in solvers], single)
    if missing := sum(any(row.label not in task.cells for task in tasks) for row in rows):
        where = "it" if len(tasks) == 1 else "a task"
        sentence += f"; {missing} {_have(missing)} no score on {where}"
    yield f"{sentence}."


def _solving_rule(tasks: Sequence[_Task]) -> str:
    """Return what it takes to solve the tasks, as a condition."""
    rule = f"95 % interval at {100 * SOLVED:.0f} % or more"
    if not any(task.has_goal for task in tasks):
        return rule
    reached = "every seed reaches the score that ends training"
    return reached if all(task.has_goal for task in tasks) else f"{reached}, or {rule}"


def _costs(solvers: Sequence[Row]) -> Iterator[str]:
    """Say which of the rows that solve every task is the fastest, and which needs least memory."""
    parts = []
    if fastest := _first(solvers, lambda cost: cost.tokens_per_second, -1):
        speed = magnitude(fastest.cost.tokens_per_second)
        parts.append(f"fastest in training {fastest.label} ({speed} tokens/s)")
    if smallest := _first(solvers, lambda cost: cost.peak_memory, 1):
        parts.append(f"least memory {smallest.label} ({memory(smallest.cost.peak_memory)})")
    if parts:
        yield f"Of these: {', '.join(parts)}."


def _first(rows: Sequence[Row], read: Callable[[Cost], Number | None], sign: int) -> Row | None:
    """Return the cheapest row; None unless all have the cost, measured on the same hardware."""
    costs = [sign * value for row in rows if (value := read(row.cost)) is not None]
    hardware = {row.cost.hardware for row in rows}
    if len(rows) < 2 or len(costs) < len(rows) or len(hardware) > 1:
        return None
    return rows[costs.index(min(costs))]


def _sentences(task: _Task, rows: Sequence[Row], tasks: Sequence[_Task]) -> Iterator[str]:
    """Say of one task who solves it, who cannot be told apart, and who needs no model."""
    label, number = task.column.label, len(task.cells)
    if not number:
        yield f"{label}: no score."
        return
    if task.has_goal:
        yield from _times(task, rows)
        return
    if not task.column.has_rules:
        yield f"{label}: no verdict, as its {UNSCORED_RULES}."
        return
    at_floor = _at_floor(task)
    is_alone = len(tasks) == 1 and bool(task.solved)
    parts = []
    if task.solved and not is_alone:
        parts.append(
            f"{len(task.solved)} of {number} solve it{_in_one_seed(task.solved, task.single)}"
        )
    elif not task.solved and number > at_floor:
        parts.append(_describe_best(task))
    if at_floor:
        parts.append(_describe_floor(task, at_floor))
    # The sentence on all tasks names the rows without a score of a single one.
    if number < len(rows) and not is_alone:
        missing = len(rows) - number
        parts.append(f"{missing} {_have(missing)} no score")
    if parts:
        yield f"{label}: {'; '.join(parts)}."


def _times(task: _Task, rows: Sequence[Row]) -> Iterator[str]:
    """Say of a task with a goal which rows solve it, and who is faster where seeds allow it."""
    label, times = task.column.label, task.times
    none = [x for x, one in times.items() if one.share == 0]
    some = [
        f"{x}: {one.solved} of {len(one.times)}" for x, one in times.items() if 0 < one.share < 1
    ]
    seeds = {"solved in every seed by": task.solved, "in some by": some, "in none by": none}
    parts = [
        f"{where} {len(names)}" + (f" ({', '.join(names)})" if len(names) <= NAMED else "")
        for where, names in seeds.items()
        if names
    ]
    if task.column.has_rules and (at_floor := _at_floor(task)):
        parts.append(_describe_floor(task, at_floor))
    if number := len(rows) - len(times):
        parts.append(f"{number} {_have(number)} no time")
    if not task.solved and (some or none):
        parts[0] = f"solved {parts[0]}"
    goal = task.column.metric.format(task.column.goal or 0.0)
    yield f"{label} ({goal} on validation): {'; '.join(parts)}."
    if len(times) > 1:
        yield f"Steps to solve {label}: {_describe_steps(task)}."


def _describe_steps(task: _Task) -> str:
    if any(cell.placement and cell.placement.ranks for cell in task.cells.values()):
        return _describe_best(task)
    rows, most = len(task.times), max(len(one.times) for one in task.times.values())
    return (
        f"not compared, as {count(rows, 'row')} of {count(most, 'seed')} cannot differ "
        f"significantly; that takes {seeds_needed(rows)} seeds a row"
    )


def _at_floor(task: _Task) -> int:
    return sum(is_at_floor(cell, task.column) for cell in task.cells.values())


def _describe_floor(task: _Task, at_floor: int) -> str:
    """Say how many rows are not better than the best prediction without a model."""
    verb = "is" if at_floor == 1 else "are"
    who = "no row is" if at_floor == len(task.cells) else f"{at_floor} {verb} not"
    return f"{who} significantly better than {_name_floor(task.column)}"


def _describe_best(task: _Task) -> str:
    places = {label: x for label, cell in task.cells.items() if (x := cell.placement) and x.ranks}
    best = [label for label, place in places.items() if place.is_best]
    unbeaten = sum(place.ranks is not None and place.ranks[0] == 1 for place in places.values())
    if best:
        return f"{best[0]} is best"
    if not places:
        return "no row is ranked"
    if unbeaten == len(task.cells):
        return f"the {unbeaten} rows cannot be told apart"
    return f"{unbeaten} of {len(task.cells)} rows may be best"


def _single_seeds(rows: Sequence[Row], tasks: Sequence[_Task]) -> Iterator[str]:
    """Say how many rows have a single seed that says nothing about others, and on which tasks."""
    tasks = [task for task in tasks if task.single and not task.has_goal]
    if number := len({label for task in tasks for label in task.single}):
        where = ", ".join(task.column.label for task in tasks)
        yield (
            f"{number} of {_count(rows)} {_have(number)} one seed and no seed variance to borrow "
            f"on {where}: no rank there, and intervals that say nothing about other seeds."
        )


def _in_one_seed(solved: Sequence[str], single: set[str]) -> str:
    """Return how many of the rows that solve a task do so in the only seed that is known."""
    number = len({*solved} & single)
    return f", {number} of them in one seed alone" if number else ""


def _name_floor(column: TaskColumn) -> str:
    """Return the best prediction without a model: majority class, chance, or a rule by name."""
    if column.floor is None:
        return "chance" if column.majority is None else "the majority class"
    name = column.floor.name
    rule = name.removeprefix("rule: ")
    return f"the {name}" if rule == name else f"the rule {rule!r}"


def _count(rows: Sequence[Row]) -> str:
    """Return the number of rows, named by what they are."""
    is_one_each = len({row.row_name for row in rows}) == len(rows)
    return f"{len(rows)} {'mechanisms' if is_one_each else 'rows'}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"
