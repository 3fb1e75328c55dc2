"""Small corpora as a practitioner has them, and the tasks that their import registers."""

import random

from longspan.data.corpora.imports import CorpusRequest, import_corpus
from longspan.tasks import TASKS, register_imported

CORPUS = "long_documents"  # name that recipes with pretraining give their corpus
WORDS = ["the", "of", "and", "a", "to", "in", "he", "was", "that", "it", "naïve", "with", "42"]


def prose(count, seed=0):
    """Return random words with line ends and runs of spaces."""
    draws = random.Random(seed)
    spaces = (" ", " ", "  ", "\n", "\n\n")
    return "".join(draws.choice(WORDS) + draws.choice(spaces) for _ in range(count))


TEXTS = [f"document {n}: {prose(60, n)}" for n in range(24)]


def write_folder(folder, texts=TEXTS):
    for number, content in enumerate(texts):
        path = folder / f"part-{number % 3}" / f"{number:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def ignore(*progress):
    """Ignore progress."""


def make_task(cache, *paths, **options):
    """Import a corpus with a small tokenizer and return the class of its task."""
    names = {name: options.pop(name) for name in ("name",) if name in options}
    request = CorpusRequest(paths=tuple(map(str, paths)), **{"vocab_size": 300, **options})
    name = names.get("name", "mine")
    import_corpus(cache, name, request, ignore)
    register_imported(cache)
    return TASKS[name]


def import_novels(folder):
    """Import documents of bytes whose next tokens are predicted, as the task `novels`."""
    request = CorpusRequest(
        paths=(str(write_folder(folder / "files")),), objective="next", validation=0.2, test=0.2
    )
    import_corpus(folder, "novels", request, ignore)
    register_imported(folder)
