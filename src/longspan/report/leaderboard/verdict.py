"""Verdict on a leaderboard: what its statistics say, as a few sentences.

Everything follows from the ranks, the intervals and the costs of the table below it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from longspan.report.leaderboard.levels import SOLVED, has_solved_level, is_at_floor, is_solved
from longspan.report.leaderboard.values import Cost, Leaderboard, Row, RowGroup, TaskColumn
from longspan.report.numbers import Number, magnitude, memory

UNSCORED_RULES = "rules were not scored; run `longspan results score-rules FOLDER`"


@dataclass(frozen=True, kw_only=True)
class TaskVerdict:
    """Rows of one table on one task, by label.

    Attributes:
        scored: rows with a score.
        floor: name of the best prediction without a model.
        at_floor: rows that are not better than it.
        has_floor: the floor is known; without it there is no verdict on the task.
        ranked: rows that were compared with another one.
        unbeaten: of these, the rows that no row beats.
        best: row that beats every other one; None: there is none.
        solved: rows whose whole 95 % interval is at least `SOLVED`.
        single: rows with one seed and no seed variance to borrow.
    """

    task: str
    can_be_solved: bool
    scored: tuple[str, ...]
    floor: str
    at_floor: tuple[str, ...]
    has_floor: bool
    ranked: tuple[str, ...]
    unbeaten: tuple[str, ...]
    best: str | None
    solved: tuple[str, ...]
    single: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on the ranked rows of one table.

    Attributes:
        rows: ranked rows, by label.
        solved: rows that solve every task.
        fastest: of those that solve every task, the fastest in training; None where their speeds
            were not all measured on the same hardware.
        smallest: of those, the one with the least training memory; likewise.
        sentences: the verdict as text, the most important sentence first.
    """

    rows: tuple[str, ...]
    tasks: tuple[TaskVerdict, ...]
    solved: tuple[str, ...]
    fastest: str | None
    smallest: str | None
    sentences: tuple[str, ...]


def verdict(board: Leaderboard, group: RowGroup | None = None) -> Verdict | None:
    """Return the verdict on the ranked rows of a table; None unless two of them have a score.

    Args:
        board: leaderboard.
        group: its table; the first one by default.
    """
    rows = (group or board.groups[0]).ranked
    if sum(any(cell and cell.score is not None for cell in row.cells) for row in rows) < 2:
        return None
    tasks = [_on_task(rows, column, i) for i, column in enumerate(board.columns)]
    solvers = [row for row in rows if all(row.label in task.solved for task in tasks)]
    fastest = _first(solvers, lambda cost: _negated(cost.tokens_per_second))
    smallest = _first(solvers, lambda cost: cost.peak_memory)
    sentences = [
        *_overall(rows, tasks, solvers),
        *_costs(fastest, smallest),
        *(sentence for task in tasks for sentence in _sentences(task, rows, tasks)),
        *_single_seeds(rows, tasks),
    ]
    return Verdict(
        rows=tuple(row.label for row in rows),
        tasks=tuple(tasks),
        solved=tuple(row.label for row in solvers),
        fastest=fastest.label if fastest else None,
        smallest=smallest.label if smallest else None,
        sentences=tuple(sentences),
    )


def verdict_sentences(board: Leaderboard) -> tuple[str, ...]:
    """Return the verdicts on all tables of a leaderboard as sentences."""
    found: list[str] = []
    for group in board.groups:
        one = verdict(board, group)
        prefix = f"With {group.overrides}: " if group.overrides else ""
        found += [f"{prefix}{sentence}" for sentence in (one.sentences if one else ())]
    return tuple(found)


def podium(group: RowGroup, size: int = 3) -> list[Row]:
    """Return the best rows, as far as each beats all that follow it and none is at chance."""
    found: list[Row] = []
    for place, row in enumerate(group.ranked[:size], 1):
        is_alone = row.placement is not None and row.placement.ranks == (place, place)
        if not is_alone or any(cell and cell.is_at_chance for cell in row.cells):
            break
        found.append(row)
    return found


def _on_task(rows: Sequence[Row], column: TaskColumn, i: int) -> TaskVerdict:
    scored = [(row, cell) for row in rows if (cell := row.cells[i]) and cell.score is not None]
    places = [(row, cell.placement) for row, cell in scored if cell.placement]
    ranked = [(row, place) for row, place in places if place.ranks]
    can_be_solved = has_solved_level(column) and column.has_rules
    return TaskVerdict(
        task=column.label,
        can_be_solved=can_be_solved,
        scored=tuple(row.label for row, _ in scored),
        floor=_name_floor(column),
        at_floor=tuple(row.label for row, cell in scored if is_at_floor(cell, column)),
        has_floor=column.has_rules,
        ranked=tuple(row.label for row, _ in ranked),
        unbeaten=tuple(row.label for row, x in ranked if x.ranks and x.ranks[0] == 1),
        best=next((row.label for row, place in ranked if place.is_best), None),
        solved=tuple(x.label for x, cell in scored if can_be_solved and is_solved(cell, column)),
        single=tuple(
            row.label for row, cell in scored if cell.noise and cell.noise.seed_error is None
        ),
    )


def _first(rows: Sequence[Row], cost: Callable[[Cost], Number | None]) -> Row | None:
    """Return the cheapest row; None unless all have the cost, measured on the same hardware."""
    costs = [(cost(row.cost), row) for row in rows]
    known = [(value, row) for value, row in costs if value is not None]
    hardware = {row.cost.hardware for row in rows}
    if len(rows) < 2 or len(known) < len(rows) or len(hardware) > 1:
        return None
    return min(known, key=lambda one: one[0])[1]


def _negated(value: Number | None) -> Number | None:
    return None if value is None else -value


def _overall(
    rows: Sequence[Row], tasks: Sequence[TaskVerdict], solvers: Sequence[Row]
) -> list[str]:
    """Say how many rows solve every task, if one can and at least one row solves one."""
    if not all(task.can_be_solved for task in tasks) or not any(task.solved for task in tasks):
        return []
    number = str(len(solvers)) if solvers else "None"
    verb = "solve" if len(solvers) > 1 else "solves" if solvers else "is shown to solve"
    sentence = f"{number} of {_count(rows)} {verb} {_list_tasks(tasks)} "
    sentence += f"(95 % interval at {100 * SOLVED:.0f} % or more)"
    single = [label for task in tasks for label in task.single]
    sentence += _in_one_seed([row.label for row in solvers], single)
    missing = sum(any(row.label not in task.scored for task in tasks) for row in rows)
    if missing:
        where = "it" if len(tasks) == 1 else "a task"
        sentence += f"; {missing} {_have(missing)} no score on {where}"
    return [f"{sentence}."]


def _list_tasks(tasks: Sequence[TaskVerdict]) -> str:
    names = [task.task for task in tasks]
    if len(names) > 2:
        return f"all {len(names)} tasks"
    return names[0] if len(names) == 1 else f"both {' and '.join(names)}"


def _costs(fastest: Row | None, smallest: Row | None) -> list[str]:
    parts = []
    if fastest is not None:
        speed = magnitude(fastest.cost.tokens_per_second)
        parts.append(f"fastest in training {fastest.label} ({speed} tokens/s)")
    if smallest is not None:
        parts.append(f"least memory {smallest.label} ({memory(smallest.cost.peak_memory)})")
    return [f"Of these: {', '.join(parts)}."] if parts else []


def _sentences(task: TaskVerdict, rows: Sequence[Row], tasks: Sequence[TaskVerdict]) -> list[str]:
    """Say of one task who solves it, who cannot be told apart, and who needs no model."""
    number = len(task.scored)
    if not number:
        return [f"{task.task}: no score."]
    if not task.has_floor:
        return [f"{task.task}: no verdict, as its {UNSCORED_RULES}."]
    parts = []
    if task.solved:
        if len(tasks) > 1:
            alone = _in_one_seed(task.solved, task.single)
            parts.append(f"{len(task.solved)} of {number} solve it{alone}")
    elif number > len(task.at_floor):
        parts.append(_describe_best(task))
    if task.at_floor:
        parts.append(_describe_floor(task))
    if number < len(rows) and not _is_said(tasks):
        missing = len(rows) - number
        parts.append(f"{missing} {_have(missing)} no score")
    return [f"{task.task}: {'; '.join(parts)}."] if parts else []


def _is_said(tasks: Sequence[TaskVerdict]) -> bool:
    """Return whether the sentence on all tasks has named the rows without a score."""
    return len(tasks) == 1 and bool(tasks[0].solved)


def _describe_best(task: TaskVerdict) -> str:
    if task.best is not None:
        return f"{task.best} is best"
    if not task.ranked:
        return "no row is ranked"
    if len(task.unbeaten) == len(task.scored):
        return f"the {len(task.scored)} rows cannot be told apart"
    return f"{len(task.unbeaten)} of {len(task.scored)} rows may be best"


def _describe_floor(task: TaskVerdict) -> str:
    number = len(task.at_floor)
    if number == len(task.scored):
        return f"no row is significantly better than {task.floor}"
    verb = "is" if number == 1 else "are"
    return f"{number} {verb} not significantly better than {task.floor}"


def _single_seeds(rows: Sequence[Row], tasks: Sequence[TaskVerdict]) -> list[str]:
    """Say how many rows have a single seed that says nothing about others, and on which tasks."""
    number = len({label for task in tasks for label in task.single})
    if not number:
        return []
    where = ", ".join(task.task for task in tasks if task.single)
    return [
        f"{number} of {_count(rows)} {_have(number)} one seed and no seed variance to borrow on "
        f"{where}: no rank there, and intervals that say nothing about other seeds."
    ]


def _in_one_seed(solved: Iterable[str], single: Iterable[str]) -> str:
    """Return how many of the rows that solve a task do so in the only seed that is known."""
    number = len({*solved} & {*single})
    return f", {number} of them in one seed alone" if number else ""


def _name_floor(column: TaskColumn) -> str:
    """Return the best prediction without a model: the majority class, or a rule by name."""
    name = "majority class" if column.floor is None else column.floor.name
    rule = name.removeprefix("rule: ")
    return f"the {name}" if rule == name else f"the rule {rule!r}"


def _count(rows: Sequence[Row]) -> str:
    """Return the number of rows, named by what they are."""
    is_one_each = len({row.row_name for row in rows}) == len(rows)
    return f"{len(rows)} {'mechanisms' if is_one_each else 'rows'}"


def _have(number: int) -> str:
    return "has" if number == 1 else "have"
