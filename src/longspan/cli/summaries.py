"""Steps of `longspan data import summaries`: texts of one's own and their summaries."""

from pathlib import Path
from typing import TYPE_CHECKING

from longspan.cli.own_texts import OwnOptions, check_free, print_notes, share_or_file
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.data.summaries.stored import SummariesDescription

KIND = "summaries"  # in place of a task
_OTHERS = ("label", "target", "pair")  # columns that do not apply


def import_file(path: Path, options: OwnOptions, cache: Path) -> "SummariesDescription":
    """Import a file of texts and summaries, register it as a task, and print what was left out.

    Raises:
        OptionError: a column is not named, or the name of the task is taken.
        DataError: the file is unusable; the message says why.
    """
    from longspan.arena.protocols.own import register_imports
    from longspan.data.own_import import ImportRequest
    from longspan.data.summaries.imports import import_summaries
    from longspan.data.table_folders import table_name
    from longspan.data.text_files import UTF8, FileFormat
    from longspan.tasks import own_summary_names

    if given := [f"--{name}" for name in _OTHERS if getattr(options, name) is not None]:
        raise OptionError(f"import summaries has no {', '.join(given)}; omit it")
    if options.text is None or options.summary is None:
        raise OptionError("import summaries takes --text COLUMN and --summary COLUMN")
    name = options.name or table_name(path)
    check_free(name, own_summary_names())
    described = import_summaries(
        cache,
        name,
        path,
        ImportRequest(
            text=options.text,
            target=options.summary,
            validation=share_or_file(options.validation),
            test=share_or_file(options.test),
            drop_empty=options.drop_empty,
            file_format=FileFormat(encoding=options.encoding or UTF8, delimiter=options.delimiter),
        ),
        replace=options.replace,
    )
    register_imports(cache)
    print_notes(described, "summary")
    return described
