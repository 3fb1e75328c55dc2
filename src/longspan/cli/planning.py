"""What `longspan arena --dry-run` prints: runs and what they will cost."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.cli.common import err, out, print_json
from longspan.report.numbers import duration, memory
from longspan.results import PARAMETER_BUDGET, outside_parameter_budget, parameter_excess

if TYPE_CHECKING:
    from longspan.arena import Experiment, RunPaths
    from longspan.arena.plan import Planned, Totals

COLUMNS = (
    ("run", "left"),
    ("task", "left"),
    ("state", "left"),
    ("steps", "right"),
    ("params", "right"),
    ("of full", "right"),
    ("GF fwd", "right"),
    ("TF train", "right"),
    ("time", "right"),
    ("from", "left"),
    ("memory", "right"),
)


def print_plan(
    experiments: "Sequence[Experiment]", paths: "RunPaths", *, measure: bool, as_json: bool
) -> None:
    """A row for each run, and what all that is left will cost."""
    from longspan.arena.plan import plan, totals

    rows = []
    with err.status("looking at the runs") as status:
        for row in plan(experiments, paths, measure=measure):
            rows.append(row)
            status.update(f"looking at the runs: {len(rows)} of {len(experiments)}")
    whole = totals(rows)
    if as_json:
        print_json(
            {
                "runs": [{**dataclasses.asdict(x), "excess": parameter_excess(x)} for x in rows],
                "totals": dataclasses.asdict(whole),
            }
        )
        return
    grid = Grid(box=box.SIMPLE_HEAD)
    for title, side in COLUMNS:
        # Words may go on below; of a number every digit is shown.
        grid.add_column(title, justify=side, no_wrap=side == "right")  # type: ignore[arg-type]
    for row in rows:
        grid.add_row(*map(Text, _cells(row)))
    out.print(grid)
    for line in [*_refused(rows), *_summary(rows, whole)]:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _cells(row: "Planned") -> list[str]:
    excess = parameter_excess(row)
    mark = " !" if outside_parameter_budget(row) else ""
    option = "" if row.option is None else f" ({row.option[0]}={row.option[1]})"
    state = f"{row.done} of {row.steps}" if row.state == "half done" else row.state
    return [
        f"{row.mechanism}, seed {row.seed}{option}",
        row.task,
        "does not fit" if row.reason is not None and row.state == "new" else state,
        f"{row.steps:,}",
        f"{row.parameters:,}",
        "" if excess is None else f"{1 + excess:.2f}{mark}",
        f"{row.flops / 1e9:.3g}",
        f"{row.training_flops / 1e12:.3g}",
        duration(row.seconds),
        row.seconds_from,
        "" if row.memory is None else memory(row.memory),
    ]


def _refused(rows: "Sequence[Planned]") -> list[str]:
    return [f"{row.state}: {row.name} on {row.task}: {row.reason}" for row in rows if row.reason]


def _summary(rows: "Sequence[Planned]", whole: "Totals") -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in whole.states.items())
    lines = [
        "GF fwd: 10^9 operations of one example, forward; TF train: 10^12 operations of the run; "
        "memory: tensors of one training step",
        f"{whole.runs} runs ({states}); left: {whole.training_flops / 1e12:.3g} TFLOPs of "
        f"training, about {duration(whole.seconds)} on this device one after the other, at most "
        f"{memory(whole.memory)} in a step",
    ]
    outside = sorted({row.mechanism for row in rows if outside_parameter_budget(row)})
    if outside:
        lines.append(
            f"! parameters differ by more than {100 * PARAMETER_BUDGET:.0f} % from full attention's"
            f": {', '.join(outside)}"
        )
    if any(row.seconds_from == "FLOPs" for row in rows):
        lines.append(
            "times from FLOPs are those of matrix products alone, the least there can be; "
            "--measure times real steps"
        )
    return lines
