"""Data cards and the list of sets, against sets whose every figure is known."""

import dataclasses
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny
from longspan.data import cache as cached
from longspan.errors import DataError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.cards import GENERATED, card, changed, generated, listing, statistics, values


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data can be found, and the home folder is empty."""
    for variable in ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def reviews(nowhere):
    """A copy of IMDB in small: reviews of 2, 3, ... bytes, good and bad ones by turns."""
    for part, letter in (("train", "a"), ("test", "b")):
        rows = range(12)
        texts = [letter * (2 + row) for row in rows]
        table = pa.table({"text": texts, "label": [row % 2 for row in rows]})
        (nowhere / "imdb").mkdir(exist_ok=True)
        pq.write_table(table, nowhere / "imdb" / f"{part}.parquet")
    return nowhere


def opened(reviews, **options):
    task = build("text", {"length": 9, "validation": 4, **options})
    task.open(reviews / "cache", reviews / "imdb")
    return task


def rows_of(text, title):
    """The table below a title of a card: rows of cells."""
    section = text.partition(f"\n## {title}\n\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_statistics_are_those_of_the_examples(reviews):
    found = statistics(opened(reviews, test=6), "test")
    texts = [task_text for task_text in shown(opened(reviews, test=6), "test")]
    lengths = [len(text) for text, _ in texts]
    assert found["examples"] == 6
    assert found["labels"] == {0: 3, 1: 3}
    assert found["sequences"] == {
        "tokens": {
            "sum": sum(lengths),
            "least": min(lengths),
            "median": float(np.median(lengths)),
            "greatest": max(lengths),
        }
    }


def shown(task, split):
    return [task.show(split, row).split(" = ") for row in range(task.size(split))]


def test_the_median_lies_between_two_lengths(reviews):
    # twelve reviews of 2, 3, ... 13 bytes, none cut
    found = statistics(opened(reviews, length=20), "test")["sequences"]["tokens"]
    assert found == {"sum": sum(range(2, 14)), "least": 2, "median": 7.5, "greatest": 13}


def test_targets_of_scored_tokens_are_counted_and_are_no_sequence(tmp_path):
    task = build("copying", {"train": 3, "validation": 2, "test": 5, "length": 20, "count": 4})
    task.open(tmp_path)
    found = statistics(task, "test")
    assert found["examples"] == 5
    assert sum(found["labels"].values()) == 5 * 4
    assert set(found["sequences"]) == {"tokens"}
    assert found["sequences"]["tokens"]["sum"] == 5 * 20


def test_both_sequences_of_a_pair_are_measured(nowhere):
    folder = nowhere / "aan"
    folder.mkdir()
    for part in ("train", "eval", "test"):
        lines = [f"{label}.0\t{label}\t9\t{'x' * 5}\t{'y' * (7 + label)}" for label in (0, 1)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n")
    task = build("retrieval")
    task.open(nowhere / "cache", folder)
    found = statistics(task, "test")["sequences"]
    assert found["tokens"] == {"sum": 10, "least": 5, "median": 5.0, "greatest": 5}
    assert found["second"] == {"sum": 15, "least": 7, "median": 7.5, "greatest": 8}
    rows = rows_of(card(task, nowhere / "cache"), "Splits")
    names = [name for split in SPLITS for name in (split, f"{split}, second")]
    assert [row[0] for row in rows] == names
    assert "two sequences of tokens" in card(task, nowhere / "cache")


def test_a_card_has_the_figures_of_the_built_set(reviews):
    task = opened(reviews, length=20)
    text = card(task, reviews / "cache")
    record = task.built.manifest
    rows = {row[0]: row[1:] for row in rows_of(text, "Splits")}
    assert rows["test"] == ["12", "90", "2", "7.5", "13", f"{record.files['test'].bytes:,}"]
    assert rows["train"][0] == f"{task.size('train')}"
    assert rows_of(text, "Labels")[0][:2] == ["0", "4 (50.00 %)"]
    assert record.checksum in text
    assert all(file.sha256 in text for file in record.files.values())
    assert f"| this set | {record.source} |" in text
    noted = json.loads(text.partition("```json\n")[2].partition("\n```")[0])
    assert noted == {"origin": record.origin, "facts": record.facts}
    assert GENERATED not in text
    assert "is not built here" not in text
    # a card is to be handed on
    assert str(reviews) not in text


def test_a_card_of_a_set_that_is_not_built_says_so(nowhere):
    text = card(build("text", {"length": 77, "train": 10}), nowhere / "cache")
    assert "is not built here" in text
    rows = dict(rows_of(text, "Splits"))
    assert rows == {"train": "10", "validation": "5,000", "test": "25,000 (default)"}
    assert [cell.strip("`") for row in rows_of(text, "Options") for cell in (row[0], *row[2:])][
        :3
    ] == ["length", "77", "1024"]
    assert "## Record" not in text
    assert "## Labels" not in text
    assert TASKS["text"].info.checksum in text


def test_a_card_is_of_the_set_with_these_options_alone(reviews):
    opened(reviews)
    assert "is not built here" in card(build("text", {"length": 8}), reviews / "cache")


def test_a_card_of_a_corrupted_set_does_not_read_it(reviews, caplog):
    task = opened(reviews)
    path = task.built.folder / "test.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    text = card(build("text", dict(values(task))), reviews / "cache")
    assert "is not built here" in text
    assert "test.arrow" in caplog.text


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_card_before_it_is_built(name, nowhere):
    task = TASKS[name]()
    text = card(task, nowhere / "cache")
    assert text.startswith(f"# Data card: {task.info.title}\n")
    assert task.info.license in text
    described = {row[0].strip("`"): row for row in rows_of(text, "Options")}
    for field in dataclasses.fields(task.Options):
        _, help, value, default = described[field.name]
        assert help == field.metadata["help"]
        assert value == default == f"`{field.default}`"
    assert (GENERATED in text) == generated(task)
    # others' scores are of other protocols, and no property of the data
    published = {f"{100 * score.accuracy:.2f}" for score in task.info.published}
    assert not published & set(re.findall(r"\d\d\.\d\d", text.partition("## Notes")[0]))


def test_a_generated_set_says_that_it_is_not_the_published_one(tiny_cache):
    text = card(build("listops", tiny.TASK), tiny_cache)
    assert GENERATED in text
    assert "generated by longspan, seed 0" in text


def test_a_card_names_a_selection_on_test(reviews):
    text = card(opened(reviews, validation="test"), reviews / "cache")
    assert "**the validation split is the test split**" in text
    assert "validation split is" not in card(opened(reviews), reviews / "cache")


def test_many_classes_are_summed_up(tmp_path):
    options = {"train": 4, "validation": 2, "test": 2, "length": 40, "pairs": 8}
    task = build("recall", options)
    task.open(tmp_path)
    rows = dict((row[0], row[1:]) for row in rows_of(card(task, tmp_path), "Labels"))
    assert rows["targets"] == ["32", "16", "16"]
    assert len(rows) == 4


@pytest.mark.parametrize("name", ["listops", "text"])
def test_generated_is_what_needs_no_file(name, reviews):
    """Whatever is there: the answer is about the task, not about the machine."""
    assert generated(TASKS[name]()) == (name == "listops")


def test_imported_expressions_are_not_generated():
    assert not generated(build("listops", {"source": "release"}))


def test_changed_options_are_those_that_are_not_the_defaults():
    task = build("text")
    assert changed(task, values(task)) == {}
    other = build("text", {"length": 5, "train": 10})
    assert changed(other, values(other)) == {"length": 5, "train": 10}
    assert changed(task, {"length": 1024, "bygone": 1}) == {"bygone": 1}


def test_the_list_has_every_task_and_every_set(reviews):
    small, large = opened(reviews), opened(reviews, length=20)
    rows = {row["name"]: row for row in listing(reviews / "cache")}
    assert set(rows) == set(TASKS)
    assert rows["listops"]["generated"]
    assert rows["listops"]["missing"] is None
    assert rows["listops"]["built"] == []
    assert not rows["text"]["generated"]
    # the source is gone from the usual places; what was built is not a source
    assert "IMDB is not here" in rows["text"]["missing"]
    found = {one["folder"]: one for one in rows["text"]["built"]}
    for task in (small, large):
        one = found[str(task.built.folder)]
        assert one["options"] == changed(task, values(task))
        assert one["rows"] == {split: task.size(split) for split in SPLITS}
        on_disk = sum(path.stat().st_size for path in task.built.folder.glob("*.arrow"))
        assert one["bytes"] == on_disk
        assert one["source"] == task.source
        assert one["problem"] is None


def test_the_list_sees_a_source_that_is_named(reviews):
    rows = {row["name"]: row for row in listing(reviews / "cache", reviews / "imdb")}
    assert rows["text"]["missing"] is None


def test_the_list_shows_what_cannot_be_used_beside_what_can(reviews):
    old, broken, sound = opened(reviews), opened(reviews, length=5), opened(reviews, length=6)
    path = old.built.folder / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 0'))
    (broken.built.folder / "manifest.json").write_text("{}")
    rows = {row["name"]: row for row in listing(reviews / "cache")}["text"]["built"]
    problems = {one["folder"]: one["problem"] for one in rows}
    assert problems.pop(str(sound.built.folder)) is None
    assert len(problems) == 2
    assert all("delete" in problem and folder in problem for folder, problem in problems.items())


def test_opening_what_is_built_builds_nothing(nowhere, tiny_cache):
    task = build("listops", {**tiny.TASK, "train": 201})
    assert not task.open_built(tiny_cache)
    assert not list(nowhere.glob("cache/**"))
    task = build("listops", tiny.TASK)
    assert task.open_built(tiny_cache)
    assert task.built.manifest.options == values(task)


def test_verify_compares_the_content_and_the_name_with_the_record(reviews):
    task = opened(reviews)
    cache, folder = reviews / "cache", task.built.folder
    assert set(cached.verify(cache)) == {folder}
    assert cached.verify(cache, "listops") == {}
    path = folder / "manifest.json"
    whole = path.read_text()
    path.write_text(whole.replace(task.checksum, "0" * 64))
    with pytest.raises(DataError, match="does not match its recorded checksum; delete"):
        cached.verify(cache, "text")
    path.write_text(whole.replace('"length": 9', '"length": 8'))
    with pytest.raises(DataError, match="holds the record of another set; delete"):
        cached.verify(cache)
    path.write_text(whole)
    other = opened(reviews, length=5).built.folder
    for one in (folder, other):
        (one / "train.arrow").unlink()
    with pytest.raises(DataError) as refused:
        cached.verify(cache)
    assert str(folder) in str(refused.value)
    assert str(other) in str(refused.value)
