"""The command line: `longspan arena | train | pretrain | finetune | eval | report | bench | ...`.

Heavy imports are inside the commands that need them, so help is instant.
"""

import logging
import sys
from typing import Annotated

import typer

from longspan.cli import (
    analyzing,
    answering,
    benching,
    contexts,
    converting,
    evaluating,
    exporting,
    finetuning,
    generating,
    predicting,
    reporting,
    running,
)
from longspan.cli import data as data_commands
from longspan.cli import protocols as protocol_commands
from longspan.cli import results as results_commands
from longspan.cli.common import INTERRUPTED, Json, LogLines, print_error, print_note
from longspan.cli.listing import print_described, print_list
from longspan.cli.plugins import Imports, name_protocol
from longspan.errors import LongspanError, check_name

app = typer.Typer(
    help="Efficient attention mechanisms behind one interface, and an arena that compares them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_commands.app, name="data")
app.add_typer(protocol_commands.app, name="protocols")
app.add_typer(results_commands.app, name="results")
app.command()(running.arena)
app.command()(running.train)
app.command()(finetuning.pretrain)
app.command()(finetuning.finetune)
app.command(name="eval")(evaluating.evaluate)
app.command()(predicting.predict)
app.command()(generating.generate)
app.command()(answering.answers)
app.command()(exporting.export)
app.command()(converting.longify)
app.command()(converting.convert)
app.command()(reporting.report)
app.command()(analyzing.analyze)
app.command()(contexts.context)
app.command()(benching.bench)


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option(help="Show tracebacks.")] = False,
) -> None:
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", handlers=[LogLines()])
    if not debug:
        logging.getLogger("longspan.arena").setLevel(logging.INFO)
    logging.getLogger("numba").setLevel(logging.WARNING)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="mechanisms, tasks or protocols.")] = "mechanisms",
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """List mechanisms with traits and options, tasks, or protocols."""
    print_list(check_name(what, ("mechanisms", "tasks", "protocols"), "list"), as_json)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Mechanism, task or protocol.", callback=name_protocol)
    ],
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Show one mechanism (with its attention weights on a small sample), task or protocol."""
    print_described(name, as_json)


def main() -> None:
    """Run a command; an expected error is one line on the error stream and exit code 2."""
    code = _run("--debug" in sys.argv)
    try:
        sys.stdout.flush()
    except OSError as error:
        print_error(error)
        code = code or 1
    sys.exit(code)


def _run(debug: bool) -> int | str | None:
    """Run a command and return its exit code."""
    try:
        app()
    except LongspanError as error:
        if debug:
            raise
        print_error(error)
        return 2
    except OSError as error:
        if debug:
            raise
        print_error(error)
        return 1
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print_note("Interrupted.", "Run the same command to resume.")
        return end.code
    return 0


if __name__ == "__main__":
    main()
