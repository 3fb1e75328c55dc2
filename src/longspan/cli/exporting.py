"""`longspan export`: a run as a folder for the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.common import Data, Json, make_paths, print_json, print_text
from longspan.cli.plugins import Cache, Imports


def export(
    record: Annotated[Path, typer.Argument(help="Result file of `arena` or `train`.")],
    output: Annotated[Path, typer.Option(help="Folder to create.")],
    license: Annotated[
        str | None,
        typer.Option(
            help="License of the model, such as apache-2.0.", show_default="the data's, if known"
        ),
    ] = None,
    cache: Cache = None,
    data: Data = None,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Write the saved model of a run as a folder for the Hugging Face hub.

    The folder has the weights, the code that loads them where longspan is not installed, the
    tokenizer of a task of texts, and a model card with the scores. `hf upload NAME FOLDER` uploads
    it.
    """
    from longspan.publishing import export_run

    folder = export_run(
        record, output, make_paths(Path("runs"), cache, data, "cpu"), license=license
    )
    files = sorted(path.name for path in folder.iterdir())
    if as_json:
        print_json({"output": str(folder), "files": files})
    else:
        print_text(f"{len(files)} files in {folder}; upload them with: hf upload NAME {folder}")
