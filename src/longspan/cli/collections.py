"""Steps of `longspan data import beir`: a folder in the layout of BEIR becomes a task."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.cli.common import console_callback, print_counts, print_note
from longspan.cli.own_texts import OwnOptions, check_free
from longspan.errors import OptionError

if TYPE_CHECKING:
    from longspan.data.retrieval.stored import BeirDescription

KIND = "beir"  # in place of a task
_APPLY = ("validation", "test", "replace")  # options of `import texts` that apply here too


def import_folder(words: Sequence[str], options: OwnOptions, cache: Path) -> "BeirDescription":
    """Import a folder, register it as a task, and print what was left out.

    Args:
        words: name of the task, and the folder.
        options: options of imports.
        cache: folder of built data sets.

    Raises:
        OptionError: an option does not apply, or the name of the task is taken.
        DataError: a file is unusable; the message has file and line.
    """
    from longspan.arena.protocols.own import register_imports
    from longspan.data.retrieval.imports import BeirRequest, import_beir
    from longspan.tasks import beir_names

    if len(words) != 2:
        raise OptionError(f"import beir takes NAME and FOLDER, got {' '.join(words)}")
    options.refuse("beir", _APPLY)
    name, folder = words
    check_free(name, beir_names())
    request = BeirRequest(
        folder=Path(folder),
        validation=_share(options.validation, "validation"),
        test=_share(options.test, "test"),
    )
    with console_callback() as callback:
        described = import_beir(
            cache,
            name,
            request,
            lambda done: callback.on_build("reading documents", done, 0),
            replace=options.replace,
        )
    register_imports(cache)
    _print_notes(described)
    return described


def _share(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise OptionError(
            f"--{name} of import beir is a share of the queries, got {text!r}; queries of a file "
            f"are judged in qrels/{'dev' if name == 'validation' else name}.tsv"
        ) from None


def _print_notes(described: "BeirDescription") -> None:
    """Print what was left out, splits that the folder does not judge, and the next command."""
    messages = {
        "empty_documents": "document|documents without title and text was|were left out",
        "empty_queries": "query|queries without text was|were left out",
        "judgments_of_unknown_queries": "judgment|judgments names|name a query that "
        "queries.jsonl lacks",
        "judgments_of_unknown_documents": "judgment|judgments names|name a document that "
        "corpus.jsonl lacks or has without a text",
        "missing_relevant_documents": "relevant document|documents of queries is|are not in "
        "corpus.jsonl: no ranking can find it|them, so scores leave it|them out (trec_eval counts "
        "it|them as missed)",
        "without_relevant_documents": "query|queries without a relevant document was|were left out",
        "unjudged_queries": "query|queries without a judgment was|were left out",
        "in_another_split": "query|queries was|were left out whose text is in a held-out split too",
    }
    print_counts(described.counts, messages)
    for place in described.unknown:
        print_note("note:", f"unknown id at {place}")
    for split, source in described.splits.items():
        if " of " in source:
            print_note("note:", f"{split} is {source}, as no file judges it")
    print_note("next:", f"longspan train local {described.name}")
