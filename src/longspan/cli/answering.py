"""`longspan answers`: answers of a saved model to the questions of its task."""

import json
from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.common import Data, Device, Json, make_paths, print_json, print_text
from longspan.cli.evaluating import BatchSize
from longspan.cli.plugins import Cache, Imports


def answers(
    record: Annotated[Path, typer.Argument(help="Result file of `arena` or `train`.")],
    output: Annotated[Path, typer.Option(help="JSON file to write.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    batch_size: BatchSize = None,
    cache: Cache = None,
    data: Data = None,
    device: Device = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Answer the questions of a split with the saved model of a run.

    The output is a file for the official evaluation of the task: SQuAD, TriviaQA, HotpotQA or
    WikiHop. That of HotpotQA has the ranked paragraphs, too, which a second stage reads
    (task.selection).
    """
    from longspan.arena.answers import answer_questions
    from longspan.files import atomic_write

    paths = make_paths(Path("runs"), cache, data, device)
    found = answer_questions(record, split, paths, batch_size)
    with atomic_write(output) as temporary:
        temporary.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    count = len(found.get("answer", found))
    if as_json:
        print_json({"output": str(output), "split": split, "questions": count})
    else:
        print_text(f"answers to {count:,} questions of {split} in {output}")
