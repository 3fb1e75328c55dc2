"""Hyperpartisan: the official XML files, clean splits, and the overlapping published ones."""

import gzip
import json
import zipfile
from collections import Counter
from functools import partial
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from task_calls import open_beside

from longspan.errors import DataError
from longspan.tasks import SPLITS, build
from longspan.tasks.data_cards import write_card
from longspan.tasks.documents import hyperpartisan
from real_data import real

opened = partial(open_beside, "hyperpartisan", length=64)

ARTICLES = "articles-training-byarticle-20181122"
TRUTH = "ground-truth-training-byarticle-20181122"
COUNT = 60


def body(number):
    """Return a text that shares no run of words with those of other numbers."""
    return " ".join(f"word{number}x{place}" for place in range(30))


def xml(articles):
    """Return articles in the form of the published file; text and markup are mixed."""
    lines = [
        f'<article id="{number:07}" published-at="2017-09-10" title={quoteattr(f"Title {number}")}>'
        f"\n{text} <p>A <a href='x' type='external'>link</a> &amp; more {number}</p></article>"
        for number, text in articles
    ]
    return f'<?xml version="1.0" encoding="UTF-8"?><articles>{"".join(lines)}</articles>'


def truth(labels):
    lines = [
        f'<article hyperpartisan="{label}" id="{number:07}" labeled-by="article" '
        f'url="https://www.site{number % 4}.com/{number}"/>'
        for number, label in labels
    ]
    return f'<?xml version="1.0" ?>\n<articles>{"".join(lines)}</articles>'


def write(folder, articles=None, labels=None, splits=None):
    folder.mkdir(parents=True, exist_ok=True)
    if articles is None:
        articles = [(n, body(n)) for n in range(COUNT)]
    if labels is None:
        labels = [(n, ("false", "true")[n % 3 == 0]) for n in range(COUNT)]
    (folder / f"{ARTICLES}.xml").write_text(xml(articles))
    (folder / f"{TRUTH}.xml").write_text(truth(labels))
    if splits:
        (folder / "hp-splits.json").write_text(json.dumps(splits))
    return folder


def texts(task, split):
    return [task.decode(tokens) for tokens in task.dataset.splits[split].tokens]


def test_articles_are_texts_without_markup_and_their_labels(nowhere):
    task = opened(write(nowhere / "data"), length=4_000, title=True)
    found = {}
    for split in SPLITS:
        labels = [task.class_name(label) for label in task.labels(split).tolist()]
        found |= dict(zip(texts(task, split), labels, strict=True))
    assert found == {
        f"Title {n}\n{body(n)} A link & more {n}": ("mainstream", "hyperpartisan")[n % 3 == 0]
        for n in range(COUNT)
    }


def test_every_form_of_the_files_gives_one_data_set(nowhere):
    plain = write(nowhere / "plain")
    for form in ("gz", "zip"):
        (nowhere / form).mkdir()
    for name in (ARTICLES, TRUTH):
        content = (plain / f"{name}.xml").read_bytes()
        (nowhere / "gz" / f"{name}.xml.gz").write_bytes(gzip.compress(content))
        with zipfile.ZipFile(nowhere / "zip" / f"{name}.zip", "w") as archive:
            archive.writestr(f"{name}.xml", content)
    tasks = [opened(nowhere / form) for form in ("plain", "gz", "zip")]
    assert len({str(task.dataset.folder) for task in tasks}) == 1
    assert len({task.checksum for task in tasks}) == 1


def test_clean_splits_keep_near_duplicates_together(nowhere):
    copies = [(n, body(n % 30)) for n in range(COUNT)]  # of which each ends with another number
    labels = [(n, ("false", "true")[n % 2]) for n in range(COUNT)]
    task = opened(write(nowhere / "data", copies, labels), length=4_000)
    owners = {}
    for split in SPLITS:
        for text in texts(task, split):
            owners.setdefault(text.split()[0], set()).add(split)
    assert all(len(splits) == 1 for splits in owners.values())
    assert [x["rows"] for x in task.facts["leaks"].values()] == [[], [], []]
    assert all(x.name != "in training" for x in task.groupings("test"))


@pytest.fixture
def leaking(nowhere):
    splits = {
        "train": list(range(40)),
        "dev": list(range(40, 50)),
        "test": [3, 45, 50, 51, 52, 7],  # two in training, one in validation
    }
    articles = [(n, body(n)) for n in range(COUNT)]
    articles[51] = (51, body(4).upper())  # nearly that of a training article
    return write(nowhere / "data", articles, splits=splits)


def test_published_splits_are_kept_and_their_leaks_reported(leaking):
    task = opened(leaking, split="published", length=4_000)
    first = [text.split()[0] for text in texts(task, "test")]
    assert first == [f"word{n}x0" for n in (3, 45, 50)] + ["WORD4X0", "word52x0", "word7x0"]
    counts = {name: (x["exact"], x["near"], x["rows"]) for name, x in task.facts["leaks"].items()}
    assert counts == {
        "validation in train": (0, 0, []),
        "test in train": (2, 1, [0, 3, 5]),
        "test in validation": (1, 0, [1]),
    }
    assert task.facts["unused"] == COUNT - 40 - 10 - 3
    (grouping,) = [x for x in task.groupings("test") if x.name == "in training"]
    assert [grouping.labels[group] for group in grouping.group] == [
        *("yes", "no", "no", "yes", "no", "yes")
    ]
    assert "| test in train | 6 | 2 | 1 |" in write_card(task, leaking.parent / "cache")


@pytest.mark.parametrize("title", [False, True])
def test_white_space_of_new_articles_is_collapsed_as_in_the_splits(title, nowhere):
    task = opened(write(nowhere / "data"), length=4_000, title=title)
    for row, text in enumerate(texts(task, "test")):
        first, separator, rest = text.rpartition("\n")
        assert bool(separator) == title
        spaced = f" {first}{separator}" + rest.replace(" ", " \t\n ") + "\n"
        assert np.array_equal(task.encode(spaced), task.dataset.splits["test"].tokens[row])


def test_longer_articles_are_cut_and_counted(nowhere):
    task = opened(write(nowhere / "data"), length=200)
    full = opened(write(nowhere / "data"), length=10_000)
    for split in SPLITS:
        lengths = full.dataset.splits[split].tokens.lengths
        assert task.facts["cut"][split] == (lengths > 200).sum()
        assert full.facts["cut"][split] == 0
    exact = int(full.dataset.splits["train"].tokens.lengths.max())
    assert opened(write(nowhere / "data"), length=exact).facts["cut"]["train"] == 0


def spoil(folder, name, change):
    path = folder / name
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        (f"{TRUTH}.xml", lambda x: x.replace('"true"', '"yes"', 1), ("article 0000000", "'yes'")),
        (f"{TRUTH}.xml", lambda x: x.replace('id="0000005"', 'id="0000004"'), ("0000004", "twice")),
        (
            f"{TRUTH}.xml",
            lambda x: x.replace('id="0000005"', 'id="0000900"'),
            ("0000005", "no label"),
        ),
        (f"{ARTICLES}.xml", lambda x: x.replace('id="0000005"', 'id="five"'), ("'five'", "digits")),
        (f"{ARTICLES}.xml", lambda x: x[:-30], (f"{ARTICLES}.xml", "no element found")),
        (
            f"{ARTICLES}.xml",
            lambda x: x.replace("<articles>", '<!DOCTYPE a [<!ENTITY e "x">]><articles>'),
            ("declares a document type",),
        ),
        ("hp-splits.json", lambda x: x.replace("dev", "valid"), ("train, dev and test",)),
        ("hp-splits.json", lambda x: x.replace("[3,", "[300,"), ("names article 300",)),
    ],
)
def test_damaged_files_are_refused(leaking, name, change, parts):
    spoil(leaking, name, change)
    with pytest.raises(DataError) as caught:
        opened(leaking, split="published")
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_say_where_to_get_them(nowhere):
    with pytest.raises(DataError, match=r"zenodo\.org"):
        opened(nowhere)
    data = write(nowhere / "data")
    with pytest.raises(DataError, match=r"hp-splits\.json; download .* or set split='clean'"):
        opened(data, split="published")


def test_published_files_have_the_recorded_counts():
    """Counts of the README of the data set, and of the issues on Longformer's splits."""
    source, task = hyperpartisan.find(real("hyperpartisan")), build("hyperpartisan")
    articles = hyperpartisan.read(source)
    assert Counter(x.label for x in articles) == {0: 407, 1: 238}
    ids = hyperpartisan.read_published_splits(source)
    assert [len(ids[split]) for split in SPLITS] == [516, 64, 65]
    assert len(np.intersect1d(ids["test"], ids["train"])) == 51
    assert len(np.intersect1d(ids["test"], ids["validation"])) == 7
    assert task.identify_source(source.path)["articles"] == task.info.checksum


@pytest.mark.slow
def test_leak_report_of_the_published_splits(tmp_path):
    task = build("hyperpartisan", {"split": "published"})
    task.open(tmp_path, real("hyperpartisan"))
    leaks = task.facts["leaks"]
    assert (leaks["test in train"]["exact"], leaks["test in validation"]["exact"]) == (51, 7)
    assert task.facts["unused"] == 58


@pytest.mark.slow
def test_clean_splits_of_the_published_files(tmp_path):
    task = build("hyperpartisan")
    task.open(tmp_path, real("hyperpartisan"))
    assert {split: task.size(split) for split in SPLITS} == task.info.sizes
    assert [x["rows"] for x in task.facts["leaks"].values()] == [[], [], []]
    for split in ("validation", "test"):
        assert task.labels(split).sum() == 24
