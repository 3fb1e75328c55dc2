"""`longspan results`: what a folder of results holds, whether it can be believed, what changed."""

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.cli.common import Json, out, print_json, print_note
from longspan.errors import check_name

if TYPE_CHECKING:
    from longspan.checks import Checked, Rule
    from longspan.report.rows import Table
    from longspan.results import Result

app = typer.Typer(help="List and check records, and compare versions.", no_args_is_help=True)

HOME = Path("results")
NOW = "now"  # as `report.snapshots.NOW`
STYLES = {"error": "red", "warning": "yellow", "note": "dim"}
Into = Annotated[Path, typer.Option(help="Folder of results that versions are of.")]


@app.command(name="list")
def list_(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders.", show_default=str(HOME))
    ] = None,
    as_json: Json = False,
) -> None:
    """List records and snapshots."""
    from longspan.checks import printable
    from longspan.report import snapshots
    from longspan.results import load_all

    places = folders or [HOME]
    records, versions = load_all(places), [v for place in places for v in snapshots.below(place)]
    heads = [
        {
            "version": version.version,
            "date": version.date,
            "longspan": version.longspan,
            "records": len(version.records),
        }
        for version in versions
    ]
    if as_json:
        print_json({"records": [_row(record) for record in records], "snapshots": heads})
        return
    out.print(_grid(records))
    for head in heads:
        line = "snapshot {version}: {records} records, {date}, longspan {longspan}"
        out.print(Text(printable(line.format(**head))), soft_wrap=True)


@app.command()
def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Records or folders of them.", show_default=str(HOME)),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check records that others contributed: schema, protocol, completeness, plausibility.

    The exit code is 1 if there are errors; warnings are worth a look, notes tell what a record of
    an older schema lacks.
    """
    from longspan.checks import check as checked

    rules, skipped = _registered()
    done = checked(paths or [HOME], rules)
    if as_json:
        print_json(
            {
                "records": done.records,
                "failures": done.failures,
                "skipped": skipped,
                "findings": [dataclasses.asdict(finding) for finding in done.findings],
            }
        )
    else:
        _print(done, skipped)
    if done.of("error"):
        raise typer.Exit(1)


@app.command()
def changes(
    before: Annotated[str, typer.Argument(help="A version.")],
    after: Annotated[
        str, typer.Argument(help="Another, or now: the records that are there.")
    ] = NOW,
    into: Into = HOME,
    format: Annotated[str, typer.Option(help="terminal or markdown.")] = "terminal",
    as_json: Json = False,
) -> None:
    """Show what changed between two versions of the results."""
    from longspan.report import changes as comparison
    from longspan.report import render

    check_name(format, ("terminal", "markdown"), "format")
    found = comparison.changes(_version(before, into), _version(after, into))
    if as_json:
        print_json(comparison.to_json(found, before, after))
        return
    sheet = comparison.sheet(found, before, after)
    if format == "markdown":
        sys.stdout.write(render.markdown(sheet))
    else:
        out.print(render.terminal(sheet))


def freeze(version: str, folders: list[Path], into: Path) -> None:
    """Take a snapshot of records that pass the check."""
    from longspan.checks import check as checked
    from longspan.errors import DataError
    from longspan.report import snapshots

    snapshots.place(into, version)
    rules, _ = _registered()
    if errors := checked(folders, rules).of("error"):
        raise DataError(
            f"{len(errors)} errors in the records, so they are not frozen; see `longspan results "
            f"check`; the first: {errors[0]}"
        )
    made, new = snapshots.take(version, folders, into)
    what = "frozen" if new else f"as frozen {made.date}"
    print_note(
        "snapshot:", f"{snapshots.place(into, version)} ({len(made.records)} records, {what})"
    )


def _version(name: str, into: Path) -> "list[Table]":
    """The leaderboards of a version, or of the records that are there now."""
    from longspan.report import snapshots
    from longspan.report.tables import leaderboards
    from longspan.results import load_all, load_failures

    if name == NOW:
        return leaderboards(load_all([into]), load_failures([into]))
    path = snapshots.place(into, name)
    if not path.exists():
        check_name(name, [*(v.version for v in snapshots.below(into)), NOW], f"version in {into}")
    return snapshots.read(path).tables


def _registered() -> "tuple[list[Rule], str | None]":
    """The rule that needs torch, or why it is left out."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return [], "records were not compared with the registered recipes: torch is not installed"
    from longspan.arena.protocols.conformity import recipe

    return [recipe], None


def _print(done: "Checked", skipped: str | None) -> None:
    """Errors and warnings line by line; notes, which repeat themselves, by their number."""
    for finding in done.findings:
        if finding.severity != "note":
            line = Text.assemble((f"{finding.severity}: ", STYLES[finding.severity]), str(finding))
            out.print(line, soft_wrap=True, highlight=False)
    notes = Counter(
        f"{finding.field}: expected {finding.expected}, found {finding.found}; {finding.remedy}"
        for finding in done.of("note")
    )
    for note, count in notes.items():
        many = f"{count} record{'s' * (count > 1)}"
        line = Text.assemble(("note: ", STYLES["note"]), f"{many}: {note}")
        out.print(line, soft_wrap=True, highlight=False)
    if skipped:
        print_note("note:", skipped)
    counts = [f"{len(done.of(severity))} {severity}s" for severity in ("error", "warning")]
    failures = f" and {done.failures} failures" if done.failures else ""
    out.print(f"{done.records} records{failures}: {', '.join(counts)}", highlight=False)


def _row(record: "Result") -> dict[str, object]:
    test = record.scores.get("test")
    return {
        "protocol": record.protocol,
        "task": record.task,
        "mechanism": record.mechanism,
        "seed": record.seed,
        "test": test and test.accuracy,
        "configuration": record.config_hash,
        "overrides": record.overrides,
        "date": record.date,
    }


def _grid(records: "list[Result]") -> Grid:
    from longspan.checks import printable
    from longspan.report.numbers import percent

    grid = Grid(box=box.SIMPLE_HEAD)
    for name in ("protocol", "task", "mechanism", "seed", "test, %", "configuration", "date"):
        grid.add_column(name, justify="right" if name in ("seed", "test, %") else "left")
    for record in records:
        row = _row(record)
        test = record.scores.get("test")
        shown = percent(test.accuracy if test else None)
        words = [str(row[name]) for name in ("protocol", "task", "mechanism", "seed")]
        cells = [*words, shown, record.config_hash, record.date]
        grid.add_row(*(Text(printable(cell)) for cell in cells))
    return grid
