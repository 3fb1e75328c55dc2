"""Data cards and the list of data sets, compared with data whose figures are known."""

import dataclasses
import json
import re
import statistics

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data import cache as cached
from longspan.errors import DataError
from longspan.files import read_json, write_json
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.data_cards import (
    GENERATED,
    changed_options,
    compute_statistics,
    is_generated,
    list_tasks,
    write_card,
)


@pytest.fixture
def reviews(nowhere):
    """Write a small IMDB: reviews of 2, 3, ... bytes with alternating labels."""
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
    """Return the table below a title of a card: rows of cells."""
    section = text.partition(f"\n## {title}\n\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_statistics_match_the_examples(reviews):
    found = compute_statistics(opened(reviews, test=6), "test")
    texts = [task_text for task_text in shown(opened(reviews, test=6), "test")]
    lengths = [len(text) for text, _ in texts]
    assert found["examples"] == 6
    assert found["labels"] == {0: 3, 1: 3}
    assert found["sequences"] == {
        "tokens": {
            "sum": sum(lengths),
            "minimum": min(lengths),
            "mean": pytest.approx(statistics.fmean(lengths)),
            "median": statistics.median(lengths),
            "quantile_95": pytest.approx(
                statistics.quantiles(lengths, n=20, method="inclusive")[-1]
            ),
            "maximum": max(lengths),
        }
    }


def shown(task, split):
    return [task.show(split, row).split(" = ") for row in range(task.size(split))]


def test_statistics_count_scored_tokens(tmp_path):
    task = build("copying", {"train": 3, "validation": 2, "test": 5, "length": 20, "count": 4})
    task.open(tmp_path)
    found = compute_statistics(task, "test")
    assert found["examples"] == 5
    assert sum(found["labels"].values()) == 5 * 4
    assert set(found["sequences"]) == {"tokens"}
    assert found["sequences"]["tokens"]["sum"] == 5 * 20


def test_statistics_cover_both_sequences_of_a_pair(nowhere):
    folder = nowhere / "aan"
    folder.mkdir()
    for part in ("train", "eval", "test"):
        lines = [f"{label}.0\t{label}\t9\t{'x' * 5}\t{'y' * (7 + label)}" for label in (0, 1)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n")
    task = build("retrieval")
    task.open(nowhere / "cache", folder)
    found = compute_statistics(task, "test")["sequences"]
    assert list(found["tokens"].values()) == [10, 5, 5.0, 5.0, 5.0, 5]
    assert list(found["second"].values()) == [15, 7, 7.5, 7.5, pytest.approx(7.95), 8]
    rows = rows_of(write_card(task, nowhere / "cache"), "Splits")
    names = [name for split in SPLITS for name in (split, f"{split}, second")]
    assert [row[0] for row in rows] == names
    assert "two sequences of tokens" in write_card(task, nowhere / "cache")


def test_card_has_the_figures_of_the_built_data_set(reviews):
    task = opened(reviews, length=20)
    text = write_card(task, reviews / "cache")
    record = task.dataset.manifest
    rows = {row[0]: row[1:] for row in rows_of(text, "Splits")}
    assert rows["test"] == [
        "12",
        "90",
        "2",
        "7.5",
        "7.5",
        "12.4",
        "13",
        f"{record.files['test'].bytes:,}",
    ]
    assert rows["train"][0] == f"{task.size('train')}"
    assert rows_of(text, "Labels")[0][:2] == ["0: neg", "4 (50.00 %)"]
    assert record.checksum in text
    assert all(file.sha256 in text for file in record.files.values())
    assert f"| this data set | {record.source} |" in text
    noted = json.loads(text.partition("```json\n")[2].partition("\n```")[0])
    assert noted == {"origin": record.origin, "facts": record.facts}
    assert GENERATED not in text
    assert "is not built:" not in text
    # Cards are published, so they have no local path.
    assert str(reviews) not in text


@pytest.mark.parametrize(
    ("options", "train", "test"),
    [({}, "25,000", "25,000"), ({"train": 40, "test": 20}, "40", "20")],
)
def test_card_of_validation_on_test_has_its_sizes(nowhere, options, train, test):
    text = write_card(build("text", {"validation": "test", **options}), nowhere / "cache")
    assert dict(rows_of(text, "Splits")) == {"train": train, "validation": test, "test": test}
    assert "**the validation split is the test split**" in text


UNKNOWN = "not known before the build"


@pytest.mark.parametrize(
    ("name", "options", "sizes"),
    [
        ("image", {"validation": 1_000}, ("49,000", "1,000", "10,000")),
        ("image", {"train": 7, "test": 8}, ("7", "5,000", "8")),
        ("text", {}, ("19,860", "5,000", "25,000")),
        ("text", {"validation": 1_000}, (UNKNOWN, "1,000", "25,000")),
        ("text", {"seed": 1}, (UNKNOWN, "5,000", "25,000")),
        ("text", {"validation": 1_000, "train": 9}, ("9", "1,000", "25,000")),
        ("pathfinder", {}, ("160,000", "20,000", "20,000")),
        ("pathfinder", {"source": "release"}, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ("path_x", {"source": "release", "test": 5}, (UNKNOWN, UNKNOWN, "5")),
        ("retrieval", {"train": 10}, ("10", "18,090", "17,437")),
    ],
)
def test_card_before_the_build_has_sizes_that_are_known(nowhere, name, options, sizes):
    text = write_card(build(name, options), nowhere / "cache")
    assert dict(rows_of(text, "Splits")) == dict(zip(SPLITS, sizes, strict=True))


def test_card_ignores_data_sets_that_are_corrupted_or_have_other_options(reviews, logged):
    task = opened(reviews)
    assert "is not built:" in write_card(build("text", {"length": 8}), reviews / "cache")
    path = task.dataset.folder / "test.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    text = write_card(build("text", dataclasses.asdict(task.options)), reviews / "cache")
    assert "is not built:" in text
    assert "test.arrow" in logged.text


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_a_card_before_it_is_built(name, nowhere):
    task = TASKS[name]()
    text = write_card(task, nowhere / "cache")
    assert text.startswith(f"# Data card: {task.info.title}\n")
    assert task.info.license in text
    described = {row[0].strip("`"): row for row in rows_of(text, "Options")}
    for field in dataclasses.fields(task.Options):
        _, help, value, default = described[field.name]
        assert help == field.metadata["help"]
        assert value == default == f"`{field.default}`"
    assert (GENERATED in text) == is_generated(task)
    # Published scores belong to protocols, not to the data.
    published = {f"{100 * score.value:.2f}" for score in task.info.published}
    assert not published & set(re.findall(r"\d\d\.\d\d", text.partition("## Notes")[0]))


def test_card_summarizes_many_classes(tmp_path):
    options = {"train": 4, "validation": 2, "test": 2, "length": 40, "pairs": 8}
    task = build("recall", options)
    task.open(tmp_path)
    rows = dict((row[0], row[1:]) for row in rows_of(write_card(task, tmp_path), "Labels"))
    assert rows["targets"] == ["32", "16", "16"]
    assert len(rows) == 4


def test_changed_options_differ_from_the_defaults():
    task = build("text")
    assert changed_options(task, dataclasses.asdict(task.options)) == {}
    other = build("text", {"length": 5, "train": 10})
    assert changed_options(other, dataclasses.asdict(other.options)) == {"length": 5, "train": 10}
    assert changed_options(task, {"length": 1024, "bygone": 1}) == {"bygone": 1}


def test_list_has_every_task_and_built_data_set(reviews):
    small, large = opened(reviews), opened(reviews, length=20)
    rows = {row["name"]: row for row in list_tasks(reviews / "cache")}
    assert set(rows) == set(TASKS)
    assert rows["listops"]["generated"]
    assert rows["listops"]["missing"] is None
    assert rows["listops"]["built"] == []
    assert not rows["text"]["generated"]
    # A built data set is not a source.
    assert "IMDB is not here" in rows["text"]["missing"]
    found = {one["folder"]: one for one in rows["text"]["built"]}
    for task in (small, large):
        one = found[str(task.dataset.folder)]
        assert one["options"] == changed_options(task, dataclasses.asdict(task.options))
        assert one["rows"] == {split: task.size(split) for split in SPLITS}
        on_disk = sum(path.stat().st_size for path in task.dataset.folder.glob("*.arrow"))
        assert one["bytes"] == on_disk
        assert one["source"] == task.source
        assert one["problem"] is None


def test_list_names_the_problem_of_unusable_data_sets(reviews):
    old, broken, sound = opened(reviews), opened(reviews, length=5), opened(reviews, length=6)
    path = old.dataset.folder / "manifest.json"
    write_json(path, {**read_json(path), "version": 0})
    (broken.dataset.folder / "manifest.json").write_text("{}")
    rows = {row["name"]: row for row in list_tasks(reviews / "cache")}["text"]["built"]
    problems = {one["folder"]: one["problem"] for one in rows}
    assert problems.pop(str(sound.dataset.folder)) is None
    assert len(problems) == 2
    assert all("delete" in problem and folder in problem for folder, problem in problems.items())


def test_verify_compares_content_and_name_with_the_manifest(reviews):
    task = opened(reviews)
    cache, folder = reviews / "cache", task.dataset.folder
    assert set(cached.verify(cache)) == {folder}
    assert cached.verify(cache, "listops") == {}
    path = folder / "manifest.json"
    whole, content = path.read_text(), read_json(path)
    path.write_text(whole.replace(task.checksum, "0" * 64))
    with pytest.raises(DataError, match=r"is damaged: .*; or delete"):
        cached.verify(cache, "text")
    write_json(path, {**content, "checksum": "0" * 64})
    with pytest.raises(DataError, match="does not match its recorded checksum; delete"):
        cached.verify(cache, "text")
    write_json(path, {**content, "options": {**content["options"], "length": 8}})
    with pytest.raises(DataError, match="has the manifest of another dataset; delete"):
        cached.verify(cache)
    path.write_text(whole)
    other = opened(reviews, length=5).dataset.folder
    for one in (folder, other):
        (one / "train.arrow").unlink()
    with pytest.raises(DataError) as rejected:
        cached.verify(cache)
    assert str(folder) in str(rejected.value)
    assert str(other) in str(rejected.value)
