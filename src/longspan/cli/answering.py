"""`longspan answers`: answers of a saved model to the examples of its task."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.common import Data, Device, Json, make_paths, print_json, print_text
from longspan.cli.evaluating import BatchSize
from longspan.cli.plugins import Cache, Imports
from longspan.wording import counted


def answers(
    record: Annotated[Path, typer.Argument(help="Result file of `arena` or `train`.")],
    output: Annotated[Path, typer.Option(help="File to write: JSON, or columns of CoNLL-2012.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    batch_size: BatchSize = None,
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Answer the questions of a split, or find its coreference, with the saved model of a run.

    The output is a file for the official evaluation of the task: SQuAD, TriviaQA, HotpotQA,
    WikiHop, or the reference scorer of CoNLL-2012. That of HotpotQA has the ranked paragraphs, too,
    which a second stage reads (task.selection).
    """
    from longspan.arena.answers import write_answers

    paths = make_paths(Path("runs"), cache, data, device)
    count, unit = write_answers(record, split, paths, output, batch_size)
    if as_json:
        print_json({"output": str(output), "split": split, f"{unit}s": count})
    else:
        answered = counted(count, f"{unit}|{unit}s")
        print_text(f"answers to {answered} of {split} in {output}")
