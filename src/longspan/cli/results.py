"""`longspan results`: list, check, compare and repeat records."""

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from longspan.cli.activity import Activity
from longspan.cli.common import (
    console_callback,
    err,
    print_json,
    print_table,
    print_text,
)
from longspan.cli.options import RUNS, App, CacheOptions, DataOptions, Json, Record, argument, field
from longspan.errors import OptionError
from longspan.metrics import get_metric
from longspan.report.numbers import count
from longspan.results.commands import run_command

if TYPE_CHECKING:
    from longspan.arena.rerun import Rerun
    from longspan.results import Result
    from longspan.results.differences import RunDifference
    from longspan.validation import Finding, Severity, Validation

app = App("results", help="List, check, compare and repeat records.")

STYLES: "dict[Severity, str]" = {"error": "red", "warning": "yellow", "note": "cyan"}
_MAX_WARNINGS = 5  # warnings and notes listed one by one if they are equal but for their file
Folders = Annotated[list[Path] | None, argument("Folders of results.", str(RUNS))]
Source = Annotated[str, argument("FOLDER, git REVISION or REVISION:FOLDER.")]


@app.command(name="list")
def list_(
    folders: Folders = None,
    as_json: Json = False,
) -> None:
    """List records."""
    from longspan.results import load_results

    records = load_results(folders or [RUNS])
    rows = [_row(record) for record in records]
    if as_json:
        print_json(rows)
        return
    names = ("protocol", "task", "row", "seed", "test", "config_hash", "date", "code")
    shown = [
        {
            **row,
            "row": _label(x.row_name, x.changes),
            "test": _format_outcome(row["test"], row["metric"]),
            "date": row["date"][:10],
        }
        for x, row in zip(records, rows, strict=True)
    ]
    headings = [name.removeprefix("config_") for name in names]
    cells = ([_printable(row[name]) for name in names] for row in shown)
    print_table(headings, cells, whole=("hash", "date"))


def _label(row_name: str, overrides: dict[str, Any]) -> str:
    """Return the name of a row, and what its run overrides."""
    from longspan.report.leaderboard.grouping import list_values

    return f"{row_name} ({list_values(overrides)})" if overrides else row_name


def _row(record: "Result") -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in ("protocol", "task", "mechanism")},
        "row_name": record.row_name,
        "seed": record.seed,
        "metric": record.metric,
        "test": record.score() if "test" in record.scores else None,
        **{name: getattr(record, name) for name in ("config_hash", "overrides", "date")},
        "command": run_command(record),
        "code": record.code,
    }


@app.command()
def check(
    paths: Annotated[list[Path] | None, argument("Records, or folders of them.", str(RUNS))] = None,
    contribution: Path | None = field(
        "Folder of records for a leaderboard: recipe, three seeds, baseline and code, too."
    ),
    as_json: Json = False,
) -> None:
    """Check records against themselves, their protocol and each other.

    The exit code is 1 if there are errors. A warning is a reason for doubt; a note names what a
    reader cannot check or get from the repository, such as the file of a mechanism.
    """
    from longspan.validation import validate_contribution, validate_records

    CacheOptions().run_paths()
    if contribution is not None and paths:
        raise OptionError(
            f"--contribution checks its own folder, got {paths[0]} beside it; give one of them"
        )
    with Activity(err, "checking the records"):
        if contribution is None:
            validation = validate_records(paths or [RUNS])
        else:
            validation = validate_contribution(contribution)
    if as_json:
        print_json(dataclasses.asdict(validation))
    else:
        _print_validation(validation)
    if validation.of("error"):
        raise typer.Exit(1)


def _print_validation(validation: "Validation") -> None:
    groups: dict[Finding, list[Finding]] = defaultdict(list)
    for finding in validation.findings:
        groups[dataclasses.replace(finding, file="")].append(finding)
    for finding, group in groups.items():
        if finding.severity != "error" and len(group) > _MAX_WARNINGS:
            group = [dataclasses.replace(finding, file=f"{len(group)} files")]
        for each in group:
            text = Text.assemble((f"{each.severity}: ", STYLES[each.severity]), _printable(each))
            print_text(text)
    numbers = {"result": validation.num_results, "failure": validation.num_failures}
    numbers |= {severity: len(validation.of(severity)) for severity in STYLES}
    print_text(", ".join(count(x, noun) for noun, x in numbers.items()))


@app.command()
def export(
    folders: Folders = None,
    output: Path = field("Folder of the logs, which is made.", default=Path("logs")),
    as_json: Json = False,
) -> None:
    """Write a log of Every Eval Ever for each record, in schema 0.2.2.

    https://github.com/evaleval/every_eval_ever is a shared format for results of evaluations.
    """
    from longspan.publishing import export_evaluation_logs
    from longspan.results import load_results

    paths = export_evaluation_logs(load_results(folders or [RUNS]), output)
    if as_json:
        print_json([str(path) for path in paths])
    else:
        print_text(f"{count(len(paths), 'log')} in {output}")


@app.command()
def diff(a: Source, b: Source, as_json: Json = False) -> None:
    """Show the runs that differ between two sets of records, in pairs.

    Runs of two protocols are paired by task, row and seed: diff runs/quick runs/mine. Without a
    folder, a revision has that of the other argument, else `results`.
    """
    from longspan.results.differences import diff_results, load_version

    folders = [Path(source) if Path(source).is_dir() else None for source in (b, a)]
    before, after = map(load_version, (a, b), folders)
    differences = diff_results(before, after)
    if as_json:
        rows = [{**dataclasses.asdict(x), "change": x.change} for x in differences]
        print_json({"a": a, "b": b, "differences": rows})
    elif not differences:
        print_text(f"{a} and {b} hold the same runs.")
    else:
        names = ("kind", "protocol", "task", "row", "seed", a, b, "change", "fields that differ")
        print_table(names, map(_cells, differences))


@app.command()
def rerun(record: Record, folders: DataOptions, as_json: Json = False) -> None:
    """Run a record again on the CPU and compare the answers, example by example.

    Configuration, seed and number of threads are those of the record; nothing is written. The exit
    code is 0 if every answer and the score are equal, 1 if not.
    """
    from longspan.arena.rerun import rerun as run_again

    paths = folders.run_paths(device="cpu")
    with console_callback() as callback:
        comparison = run_again(record, paths, callback)
    if as_json:
        print_json(_rerun_as_json(comparison))
    else:
        _print_rerun(comparison)
    if not comparison.is_equal:
        raise typer.Exit(1)


def _rerun_as_json(comparison: "Rerun") -> dict[str, Any]:
    names = ("is_equal", "num_answers", "num_different", "first_different_step", "environment")
    scores = {"before": comparison.before.score(), "after": comparison.after.score()}
    return {**{name: getattr(comparison, name) for name in names}, **scores}


def _print_rerun(comparison: "Rerun") -> None:
    main = comparison.before.main
    before, after = (main.format(run.score()) for run in (comparison.before, comparison.after))
    answers = "no answers are recorded"
    if comparison.num_answers is not None:
        number = f"{comparison.num_different:,}" if comparison.num_different else "none"
        answers = f"{number} of {comparison.num_answers:,} answers differ"
    if comparison.is_equal:
        print_text(f"equal: test {after}, {answers}")
    else:
        print_text(f"different: {answers}; test {before} in the record, {after} now")
    if comparison.first_different_step is not None:
        print_text(f"losses differ from step {comparison.first_different_step:,} on")
    for name, (one, two) in comparison.environment.items():
        print_text(f"{_printable(name)}: {_printable(one)} in the record, {_printable(two)} now")
    if not comparison.environment:
        print_text("same versions, device, commit and source files")


def _cells(difference: "RunDifference") -> list[str]:
    label = _label(difference.row_name, difference.overrides)
    run = (difference.protocol, difference.task, label, difference.seed)
    scores = (_format_outcome(x, difference.metric) for x in (difference.before, difference.after))
    change = ""
    if difference.change is not None and difference.metric is not None:
        main = get_metric(difference.metric)
        change = f"{main.shown(difference.change):+.{main.decimals}f}"
    fields = [f"{name}: {x} to {y}" for name, (x, y) in difference.fields.items()]
    fields += ["data"] if difference.is_other_data else []
    return [_printable(x) for x in (difference.kind, *run, *scores, change, "; ".join(fields))]


def _format_outcome(outcome: float | str | None, metric: str | None) -> str:
    """Return a score with its unit, the kind of a failure, or a dash."""
    if isinstance(outcome, str):
        return f"failed ({outcome})"
    return "–" if outcome is None or metric is None else get_metric(metric).format(outcome)


def _printable(value: object) -> str:
    """Escape control characters, which a foreign file could send to the terminal."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(value))
