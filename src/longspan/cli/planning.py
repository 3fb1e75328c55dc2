"""Output of `--dry-run`: the runs and their cost."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from longspan.cli.activity import Activity
from longspan.cli.common import err, print_json, print_table, print_text
from longspan.report.numbers import duration, memory
from longspan.results import (
    PARAMETER_TOLERANCE,
    exceeds_parameter_tolerance,
    parameter_excess,
)
from longspan.wording import counted

if TYPE_CHECKING:
    from longspan.arena import Experiment, RunPaths
    from longspan.arena.plan import PlannedRun, Totals

SIZES = ("steps", "params", "of full", "GF fwd", "TF train", "time")
COLUMNS = ("run", "task", "state", *SIZES, "from", "memory")
NUMBERS = (*SIZES, "memory")


def print_plan(
    groups: "Sequence[tuple[Sequence[Experiment], RunPaths]]", *, measure: bool, as_json: bool
) -> None:
    """Print one row for each run, and the cost of what remains.

    Args:
        groups: runs and their paths: those of trials are not those of the runs they start from.
        measure: time steps and count their memory.
        as_json: print JSON.
    """
    from longspan.arena.plan import plan, sum_up

    rows = []
    count = sum(len(experiments) for experiments, _ in groups)
    with Activity(err, "planning the runs") as status:
        for experiments, paths in groups:
            for row in plan(experiments, paths, measure=measure, on_build=status.on_build):
                rows.append(row)
                status.update(f"planning the runs: {len(rows)} of {count}")
    totals = sum_up(rows)
    if as_json:
        print_json(
            {
                "runs": [{**dataclasses.asdict(x), "excess": parameter_excess(x)} for x in rows],
                "totals": dataclasses.asdict(totals),
            }
        )
        return
    print_table(COLUMNS, map(_cells, rows), right=NUMBERS, whole=NUMBERS)
    reasons = [f"{x.state}: {x.name} on {x.task}: {x.reason}" for x in rows if x.reason]
    for line in [*reasons, *_summary(rows, totals)]:
        print_text(line)


def _cells(row: "PlannedRun") -> list[str]:
    excess = parameter_excess(row)
    mark = " !" if exceeds_parameter_tolerance(row) else ""
    size = "" if row.size_option is None else f" ({row.size_option[0]}={row.size_option[1]})"
    state = f"step {row.done} of {row.steps}" if row.state == "interrupted" else row.state
    return [
        f"{row.row_name}, seed {row.seed}{size}",
        row.task,
        "does not fit" if row.reason is not None and row.state == "new" else state,
        f"{row.steps:,}",
        f"{row.num_parameters:,}",
        "" if excess is None else f"{1 + excess:.2f}{mark}",
        f"{row.flops / 1e9:.3g}",
        f"{row.training_flops / 1e12:.3g}",
        duration(row.seconds),
        row.seconds_from,
        "" if row.memory is None else memory(row.memory),
    ]


def _summary(rows: "Sequence[PlannedRun]", totals: "Totals") -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in totals.states.items())
    states = f" ({states})" if states else ""
    peak = "" if totals.memory is None else f", at most {memory(totals.memory)} in a step"
    lines = [
        "GF fwd: GFLOPs of one example, forward; TF train: TFLOPs of the run; "
        "memory: tensors of one training step",
        f"{counted(totals.runs, 'run|runs')}{states}; remaining: "
        f"{totals.training_flops / 1e12:.3g} TFLOPs of training, about "
        f"{duration(totals.seconds)} one after the other{peak}",
    ]
    exceeding = sorted({row.row_name for row in rows if exceeds_parameter_tolerance(row)})
    if exceeding:
        lines.append(
            f"! parameter count differs by more than {100 * PARAMETER_TOLERANCE:.0f} % from `full`:"
            f" {', '.join(exceeding)}"
        )
    if any(row.seconds_from == "FLOPs" for row in rows):
        lines.append(
            "times from FLOPs assume the rate of matrix products, a lower bound; --measure times "
            "real steps and counts memory"
        )
    return lines
