"""`longspan pretrain | finetune`: single runs on a corpus, and from a checkpoint."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from longspan.cli.documents import (
    DocumentOptions,
    check_document_options,
    find_imported,
    is_own_texts,
    run_documents,
)
from longspan.cli.importing import Kind, TextOptions, import_files
from longspan.cli.options import (
    ChangeOptions,
    Json,
    RunOptions,
    Text,
    argument,
    field,
    name_protocol,
    options,
)
from longspan.cli.running import run_one
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.arena.one_run import RunChoices

RECIPE = "Protocol of the recipe, or a file, mine.toml or mine.py."
CHECKPOINT = "a run's record or directory, or a folder of save_pretrained, longify or convert."
Checkpoint = Annotated[Path, argument(f"{CHECKPOINT[0].upper()}{CHECKPOINT[1:]}")]


@options
class StartOptions:
    """Seed, and changes to a checkpoint that a run starts from."""

    extend_positions: Text = field(
        "How learned positions of the checkpoint are extended to a longer task.length: "
        "tile, keep or interpolate, as `longspan longify` does.",
        "a longer task is refused",
    )
    seed: int = field("Seed of new weights, batch order and dropout.", default=0)


def pretrain(
    start: Annotated[
        str,
        argument(
            "Mechanism, `longspan list mechanisms`, of a model with random weights; or a "
            f"checkpoint: {CHECKPOINT}"
        ),
    ],
    corpus: Annotated[str, argument("Imported corpus, `longspan data import corpus PATH`.")],
    start_options: StartOptions,
    changes: ChangeOptions,
    folders: RunOptions,
    mechanism: Text = field(
        "Mechanism with the weights of the checkpoint, `longspan list mechanisms`.",
        "that of the checkpoint",
    ),
    protocol: Text = field(RECIPE, "pretrain", callback=name_protocol),
    as_json: Json = False,
) -> None:
    """Pretrain a language model on a corpus; the same command resumes the run."""
    from longspan.arena import get
    from longspan.arena.one_run import pretraining_experiment

    paths = folders.run_paths()
    checkpoint = None
    if start in (rows := get(protocol or "pretrain").row_names):
        if mechanism is not None:
            raise OptionError(
                f"--mechanism replaces that of a checkpoint, got the mechanism {start} to start "
                "with; omit --mechanism"
            )
        mechanism = start
    else:
        if not Path(start).exists():
            check_name(start, rows, "mechanism or checkpoint")
        checkpoint = start
    choices = _choices(mechanism, protocol, start_options, changes)
    run_one([pretraining_experiment(corpus, checkpoint, choices)], paths, changes, as_json)


def finetune(
    texts: TextOptions,
    documents: DocumentOptions,
    start_options: StartOptions,
    changes: ChangeOptions,
    folders: RunOptions,
    checkpoint: Annotated[
        Text,
        argument(
            f"{CHECKPOINT[0].upper()}{CHECKPOINT[1:-1]}; or a folder or name of transformers.",
            "a new model",
        ),
    ] = None,
    task: Annotated[Text, argument("Task; `longspan list tasks`.", "texts of --data")] = None,
    data: Text = field(
        "Own texts, as `longspan data import` takes them; with TASK: folder of source files."
    ),
    mechanism: Text = field(
        "Mechanism, `longspan list mechanisms`; it takes the weights of a checkpoint.",
        "that of the checkpoint; of a new model local",
    ),
    protocol: Text = field(RECIPE, "finetune; own without a checkpoint", callback=name_protocol),
    as_json: Json = False,
) -> None:
    """Finetune a checkpoint on a task, or train on texts of one's own; repeat it to resume.

    `finetune --data FILE` imports the file as a task named after it, trains a new model on it, and
    scores it beside TF-IDF; with a CHECKPOINT it starts from that. One of transformers is
    converted, and extended if the texts are longer. With --summary COLUMN it learns to write
    summaries. Texts are encoded with the checkpoint's tokenizer.
    """
    from longspan.arena.documents.start import open_start
    from longspan.arena.one_run import choices_on, finetuning_experiment

    paths = folders.run_paths(data=Path(data) if task and data else None)
    choices = _choices(mechanism, protocol, start_options, changes)
    is_own = is_own_texts(task) if task else texts.summary is None
    _check_source(checkpoint, is_own=is_own)
    check_document_options(documents, texts, is_own=is_own)
    if documents.all_texts and data and not task:
        reason = "--all repeats an earlier run on all texts"
        first = "first, with these options and without --all"
        name = find_imported(data, texts, reason, f"longspan finetune --data {data} {first}")
    else:
        name = _task_name(task, data, texts, paths.cache, is_plan=changes.is_plan)
    choices = choices_on(name, choices)
    if is_own_texts(name):
        run_documents(
            name, None if task else data, checkpoint, choices, documents, paths, changes, as_json
        )
    else:
        assert checkpoint is not None, "other tasks than texts with labels start from a checkpoint"
        start, choices = open_start(checkpoint, name, choices, paths.cache)
        run_one([finetuning_experiment(start, name, choices)], paths, changes, as_json)


def _check_source(source: str | None, *, is_own: bool) -> None:
    """Check the checkpoint to start from before anything is imported.

    Raises:
        OptionError: a task other than own texts with labels has none.
        DataError: there is no such checkpoint.
    """
    from longspan.arena.documents.start import is_foreign
    from longspan.arena.saved_checkpoint import open_checkpoint

    if source is None and not is_own:
        raise OptionError(
            "finetune takes the CHECKPOINT to start from, but for texts with labels; to train a "
            "new model: longspan train MECHANISM TASK"
        )
    if source is not None and not is_foreign(source):
        open_checkpoint(source)


def _task_name(
    task: str | None, data: str | None, texts: TextOptions, cache: Path, *, is_plan: bool
) -> str:
    """Return the name of the task; without one, texts of one's own are imported.

    Raises:
        OptionError: there are none, a column is not named, options of texts are given to a task, or
            a plan names texts that were not imported.
        DataError: the file is unusable.
    """
    flags = texts.flags()
    if task is not None:
        if flags:
            raise OptionError(
                f"{', '.join(flags)}: for own texts, which take no TASK, got {task}; omit either"
            )
        return task
    if data is None:
        raise OptionError("finetune takes a TASK, or --data FILE with the columns of texts")
    kind: Kind = "texts" if texts.summary is None else "summaries"
    if kind == "summaries" and (others := texts.flags("label", "target", "pair", "separator")):
        raise OptionError(f"--summary is the target of the texts; omit {', '.join(others)}")
    if is_plan:
        command = f"longspan data import {kind} {shlex.quote(data)} first"
        return find_imported(data, texts, "--dry-run and --measure import nothing", command)
    return import_files(kind, [data], texts, cache)


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
