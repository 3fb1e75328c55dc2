"""`longspan pretrain | finetune`: single runs on a corpus, and from a checkpoint."""

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longspan.cli.common import (
    AcceptChanges,
    BudgetText,
    Changes,
    Device,
    DryRun,
    Json,
    Measure,
    Parallel,
    Runs,
    make_paths,
    parse_changes,
)
from longspan.cli.import_options import TextOptions, takes_options
from longspan.cli.importing import default_name, import_own
from longspan.cli.plugins import Cache, Imports, name_protocol
from longspan.cli.running import Planning, parse_budget_text, run_one
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.arena.one_run import RunChoices

Seed = Annotated[int, typer.Option(help="Seed of new weights, batch order and dropout.")]
PretrainProtocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Protocol of the recipe, or a file, mine.toml or mine.py.",
        callback=name_protocol,
        show_default="pretrain",
    ),
]
FinetuneProtocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        help="Protocol of the recipe, or a file, mine.toml or mine.py.",
        callback=name_protocol,
        show_default="finetune",
    ),
]

Corpus = Annotated[str, typer.Argument(help="Imported corpus, `longspan data import corpus PATH`.")]
CHECKPOINT = "a run's record or directory, or a folder of save_pretrained, longify or convert."
Start = Annotated[
    Path | None,
    typer.Option(help=f"Checkpoint to start from: {CHECKPOINT}", show_default="drawn weights"),
]
Checkpoint = Annotated[Path, typer.Argument(help=f"{CHECKPOINT[0].upper()}{CHECKPOINT[1:]}")]
PretrainMechanism = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        help="Mechanism, `longspan list mechanisms`.",
        show_default="full; with --start: that of the checkpoint",
    ),
]
FinetuneMechanism = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        help="Mechanism with the same weights, `longspan list mechanisms`.",
        show_default="that of the checkpoint",
    ),
]
ExtendPositions = Annotated[
    str | None,
    typer.Option(
        "--extend-positions",
        help="How learned positions of the checkpoint are extended to a longer task.length: tile, "
        "keep or interpolate, as `longspan longify` does.",
        show_default="a longer task is refused",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(help="Task; `longspan list tasks`.", show_default="texts of --data"),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Own texts, as `longspan data import` takes them; with --task: folder of source "
        "files.",
    ),
]


def pretrain(
    corpus: Corpus,
    mechanism: PretrainMechanism = None,
    start: Start = None,
    extend_positions: ExtendPositions = None,
    protocol: PretrainProtocol = None,
    seed: Seed = 0,
    set_: Changes = None,
    budget: BudgetText = None,
    dry_run: DryRun = False,
    measure: Measure = False,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    device: Device = None,
    parallel: Parallel = None,
    accept_changes: AcceptChanges = False,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Pretrain a language model on a corpus; the same command resumes the run."""
    from longspan.arena.one_run import pretraining_experiment

    paths = make_paths(runs, cache, None, device, parallel, accept_changes=accept_changes)
    choices = _choices(mechanism, protocol, seed, set_, budget, extend_positions)
    experiment = pretraining_experiment(corpus, start, choices)
    run_one([experiment], paths, Planning(dry_run, measure), as_json)


@takes_options(TextOptions)
def finetune(
    checkpoint: Checkpoint,
    options: TextOptions,
    task: Task = None,
    data: Data = None,
    mechanism: FinetuneMechanism = None,
    extend_positions: ExtendPositions = None,
    protocol: FinetuneProtocol = None,
    seed: Seed = 0,
    set_: Changes = None,
    budget: BudgetText = None,
    dry_run: DryRun = False,
    measure: Measure = False,
    runs: Runs = Path("runs"),
    cache: Cache = None,
    device: Device = None,
    parallel: Parallel = None,
    accept_changes: AcceptChanges = False,
    imports: Imports = None,
    as_json: Json = False,
) -> None:
    """Finetune a checkpoint on a task, or on texts of one's own; the same command resumes the run.

    `finetune CHECKPOINT --data FILE --text COLUMN --label COLUMN` imports the file as a task named
    after it, and trains on it; with --summary COLUMN in place of --label, to write summaries.
    Texts are encoded with the checkpoint's tokenizer.
    """
    from longspan.arena.given_checkpoint import open_checkpoint
    from longspan.arena.one_run import finetuning_experiment

    folder = Path(data) if task and data else None
    paths = make_paths(runs, cache, folder, device, parallel, accept_changes=accept_changes)
    given = open_checkpoint(checkpoint)  # before anything is imported
    choices = _choices(mechanism, protocol, seed, set_, budget, extend_positions)
    planning = Planning(dry_run, measure)
    with _chosen_task(task, data, options, paths, planning) as (chosen, paths):
        experiment = finetuning_experiment(given, chosen, choices)
        run_one([experiment], paths, planning, as_json)


@contextlib.contextmanager
def _chosen_task(
    task: str | None,
    data: str | None,
    options: TextOptions,
    paths: "RunPaths",
    planning: Planning,
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
    if not any(planning):
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
    from longspan.arena.protocols.own import register_imports
    from longspan.data.imports.stored import check_task_name
    from longspan.data.imports.texts import TEXTS

    name = options.name or default_name(data)
    check_task_name(name)
    with tempfile.TemporaryDirectory(prefix="longspan-") as folder:
        cache = Path(folder)
        if (earlier := TEXTS.path(paths.cache, name)).is_dir():
            rows = shutil.ignore_patterns("*.parquet")  # may be large; compared by their sha256
            shutil.copytree(earlier, TEXTS.path(cache, name), ignore=rows)
        try:
            yield cache
        finally:
            register_imports(paths.cache)


def _choices(
    mechanism: str | None,
    protocol: str | None,
    seed: int,
    changes: list[str] | None,
    budget: str | None,
    extend_positions: str | None,
) -> "RunChoices":
    from longspan.arena.one_run import RunChoices

    return RunChoices(
        mechanism=mechanism,
        protocol=protocol,
        seed=seed,
        changes=parse_changes(changes),
        budget=parse_budget_text(budget),
        extend_positions=extend_positions,
    )
