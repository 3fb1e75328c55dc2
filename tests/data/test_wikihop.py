"""Reader of WikiHop: the official layout, published files, malformed ones."""

import json
import tarfile

import pytest

from longspan.errors import DataError
from longspan.tasks.questions.wikihop import find, join_punctuation, read_questions
from question_files import published
from wikihop_files import question, write_wikihop


def test_questions_are_read_from_the_official_layout(tmp_path):
    folder = write_wikihop(tmp_path)
    for place in (folder, folder.parent, tmp_path):
        assert {path.parent for path in find(place).paths} == {folder}
    found = list(read_questions(folder / "train.json"))
    assert len(found) == 20
    first = found[1]
    assert first.id == "WH_train_1"
    assert (first.text, first.relation) == ("country person1", "country")
    assert first.candidates[first.answer] == "italy"
    assert first.documents[1] == "City1 (a town) is in italy, by the sea."


def test_published_files_are_read(tmp_path):
    with tarfile.open(published("format_samples/hf_datasets_2.4.0_dummy.tar.gz")) as tar:
        members = [x for x in tar.getmembers() if x.name.startswith("wiki_hop/")]
        tar.extractall(tmp_path, members=members, filter="data")
    for masked in (False, True):
        files = find(tmp_path / "wiki_hop", masked=masked)
        found = [x for part in ("train", "dev") for x in read_questions(files.firsts[part])]
        assert all(len(x.candidates) > 1 and len(x.documents) > 2 for x in found)
        right = [x.candidates[x.answer].startswith("___MASK") for x in found]
        assert right == [masked] * len(found)


def test_spaces_before_punctuation_are_joined():
    assert (
        join_punctuation("John 's  town ( Houston , Texas ) !") == "John's town (Houston, Texas)!"
    )


def test_missing_files_name_the_remedy(tmp_path):
    write_wikihop(tmp_path)
    with pytest.raises(DataError, match=r"searched .*; download qangaroo_v1.1.zip from https"):
        find(tmp_path, masked=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": []}, "expected a list of questions, got dict"),
        ([{**question(0), "answer": "chile"}], r"question 0 \(WH_train_0\): the answer 'chile' is"),
        ([{**question(0), "candidates": []}], "question 0: field 'candidates' must be a list of"),
        ([{**question(0), "supports": ["a", 1]}], "field 'supports' must be a list of texts"),
        ([{"id": "x"}], "question 0 has no field"),
    ],
)
def test_malformed_files_are_refused(tmp_path, content, message):
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        list(read_questions(tmp_path / "train.json"))
