"""The command line: `longspan arena | train | pretrain | finetune | eval | report | bench | ...`.

Heavy imports are inside the commands that need them, so help is instant.
"""

import logging
import sys
from typing import Annotated

import typer

from longspan import __version__
from longspan.cli import (
    analyzing,
    benching,
    converting,
    data,
    evaluating,
    finetuning,
    generating,
    predicting,
    protocols,
    reporting,
    results,
    running,
)
from longspan.cli.common import INTERRUPTED, LogLines, print_error, print_note, print_text
from longspan.cli.listing import print_described, print_list
from longspan.cli.options import App, Json, argument, name_protocol, option
from longspan.cli.usage import refuse_earlier_names, refuse_empty_paths, refuse_loose_pairs
from longspan.errors import LongspanError, check_name

app = App(
    help="Efficient attention mechanisms behind one interface, and an arena that compares them.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _module in {"data": data, "protocols": protocols, "results": results}.items():
    app.add_typer(_module.app, name=_name)
for _command in (
    *(running.arena, running.train, finetuning.pretrain, finetuning.finetune),
    *(evaluating.evaluate, predicting.predict, generating.generate, predicting.answers),
    *(converting.export, converting.longify, converting.convert),
    *(reporting.report, analyzing.analyze, analyzing.context, benching.bench),
):
    app.command("eval" if _command is evaluating.evaluate else None)(_command)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print_text(f"longspan {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, option("Show tracebacks.", flag="--debug")] = False,
    version: Annotated[
        bool,
        option("Print the version.", flag="--version", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    level = logging.DEBUG if debug else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", handlers=[LogLines()])
    if not debug:
        logging.getLogger("longspan.arena").setLevel(logging.INFO)
    logging.getLogger("numba").setLevel(logging.WARNING)


@app.command(name="list")
def list_(
    what: Annotated[str, argument("mechanisms, tasks or protocols.")] = "mechanisms",
    as_json: Json = False,
) -> None:
    """List mechanisms, tasks or protocols; `longspan show NAME` describes one."""
    print_list(check_name(what, ("mechanisms", "tasks", "protocols"), "list"), as_json)


@app.command()
def show(
    name: Annotated[str, argument("Mechanism, task or protocol.", callback=name_protocol)],
    as_json: Json = False,
) -> None:
    """Show one mechanism (with its attention weights on a small sample), task or protocol."""
    print_described(name, as_json)


def main() -> None:
    """Run a command; an expected error is one line on the error stream and exit code 2."""
    code: int | str | None = 0
    try:
        words = [word for word in sys.argv[1:] if word != "--debug"]
        refuse_earlier_names(words)
        refuse_loose_pairs(words)
        refuse_empty_paths(words)
        app()
    except (LongspanError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        print_error(error)
        code = 2 if isinstance(error, LongspanError) else 1
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print_note("Interrupted.", "Run the same command to resume.")
        code = end.code
    try:
        sys.stdout.flush()
    except OSError as error:
        print_error(error)
        code = code or 1
    sys.exit(code)


if __name__ == "__main__":
    main()
