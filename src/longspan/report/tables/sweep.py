"""Test scores against one option in which runs differ, or against the length of an evaluation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from longspan.config import flatten
from longspan.errors import check_name
from longspan.metrics import Metric
from longspan.report.leaderboard.grouping import group_runs, list_values, value_text
from longspan.report.leaderboard.levels import best_floor
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import Number, count, memory
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import measured_task_rows, mechanism_entry, score_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import ROW, VARIANT, CrossEvaluation, Result
from longspan.results.differences import differing_values

STATE = "state"  # swept in place of an option: bytes of the decoding state
_DATA = "data sha256"
_SIZES = {"train", "validation", "test"}  # numbers of examples
ABOUT = (
    "Mean test score over seeds of runs that differ in one option. Runs that differ in other "
    "options are other groups, those of other options of the mechanism other rows."
)
LENGTHS = (
    "Mean test score over seeds. Each model was trained at one length and is evaluated at others, "
    "without further training; other options are those of the training, but for numbers of "
    "examples."
)


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """Test score of one run at one value of the swept option.

    Attributes:
        group: task, and what its runs have in common that other groups have otherwise.
        row: name of the row.
        family: family of its mechanism.
        place: value of the option, as text unless it is a number.
        score: test score.
        floor: best score without a model at this value; None: not known.
        metric: metric of both.
        seed: seed of the run.
    """

    group: str
    row: str
    family: str | None
    place: int | float | str
    score: float
    floor: float | None
    metric: Metric
    seed: int


def sweep_points(board: Leaderboard, option: str | None) -> list[SweepPoint]:
    """Return the runs of a leaderboard by the value of an option; none without an option.

    Runs without the option are left out.

    Args:
        board: leaderboard.
        option: dotted name, such as task.pairs, or `STATE`.
    """
    if option is None:
        return []
    cells = [cell for row in board.rows for cell in row.cells]
    scored = [
        (run, settings)
        for run in (run for x in cells for run in x.runs if "test" in run.scores)
        if (settings := _settings(run)).get(option) is not None
    ]
    floors = {run.stem: best_floor(cell.runs, "test") for cell in cells for run in cell.runs}
    points = []
    for task, of_task in group_runs(scored, lambda pair: pair[0].task):
        others = _varied_names(of_task, option, of_mechanism=False)
        for row, of_row in group_runs(of_task, lambda pair: pair[0].row_name):
            of_mechanism = _varied_names(of_row, option, of_mechanism=True)
            points += [
                SweepPoint(
                    group=", ".join(filter(None, (task, _label(settings, others)))),
                    row=" ".join(filter(None, (row, _label(settings, of_mechanism)))),
                    family=run.family,
                    place=x if is_number(x := settings[option]) else value_text(x),
                    score=run.score(),
                    floor=floor.value if (floor := floors[run.stem]) else None,
                    metric=run.main,
                    seed=run.seed,
                )
                for run, settings in of_row
            ]
    return points


def check_swept(runs: Iterable[Result], option: str) -> None:
    """Check that a run has an option.

    Raises:
        UnknownNameError: none has it; the message suggests near names.
    """
    check_name(option, {name: None for run in runs for name in _settings(run)}, "option of a run")


def _settings(run: Result) -> dict[str, Any]:
    """Return the settings of a run by dotted name, the data, and the bytes of its state."""
    state = run.decoding_state and run.decoding_state.num_bytes
    data = run.data_checksum[:8]
    return {**run.overrides, **flatten(run.effective_config), _DATA: data, STATE: state}


def _label(settings: dict[str, Any], names: Iterable[str]) -> str:
    return list_values({name: settings.get(name) for name in names})


def _varied_names(
    runs: Sequence[tuple[Result, dict[str, Any]]], option: str, of_mechanism: bool
) -> list[str]:
    """Return the other options in which runs differ, those of the mechanism or the others.

    Options that the swept one decides are left out, such as as many queries as pairs.
    """
    names = {name for run, _ in runs for name in run.overrides} | _names_of_others(runs, option)
    names -= {option, STATE, ROW, VARIANT}
    varied = []
    for name in (x for x in names if x.startswith("mechanism.") is of_mechanism):
        pairs = {(value_text(x.get(option)), value_text(x.get(name))) for _, x in runs}
        if len(pairs) > len({place for place, _ in pairs}):
            varied.append(name)
    return varied


def _names_of_others(runs: Sequence[tuple[Result, dict[str, Any]]], option: str) -> set[str]:
    """Return the settings in which runs differ that have equal overrides and values.

    These are runs of two versions of the protocol, or on two versions of the data.
    """

    def key(pair: tuple[Result, dict[str, Any]]) -> tuple[str, str, str]:
        run, settings = pair
        return run.row_name, value_text(run.overrides), value_text(settings[option])

    names: set[str] = set()
    for _, group in group_runs(runs, key):
        first, *others = ({**flatten(x.config), _DATA: x.data_checksum[:8]} for x, _ in group)
        differing = {name for other in others for name in differing_values(first, other)}
        # The data of another version of a task differs at every value.
        names |= differing - {_DATA} or differing
    return names


def length_points(board: Leaderboard, evaluations: Sequence[CrossEvaluation]) -> list[SweepPoint]:
    """Return the scores of models of all tasks by the length that they are evaluated at.

    The length of the training is among them, with the test score of the run. There is none where no
    model was evaluated on the test split at another length.
    """
    at_lengths = [
        x
        for x in sorted(evaluations, key=lambda x: x.score.num_examples)  # the largest sample
        if x.split == "test" and {*x.changed_options} - _SIZES == {"length"}
    ]
    points = []
    columns = range(len(board.columns))
    for line in (x for i in columns for x in measured_task_rows(board, i, at_lengths)):
        runs = {run.stem: run for run in line.runs}
        scores = {(x.run_stem, x.length): x.value for x in line.item}
        scores |= {
            (x.run_stem, x.trained_length): runs[x.run_stem].score()
            for x in line.item
            if "test" in runs[x.run_stem].scores
        }
        points += [
            SweepPoint(
                group=line.task.label,
                row=line.row.label,
                family=line.row.family,
                place=length,
                score=score,
                floor=None,
                metric=line.metric,
                seed=runs[stem].seed,
            )
            for (stem, length), score in scores.items()
        ]
    return points


def places_of(points: Iterable[SweepPoint]) -> list[Any]:
    """Return the values of the swept option, ascending where all are numbers."""
    places = list(dict.fromkeys(x.place for x in points))
    return sorted(places) if all(map(is_number, places)) else places


def is_number(place: Any) -> bool:
    """Return whether a value has a place on an axis of numbers."""
    return isinstance(place, int | float) and not isinstance(place, bool)


def place_text(place: Any, option: str | None = None) -> str:
    """Return a value of the swept option as text."""
    if option == STATE:
        return memory(place)
    return f"{place:,}" if isinstance(place, int) else str(place)


def sweep(board: Leaderboard, option: str | None) -> list[Table]:
    """Return the table of scores by the value of an option, if one is swept."""
    points = sweep_points(board, option)
    title = f"Test score by {option}, {board.title}"
    return _table(f"{board.title}-sweep", title, points, ABOUT, option)


def scores_by_length(board: Leaderboard, evaluations: Sequence[CrossEvaluation]) -> list[Table]:
    """Return the table of scores at other lengths than that of the training, if there are any."""
    title = f"Test score by length of the evaluation, {board.title}"
    return _table(f"{board.title}-lengths", title, length_points(board, evaluations), LENGTHS)


def _table(
    name: str, title: str, points: Sequence[SweepPoint], about: str, option: str | None = None
) -> list[Table]:
    """Return a table with a column for each value; a row has one group and one row of it."""
    columns = [
        Column("Task", "text", value=lambda x: x[0].group),
        Column("Mechanism", "text", value=lambda x: mechanism_entry(x[0].row)),
        *(
            Column(place_text(x, option), "score", value=partial(_entry, place=x))
            for x in places_of(points)
        ),
    ]
    lines = [line for _, line in group_runs(points, lambda x: (x.group, x.row))]
    return [make_table(name, title, columns, lines, about=about)] if points else []


def _entry(line: Sequence[SweepPoint], place: Number) -> Entry:
    """Return the mean over seeds at a value; below, the number of seeds."""
    scores = [x.score for x in line if x.place == place]
    detail = count(len(scores), "seed") if scores else ""
    return score_entry(mean(scores) if scores else None, line[0].metric, detail)
