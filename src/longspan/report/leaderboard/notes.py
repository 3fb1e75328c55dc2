"""Notes on rows: departures from the protocol, size, search, alarms, failures."""

from collections.abc import Mapping, Sequence

from longspan.report.leaderboard.grouping import (
    Data,
    Group,
    data_of,
    first_run,
    group_runs,
    hardware_of,
    list_values,
)
from longspan.report.numbers import count
from longspan.results import (
    BASELINE,
    PARAMETER_TOLERANCE,
    ROW,
    VARIANT,
    Failure,
    Result,
    parameter_excess,
)


def notes_of(
    group: Group, places: Mapping[Data, Data], *, is_ranked: bool, several_devices: bool
) -> list[str]:
    """Return the notes on a row, as sentences; the table names overrides that its rows share.

    Args:
        group: runs of the row.
        places: data of the column of each data set, as `place_data` returns them.
        is_ranked: whether the row is ranked.
        several_devices: whether the costs of the leaderboard are of several devices.
    """
    runs, failures = group
    notes = []
    first = first_run(group)
    if first.reference is not None:
        notes.append("Not ranked: a reference row of the protocol, not a mechanism.")
    notes += _other_data(runs, places)
    overrides = {name: x for name, x in first.overrides.items() if name not in (ROW, VARIANT)}
    if overrides and not is_ranked:
        notes.append(f"Not ranked; it overrides the protocol: {list_values(overrides)}.")
    notes += _evaluation(runs)
    if any(run.selected_on == "test" for run in runs):
        notes.append("Checkpoint selected on test: the score is optimistic.")
    if several_devices and runs:
        devices = "; ".join(sorted({hardware_of(run) for run in runs}))
        notes.append(f"Cost measured on {devices}; compare it with rows of the same hardware only.")
    excess = largest_excess(runs)
    if excess is not None and abs(excess) > PARAMETER_TOLERANCE:
        sign = "more" if excess > 0 else "fewer"
        notes.append(
            f"{100 * abs(excess):.1f} % {sign} parameters than {BASELINE}; "
            f"{100 * PARAMETER_TOLERANCE:.0f} % is allowed."
        )
    notes += [_tuning(part) for _, part in group_runs(runs, lambda run: run.task) if part[0].tuning]
    notes += _several_codes(runs)
    notes += _alarms(runs)
    notes += [_failure(one) for one in failures]
    return notes


def _other_data(runs: Sequence[Result], places: Mapping[Data, Data]) -> list[str]:
    """Return the tasks that a reference row reads with options of its own."""
    unlike = [run for run in runs if places[data_of(run)] != data_of(run)]
    tasks = ", ".join(sorted({f"{run.task} ({run.length:,} tokens)" for run in unlike}))
    if not tasks:
        return []
    return [f"Reads other data than the mechanisms, with its own task options: {tasks}."]


def largest_excess(runs: Sequence[Result]) -> float | None:
    """Return the share of parameters beyond those of the baseline, where it is largest."""
    found = [parameter_excess(run) for run in runs]
    return max((share for share in found if share is not None), key=abs, default=None)


def _evaluation(runs: Sequence[Result]) -> list[str]:
    """Return the options of the mechanism in evaluation that differ from those of training."""
    texts = dict.fromkeys(list_values(run.config.evaluation_changes) for run in runs)
    return [f"Evaluated with other options than trained: {x}." for x in texts if x]


def _tuning(runs: Sequence[Result]) -> str:
    run = runs[0]
    assert run.tuning is not None
    chosen = list_values(run.tuning.chosen) or "the protocol's own configuration"
    rule = run.tuning.rule.partition(":")[0]
    trials = count(len(run.tuning.trials), "trial")
    return f"Tuned on validation of {run.task}: {chosen}, selected from {trials} by rule {rule}."


def _several_codes(runs: Sequence[Result]) -> list[str]:
    """Return the runs that one version of the code began and another one ended."""
    found = [f"{run.task}, seed {run.seed} ({run.code})" for run in runs if run.earlier_code]
    return [f"Trained by several versions of the code: {'; '.join(found)}."] if found else []


def _alarms(runs: Sequence[Result]) -> list[str]:
    found = [
        f"{alarm.kind} on {run.task} (seed {run.seed}, step {alarm.step})"
        for run in runs
        for alarm in run.alarms
    ]
    return [f"Alarms: {', '.join(found)}."] if found else []


def _failure(one: Failure) -> str:
    step = "" if one.step is None else f" at step {one.step}"
    reason = one.reason.rstrip(".")
    return f"Failed ({one.kind}{step}) on {one.task}, seed {one.seed}: {reason}."
