"""Miniature files of published texts in their official layouts."""

import dataclasses
import random
import zipfile

import numpy as np

from longspan.tasks.language.wikitext import FILES, WikiText

VARIABLES = ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA")
SIZES = {"train": 9_000, "validation": 500, "test": 501}


def letters(count, seed=0):
    """Return words of the 27 characters of text8."""
    draws = random.Random(seed)
    return "".join(draws.choice("abcde xyz  ") for _ in range(count)).encode()


def markup(count, seed=0):
    """Return UTF-8 bytes with characters of one to four bytes, cut anywhere."""
    draws = random.Random(seed)
    pieces = ("<page>", "naïve ", "猫", "😀", "\n", "[[link]]", "\t", "text ")
    return "".join(draws.choice(pieces) for _ in range(count)).encode()[:count]


def small(text, content, sha256=None):
    """Return a published text with the sizes of the miniature, and its sha256 if given."""
    assert len(content) == sum(SIZES.values())
    return dataclasses.replace(text, sizes=SIZES, sha256=sha256)


def write_text(folder, name, content, form):
    """Write a published file, plain or in a zip; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "file":
        (folder / name).write_bytes(content)
        return folder / name
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return folder / f"{name}.zip"


ARTICLES = {
    "train": [
        "= First title =\n\n The cat sat , the end .\n\n = = Section = = \n\n a = b = c \n the\n",
        "= x = y =\n\n the <unk> @-@ café of 猫\n = no title = \n\n more\n",
        "= Third =\n\n\n\n = = = Deep = = = \n\n the cat\n",
    ],
    "validation": ["= x = y =\n\n cat of the <unk>\n", "= Third =\n\n the the\n"],
    "test": ["= First title =\n\n = = Section = = \n\n of\n"],
}


def wiki_file(articles):
    """Return the bytes of a file: each line begins and ends with a space, as published."""
    lines = [""] + [line for text in articles for line in [*text[:-1].split("\n"), ""]]
    return "".join(f" {line.strip()} \n" if line.strip() else " \n" for line in lines).encode()


def wiki_tokens(articles):
    """Return the tokens of a file, read without regard to articles."""
    content = wiki_file(articles).decode().replace("\n", " <eos> ")
    return content.split()


WIKI = WikiText(
    folder="wikitext-2",
    tokens={split: len(wiki_tokens(texts)) for split, texts in ARTICLES.items()},
    words=len(set(wiki_tokens(ARTICLES["train"]))),
)


def write_wiki(folder, form, articles=ARTICLES):
    """Write the three files into a folder, or a zip with a folder; return the path."""
    contents = {FILES[split]: wiki_file(texts) for split, texts in articles.items()}
    if form == "folder":
        (folder / WIKI.folder).mkdir(parents=True)
        for name, content in contents.items():
            (folder / WIKI.folder / name).write_bytes(content)
        return folder / WIKI.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{WIKI.folder}-v1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{WIKI.folder}/{name}", content)
    return path


BOOKS = {
    "train": {"12": "One book.\r\nOf two lines ", "7": "x" * 9_000 + " naïve 猫"},
    "validation": {"5": " A  b\n"},
    "test": {"1": "Il était une fois\n", "2": "the end", "30": "q"},
}


def write_books(folder, books=BOOKS):
    """Write books as PG-19 does; return the folder."""
    for split, texts in books.items():
        (folder / split).mkdir(parents=True)
        for number, text in texts.items():
            content = text if isinstance(text, bytes) else text.encode()
            (folder / split / f"{number}.txt").write_bytes(content)
    (folder / "metadata.csv").write_text("12,Title,1900,http://x\n")
    return folder


def documents_of(examples):
    """Return the tokens of each stored document, read row by row."""
    found = {}
    for row, number in enumerate(examples.labels.tolist()):
        found.setdefault(number, []).append(np.asarray(examples.tokens[row]))
    assert list(found) == list(range(len(found)))
    return [np.concatenate(rows) for rows in found.values()]
