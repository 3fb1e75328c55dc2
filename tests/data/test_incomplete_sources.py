"""A source of which a split is empty or absent is refused, and the message names the split."""

import itertools
import re

import pytest

from longspan.errors import DataError, LongspanError, MissingSourceError
from longspan.tasks import build
from published_folders import SOURCES, make_source

# Files of each split. Those of one file alone have no split that may lack.
FILES = {
    "text": {"train": "aclImdb/train/*/*", "test": "aclImdb/test/*/*"},
    "newsgroups": {"train": "20news-bydate-train/*/*", "test": "20news-bydate-test/*/*"},
    "image": {"train": "*/data_batch*", "test": "*/test_batch"},
    "retrieval": {"train": "pairs.train*", "validation": "pairs.eval*", "test": "pairs.test*"},
    "listops": {"train": "*/*train*", "validation": "*/*val*", "test": "*/*test*"},
    "squad": {"train": "train*", "test": "dev*"},
    "hotpotqa": {"train": "*train*", "test": "*dev*"},
    "triviaqa": {"train": "qa/*train*", "test": "qa/*dev*"},
    "wikihop": {"train": "*/*/train*", "test": "*/*/dev*"},
    "arxiv_summarization": {"train": "train*", "validation": "val*", "test": "test*"},
    "coreference": {"train": "train*", "validation": "dev*", "test": "test*"},
    "wikitext_2": {"train": "*train*", "validation": "*valid*", "test": "*test*"},
    "pg19": {"train": "train/*", "validation": "validation/*", "test": "test/*"},
}
for name, same in (
    ("aan_retrieval", "retrieval"),
    ("pubmed_summarization", "arxiv_summarization"),
    ("wikitext_103", "wikitext_2"),
):
    FILES[name] = FILES[same]
ONE_FILE = ("text8", "enwik8", "xquad", "hyperpartisan")


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


DAMAGES = {"removed": remove, "empty": empty}
HOLLOW = {
    "squad": '{"data": []}',
    "hotpotqa": "[]",
    "triviaqa": '{"Data": []}',
    "wikihop": "[]",
    "listops": "Source\tTarget\r\n",
}


def test_every_source_is_covered():
    assert {*FILES, *ONE_FILE} == set(SOURCES)


CASES = [
    (name, split, damage)
    for name, splits in FILES.items()
    for split, damage in itertools.product(splits, ("removed", "empty", "hollow"))
    if damage != "hollow" or name in HOLLOW
]


@pytest.mark.parametrize(("name", "split", "damage"), CASES)
def test_empty_or_absent_split_is_refused(tmp_path, monkeypatch, name, split, damage):
    task, folder = make_source(name, tmp_path / "data", monkeypatch)
    files = sorted(path for path in folder.glob(FILES[name][split]) if path.is_file())
    assert files
    for path in files:
        if damage == "hollow":
            path.write_text(HOLLOW[name], newline="")
        else:
            DAMAGES[damage](path)
    with pytest.raises(LongspanError) as caught:
        task.open(tmp_path / "cache", folder)
    # A message names a file, the split, or what a copy consists of.
    names = {split, *(path.name for path in files), *(path.parent.name for path in files)}
    assert any(re.search(re.escape(x.partition(".")[0]), str(caught.value)) for x in names)


def test_training_reviews_that_are_all_in_the_test_split_are_refused(tmp_path, monkeypatch):
    task, folder = make_source("text", tmp_path / "data", monkeypatch)
    for path in (folder / "aclImdb" / "test").glob("*/*.txt"):
        train = folder / "aclImdb" / "train" / path.parent.name / path.name
        train.write_bytes(path.read_bytes())
    with pytest.raises(LongspanError, match="of 16 training reviews, 16 are in the test split too"):
        task.open(tmp_path / "cache", folder)
    assert not list((tmp_path / "cache").rglob("*.arrow"))


# Sources whose message has their address, and a part of it.
ADDRESSES = {
    "text": "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb",
    "image": "https://www.cs.toronto.edu/~kriz/cifar-10-python",
    "hyperpartisan": "https://zenodo.org/records/1489920",
    "text8": "http://mattmahoney.net/dc/text8.zip",
    "enwik8": "http://mattmahoney.net/dc/enwik8.zip",
    "wikitext_2": "/wikitext-2-v1.zip",
    "wikitext_103": "/wikitext-103-v1.zip",
    "pg19": "https://github.com/google-deepmind/pg19",
}


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.usefixtures("nowhere")
def test_message_of_a_missing_source_has_its_address(tmp_path, name):
    for place in (None, tmp_path):
        with pytest.raises(MissingSourceError, match="is not here") as caught:
            build(name, SOURCES[name][1]).identify_source(place)
        assert f"`longspan data build {name} --data FOLDER`" in str(caught.value)
        assert ADDRESSES[name] in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", SOURCES)
def test_missing_source_names_the_command(tmp_path, name):
    (tmp_path / "empty").mkdir()
    task = build(name, SOURCES[name][1])
    remedies = (f"`longspan data build {name} --data F", "name the folder that contains it")
    for place in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            task.open(tmp_path / "cache", place)
        assert str(caught.value) == task.describe_missing_data(place)
        assert place.name == "nowhere" or any(x in str(caught.value) for x in remedies)
        assert "\n" not in str(caught.value)
