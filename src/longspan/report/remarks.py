"""What must be said of a row beside its scores: departures, size, tuning, alarms, failures."""

from collections.abc import Sequence
from typing import Any

from longspan.report.grouping import Group, first_of, grouped, hardware, listed
from longspan.report.numbers import points
from longspan.results import BASELINE, PARAMETER_BUDGET, Failure, Result, parameter_excess


def remarks(group: Group, several_devices: bool) -> list[str]:
    """Sentences for the notes of a table."""
    runs, failures = group
    notes = []
    first = first_of(group)
    if first.overrides:
        notes.append(f"Departs from the protocol, so not ranked: {listed(first.overrides)}.")
    if several_devices and runs:
        devices = "; ".join(sorted({hardware(run) for run in runs}))
        notes.append(f"Cost measured on {devices}: compare it only with rows that say the same.")
    beyond = excess(runs)
    if beyond is not None and abs(beyond) > PARAMETER_BUDGET:
        notes.append(
            f"Parameters {points(100 * beyond)} % of those with {BASELINE}: outside the budget of "
            f"{100 * PARAMETER_BUDGET:.0f} %."
        )
    notes += [_tuned(part) for _, part in grouped(runs, lambda run: run.task) if part[0].tuning]
    notes += _alarmed(runs)
    notes += [_failed(one) for one in failures]
    return notes


def excess(runs: Sequence[Result]) -> float | None:
    """Parameters beyond those with the baseline, as a share, where they differ most."""
    found = [parameter_excess(run) for run in runs]
    known = [share for share in found if share is not None]
    return max(known, key=abs, default=None)


def _tuned(runs: Sequence[Result]) -> str:
    """How the recipe of a task was chosen."""
    run = runs[0]
    tuning: dict[str, Any] = run.tuning or {}
    chosen, trials = tuning.get("chosen"), tuning.get("trials")
    values = listed(chosen) if isinstance(chosen, dict) and chosen else "the recipe as it is"
    number = len(trials) if isinstance(trials, list) else "an unknown number of"
    rule = str(tuning.get("rule", "an unnamed rule")).partition(":")[0]
    return f"Tuned on validation of {run.task}: {values}, of {number} trials by the rule {rule}."


def _alarmed(runs: Sequence[Result]) -> list[str]:
    told = [
        f"{alarm.kind} on {run.task} (seed {run.seed}, step {alarm.step})"
        for run in runs
        for alarm in run.alarms
    ]
    return [f"Alarms: {', '.join(told)}."] if told else []


def _failed(one: Failure) -> str:
    where = f"{one.task}, seed {one.seed}"
    step = "" if one.step is None else f" at step {one.step}"
    return f"Failed ({one.kind}{step}) on {where}: {one.reason.rstrip('.')}."
