"""`longspan pretrain | finetune`: single runs on a corpus, and from a checkpoint."""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import print_note
from longspan.cli.documents import (
    DocumentOptions,
    check_document_options,
    is_own_texts,
    run_documents,
)
from longspan.cli.importing import TextOptions, default_name, import_own
from longspan.cli.options import ChangeOptions, Json, RunOptions, Text, options, protocol_option
from longspan.cli.running import run_one
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.arena.one_run import RunChoices

RECIPE = "Protocol of the recipe, or a file, mine.toml or mine.py."
CHECKPOINT = "a run's record or directory, or a folder of save_pretrained, longify or convert."
Checkpoint = Annotated[Path, typer.Argument(help=f"{CHECKPOINT[0].upper()}{CHECKPOINT[1:]}")]


@options
class StartOptions:
    """Seed, and changes to a checkpoint that a run starts from."""

    extend_positions: Annotated[
        Text,
        typer.Option(
            help="How learned positions of the checkpoint are extended to a longer task.length: "
            "tile, keep or interpolate, as `longspan longify` does.",
            show_default="a longer task is refused",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of new weights, batch order and dropout.")] = 0


def pretrain(
    corpus: Annotated[
        str, typer.Argument(help="Imported corpus, `longspan data import corpus PATH`.")
    ],
    start_options: StartOptions,
    changes: ChangeOptions,
    folders: RunOptions,
    mechanism: Annotated[
        Text,
        typer.Option(
            help="Mechanism, `longspan list mechanisms`.",
            show_default="full; with --start: that of the checkpoint",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help=f"Checkpoint to start from: {CHECKPOINT}", show_default="random initialization"
        ),
    ] = None,
    protocol: Annotated[Text, protocol_option(RECIPE, "pretrain")] = None,
    as_json: Json = False,
) -> None:
    """Pretrain a language model on a corpus; the same command resumes the run."""
    from longspan.arena.one_run import pretraining_experiment

    paths = folders.run_paths()
    choices = _choices(mechanism, protocol, start_options, changes)
    run_one([pretraining_experiment(corpus, start, choices)], paths, changes, as_json)


def finetune(
    texts: TextOptions,
    documents: DocumentOptions,
    start_options: StartOptions,
    changes: ChangeOptions,
    folders: RunOptions,
    checkpoint: Annotated[
        Text,
        typer.Argument(
            help=f"{CHECKPOINT[0].upper()}{CHECKPOINT[1:-1]}; or a folder or name of transformers.",
            show_default="a new model",
        ),
    ] = None,
    start: Annotated[Text, typer.Option(help="As CHECKPOINT.", show_default="a new model")] = None,
    task: Annotated[
        Text, typer.Option(help="Task; `longspan list tasks`.", show_default="texts of --data")
    ] = None,
    data: Annotated[
        Text,
        typer.Option(
            help="Own texts, as `longspan data import` takes them; with --task: folder of source "
            "files.",
        ),
    ] = None,
    mechanism: Annotated[
        Text,
        typer.Option(
            help="Mechanism, `longspan list mechanisms`.",
            show_default="that of the checkpoint",
        ),
    ] = None,
    protocol: Annotated[Text, protocol_option(RECIPE, "finetune; own without a checkpoint")] = None,
    as_json: Json = False,
) -> None:
    """Finetune a checkpoint on a task, or train on texts of one's own; repeat it to resume.

    `finetune --data FILE` imports the file as a task named after it, trains a new model on it, and
    scores it beside TF-IDF; with a CHECKPOINT it starts from that. One of transformers is
    converted, and extended if the texts are longer. With --summary COLUMN it learns to write
    summaries. Texts are encoded with the checkpoint's tokenizer.
    """
    from longspan.arena.one_run import finetuning_experiment

    paths = folders.run_paths(data=Path(data) if task and data else None)
    choices = _choices(mechanism, protocol, start_options, changes)
    is_own = is_own_texts(task) if task else texts.summary is None
    source = _check_source(checkpoint, start, is_own=is_own)
    check_document_options(documents, texts, is_own=is_own)
    with _open_task(task, data, texts, paths, is_plan=changes.is_plan) as (name, paths):
        if is_own_texts(name):
            run_documents(name, source, choices, documents, paths, changes, as_json)
        else:
            experiment = finetuning_experiment(source, name, choices)
            run_one([experiment], paths, changes, as_json)
    if changes.is_plan and not task:
        _note_next(source, changes)


def _note_next(source: str | None, changes: ChangeOptions) -> None:
    """Name the command that runs what was planned."""
    flags = {"--dry-run": changes.dry_run, "--measure": changes.measure}
    planning = " and ".join(flag for flag, is_set in flags.items() if is_set)
    command = "longspan finetune" + (f" {source}" if source else "")
    print_note("next:", f"{command}, the same command without {planning}")


def _check_source(checkpoint: str | None, start: str | None, *, is_own: bool) -> str | None:
    """Return the checkpoint to start from, checked before anything is imported; None: none.

    Raises:
        OptionError: there are two, or a task other than own texts with labels has none.
        DataError: there is no such checkpoint.
    """
    from longspan.arena.document_start import is_foreign
    from longspan.arena.saved_checkpoint import open_checkpoint

    if checkpoint and start:
        raise OptionError(f"{checkpoint} and --start {start} are two checkpoints; omit one")
    source = checkpoint or start
    if source is None and not is_own:
        raise OptionError(
            "finetune takes the CHECKPOINT to start from, but for texts with labels; to train a "
            "new model: longspan train MECHANISM TASK"
        )
    if source is not None and not (is_own and is_foreign(source)):
        open_checkpoint(source)
    return source


@contextlib.contextmanager
def _open_task(
    task: str | None,
    data: str | None,
    options: TextOptions,
    paths: "RunPaths",
    *,
    is_plan: bool,
) -> Iterator[tuple[str, "RunPaths"]]:
    """Yield the name of the task and the paths; without a task, texts of one's own are imported.

    Where runs are planned alone, the cache is a temporary one.

    Raises:
        OptionError: there are none, a column is not named, or options of texts are given to a task.
        DataError: the file is unusable.
    """
    from longspan.tasks import TASKS

    if task is not None:
        options.refuse(task)
        yield task, paths
        return
    if data is None:
        raise OptionError("finetune takes --task TASK, or --data FILE with the columns of texts")
    kind = "texts" if options.summary is None else "summaries"
    if not is_plan:
        yield _import(kind, data, options, paths.cache), paths
        return
    with _temporary_cache(data, options, paths) as cache:
        registered = dict(TASKS)
        name = _import(kind, data, options, cache)
        for other, cls in registered.items():  # one of them may have trained the checkpoint
            TASKS.setdefault(other, cls)
        yield name, dataclasses.replace(paths, cache=cache)


def _import(kind: str, data: str, options: TextOptions, cache: Path) -> str:
    name = import_own(kind, [data], options, cache)
    assert name is not None
    return name


@contextlib.contextmanager
def _temporary_cache(data: str, options: TextOptions, paths: "RunPaths") -> Iterator[Path]:
    """Yield a cache that is removed afterwards; it knows the earlier import of the name.

    So another import under the name is refused as in the cache of the command.

    Raises:
        OptionError: the name is invalid.
    """
    from longspan.arena.protocols.files import register_imports
    from longspan.data.imports.stored import check_task_name
    from longspan.data.imports.texts import TextsDescription

    name = options.name or default_name(data)
    check_task_name(name)
    with tempfile.TemporaryDirectory(prefix="longspan-") as folder:
        cache = Path(folder)
        if (earlier := TextsDescription.path(paths.cache, name)).is_dir():
            rows = shutil.ignore_patterns("*.parquet")  # may be large; compared by their sha256
            shutil.copytree(earlier, TextsDescription.path(cache, name), ignore=rows)
        try:
            yield cache
        finally:
            register_imports(paths.cache)


def _choices(
    mechanism: str | None, protocol: str | None, start: StartOptions, changes: ChangeOptions
) -> "RunChoices":
    from longspan.arena.one_run import RunChoices

    return RunChoices(
        mechanism=mechanism,
        protocol=protocol,
        changes=changes.changes,
        budget=changes.budget,
        **vars(start),
    )
