"""Miniature folders of every published data set in its official layout, and their tasks."""

from aan_files import write_by_id
from cifar_files import write_batches
from conll_files import write_conll
from longspan.tasks import TASKS, build
from longspan.tasks.documents import newsgroups
from paper_files import write_papers
from question_files import (
    hotpotqa_record,
    squad_article,
    write_hotpotqa,
    write_squad,
    write_triviaqa,
)
from text_sources import BOOKS, SIZES, WIKI, letters, markup, small, write_books, write_wiki
from wikihop_files import write_wikihop


def write_reviews(folder):
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            place = folder / "aclImdb" / part / label
            place.mkdir(parents=True)
            for number in range(8):
                (place / f"{number}_7.txt").write_text(f"{part} review {number}, {label} naïve")
    return folder


def write_posts(folder):
    for part, numbers in (("train", range(10)), ("test", range(10, 12))):
        for group in newsgroups.GROUPS:
            place = folder / f"20news-bydate-{part}" / group
            place.mkdir(parents=True)
            for number in numbers:
                words = " ".join(f"{group}{number}n{x}" for x in range(9))
                (place / str(number)).write_text(f"Newsgroups: {group}\n\n{words}\n")
    return folder


def write_articles(folder, count=60):
    def entries(line):
        lines = "".join(line(n) for n in range(count))
        return f'<?xml version="1.0"?><articles>{lines}</articles>'

    def article(n):
        words = " ".join(f"word{n}x{place}" for place in range(30))
        return f'<article id="{n:07}" title="T">{words}</article>'

    def label(n):
        value = ("false", "true")[n % 3 == 0]
        return f'<article hyperpartisan="{value}" id="{n:07}" url="https://s{n}.com/1"/>'

    folder.mkdir(parents=True)
    (folder / "articles-training-byarticle-20181122.xml").write_text(entries(article))
    (folder / "ground-truth-training-byarticle-20181122.xml").write_text(entries(label))
    return folder


def write_questions(folder):
    folder.mkdir(parents=True)
    write_squad(folder / "train-v1.1.json", [squad_article(f"T{n}") for n in range(12)])
    write_squad(folder / "dev-v1.1.json", [squad_article(f"D{n}") for n in range(3)])
    write_squad(folder / "xquad.en.json", [squad_article(f"T{n}") for n in range(12)])
    return folder


def write_multi_hop(folder):
    train, dev = ([hotpotqa_record(n) for n in x] for x in (range(12), range(12, 15)))
    return write_hotpotqa(folder, train, dev)


def write_column_files(folder):
    folder.mkdir(parents=True)
    return write_conll(folder)


def write_expressions(folder):
    place = folder / "listops-1000"
    place.mkdir(parents=True)
    for part, count in (("train", 6), ("val", 2), ("test", 2)):
        rows = [f"( ( [MAX {n % 10} ) ] )\t{n % 10}" for n in range(count)]
        text = "\r\n".join(["Source\tTarget", *rows, ""])
        (place / f"basic_{part}.tsv").write_text(text, newline="")
    return folder


def write_stream(name, folder, monkeypatch):
    cls = TASKS[name]
    if name in ("text8", "enwik8"):
        content = (letters if name == "text8" else markup)(sum(SIZES.values()))
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        monkeypatch.setattr(cls, "text", small(cls.text, content))
    elif name == "pg19":
        write_books(folder)
        monkeypatch.setattr(cls, "books", {split: len(x) for split, x in BOOKS.items()})
    else:
        published = {**vars(WIKI), "folder": name.replace("_", "-")}
        monkeypatch.setattr(cls, "published_set", type(WIKI)(**published))
        write_wiki(folder, "folder")
        for path in (folder / WIKI.folder).iterdir():
            path.rename(folder / path.name)
        (folder / WIKI.folder).rmdir()
    return folder


QUESTION = {"length": 128, "question_length": 24}
SUMMARY = {"length": 24, "target_length": 14, "vocabulary": 40}
# Writer of the folder, and options of the task.
SOURCES = {
    "text": (write_reviews, {"length": 32, "validation": 4}),
    "newsgroups": (write_posts, {"length": 200}),
    "hyperpartisan": (write_articles, {"length": 200}),
    "image": (write_batches, {"validation": 10}),
    "retrieval": (write_by_id, {"vocabulary": "characters"}),
    "aan_retrieval": (write_by_id, {}),
    "listops": (write_expressions, {"source": "release", "train": 6, "validation": 2, "test": 2}),
    "squad": (write_questions, QUESTION),
    "xquad": (write_questions, QUESTION),
    "hotpotqa": (write_multi_hop, {"length": 256}),
    "triviaqa": (write_triviaqa, QUESTION),
    "wikihop": (lambda x: write_wikihop(x).parents[1], {"length": 128, "candidates": 6}),
    "arxiv_summarization": (write_papers, SUMMARY),
    "pubmed_summarization": (write_papers, SUMMARY),
    "coreference": (write_column_files, {"length": 64, "span_width": 24, "antecedents": 8}),
    **{
        name: (None, {"length": 16})
        for name in ("text8", "enwik8", "wikitext_2", "wikitext_103", "pg19")
    },
}


def make_source(name, folder, monkeypatch):
    """Write the folder of a data set; return its task and the folder."""
    write, options = SOURCES[name]
    if write is None:
        write_stream(name, folder, monkeypatch)
    else:
        write(folder)
    return build(name, options), folder
