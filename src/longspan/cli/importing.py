"""Kinds of `longspan data import` whose files are one's own."""

from pathlib import Path

from longspan.cli import collections, corpora, summaries
from longspan.cli import own_texts as own
from longspan.errors import OptionError


def import_own(
    kind: str,
    words: list[str],
    options: own.OwnOptions,
    only: corpora.CorpusOptions,
    cache: Path,
) -> str | None:
    """Import files of one's own; return the name of their task, or None for published files.

    Args:
        kind: kind of import, or a task.
        words: path, or name of the task and paths.
        options: options of `import texts`, some of which apply to others.
        only: options of `import corpus`.
        cache: folder of built data sets.

    Raises:
        OptionError: an option or a path does not apply.
        DataError: a file is unusable; the message says why.
    """
    if kind == corpora.KIND:
        return corpora.import_paths(words, options, only, cache).name
    only.refuse(kind)
    if kind == collections.KIND:
        return collections.import_folder(words, options, cache).name
    if len(words) > 1:
        raise OptionError(f"import {kind} takes one path, got {len(words)}: {' '.join(words)}")
    if kind == summaries.KIND:
        return summaries.import_file(Path(words[0]), options, cache).name
    if kind in own.KINDS:
        return own.import_file(Path(words[0]), options, cache).name
    options.refuse(kind)
    return None
