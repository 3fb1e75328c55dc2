"""Checkpoints for documents: converted from transformers, and extended to the documents' length."""

import dataclasses
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any, cast

import numpy as np

from longspan.arena.one_run import RunChoices
from longspan.arena.saved_checkpoint import SavedCheckpoint, open_checkpoint
from longspan.attention import MECHANISMS
from longspan.data.imports.texts import load_splits
from longspan.data.tokenizers import split_words
from longspan.data.word_pieces import load_word_pieces
from longspan.files import file_sha256, read_json
from longspan.models.conversion.from_source import convert, is_own, longify
from longspan.models.conversion.source import BESIDE_WEIGHTS, Source, open_source
from longspan.tasks import TASKS, OwnTexts
from longspan.tasks.documents.coverage import (
    LONGIFIED,
    Coverage,
    covering_length,
    measure_coverage,
)
from longspan.training.checkpoint_folder import weights_sha256

logger = logging.getLogger(__name__)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_UNIT = 512  # lengths of extended checkpoints are multiples of it
_LENGTH = "task.length"


def open_start(
    source: str, task: str, choices: RunChoices, cache: Path
) -> tuple[SavedCheckpoint, RunChoices]:
    """Return a checkpoint that reads the documents of a task, and the choices that fit it.

    A checkpoint of transformers is converted. One that is too short for 95 % of imported texts, or
    for `task.length`, is extended. Conversions are stored in the cache.

    Args:
        source: record or directory of a run, folder, or name on the Hugging Face Hub.
        task: task; its texts are measured if they were imported with classes, labels or numbers.
        choices: choices of the run.
        cache: folder of built data sets.

    Raises:
        OptionError: the checkpoint cannot be converted or extended.
        DataError: there is no checkpoint, or it is damaged.
        RunError: the cache cannot be written.
    """
    if is_foreign(source):
        return _convert(source, task, choices, cache)
    start = open_checkpoint(source)
    if not _is_measured(task):
        return start, choices
    config = start.config
    # A learned vocabulary depends on the length of its texts.
    is_learned = not isinstance(start.vocabulary, str) or start.vocabulary == "characters"
    if choices.extend_positions or config.is_decoder or is_learned:
        return start, choices
    length = choices.changes.get(_LENGTH) or _fitting_length(
        document_lengths(task, start.vocabulary), config.max_position_embeddings
    )
    sized = any("max_length" in MECHANISMS[x].traits.sizes for x in config.attention_names)
    if length <= config.max_position_embeddings or sized:
        return start, choices
    logger.info(
        "the %d positions of %s are extended to %d, which the documents need",
        config.max_position_embeddings,
        source,
        length,
    )
    changes = {**choices.changes, _LENGTH: length}
    return start, dataclasses.replace(choices, changes=changes, extend_positions="tile")


def is_foreign(source: str) -> bool:
    """Return whether a source is a folder of transformers, or a name on the hub."""
    path = Path(source)
    if path.is_dir():
        content = read_json(path / "config.json") if (path / "config.json").is_file() else None
        known = content is None or is_own(path)
        return (path / "modules.json").is_file() or not known
    return not path.exists() and path.suffix != ".json" and bool(_HUB_NAME.fullmatch(source))


def _is_measured(task: str) -> bool:
    """Return whether the lengths of a task's texts are known before its data is built."""
    return task in TASKS and issubclass(TASKS[task], OwnTexts)


def document_lengths(task: str, vocabulary: str | int | None) -> np.ndarray:
    """Return the tokens of each training text of an import, of a pair of both, (N,).

    Args:
        task: task of imported texts.
        vocabulary: vocabulary, as an option of the task.
    """
    cls = cast("type[OwnTexts]", TASKS[task])
    texts = load_splits(cls.folder, cls.description)["train"].texts
    if vocabulary == "characters":
        return np.array([len(text) for row in texts for text in row])
    encoded = [text.encode() for row in texts for text in row]
    if isinstance(vocabulary, str) and vocabulary.startswith("tokenizer:"):
        tokenizer = load_word_pieces(vocabulary.removeprefix("tokenizer:"))
        return np.array([len(tokenizer.encode(x, len(x) + 16)) for x in encoded])
    if isinstance(vocabulary, int):
        return np.array([len(split_words(x, len(x))) for x in encoded])
    return np.array([len(x) for x in encoded])


def _fitting_length(lengths: np.ndarray, longest: int) -> int:
    """Return the length for documents: beyond that of the checkpoint only if they need it."""
    length = covering_length(lengths, _UNIT)
    return min(length, longest) if covering_length(lengths, 1) <= longest else length


def task_coverage(task: str, options: dict[str, Any]) -> Coverage:
    """Return the share of the training texts that a run with some options of the task reads."""
    lengths = document_lengths(task, options["vocabulary"]) + int(options.get("end", False))
    return measure_coverage(lengths, options["length"])


def _convert(
    source: str, task: str, choices: RunChoices, cache: Path
) -> tuple[SavedCheckpoint, RunChoices]:
    """Return the conversion of a checkpoint of transformers, from the cache if it is there."""
    opened = open_source(source, None)
    longest = opened.family.source_length(opened.config)
    if _is_measured(task) and _LENGTH not in choices.changes:
        lengths = document_lengths(task, f"tokenizer:{opened.folder}")
        changes = {_LENGTH: _fitting_length(lengths, longest), **choices.changes}
        choices = dataclasses.replace(choices, changes=changes)
    length = choices.changes.get(_LENGTH, longest)
    name, options = LONGIFIED
    if choices.mechanism not in (None, name):
        name, options = choices.mechanism, {}
    given = {
        x.removeprefix("mechanism."): y for x, y in choices.changes.items() if "mechanism." in x
    }
    options = {**options, **given}
    is_short = length > longest
    details = [_identity(opened), *([name, options, length] if is_short else [])]
    digest = hashlib.sha256(json.dumps(details, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / "checkpoints" / f"{Path(source).resolve().name}-{digest}"
    if not folder.is_dir():
        if is_short:
            longify(source, attention=name, options=options, max_length=length, out=folder)
        else:
            convert(source, out=folder)
    what = f"extended to {length:,} with {name}" if is_short else "converted"
    logger.info("%s, of %d tokens, is %s: %s", source, longest, what, folder)
    return open_checkpoint(folder), choices


def _identity(source: Source) -> list[Any]:
    """Return the digests of all files that a conversion reads, and the modules around them."""
    files = sorted(path for pattern in BESIDE_WEIGHTS for path in source.folder.glob(pattern))
    modules = source.embedding and source.embedding[1:]
    return [weights_sha256(source.folder), *map(file_sha256, files), modules]
