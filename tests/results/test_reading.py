"""A record comes back as it was; whatever is no record is refused by name."""

import dataclasses
import json
import subprocess
import sys

import pytest

from longspan.errors import DataError, RunError
from longspan.results import Point, Result, Score, config_hash, load, load_all

SCORE = Score(accuracy=0.5, loss=1.25, examples=40, majority=0.2)
POINT = Point(
    step=4,
    seconds=0.5,
    learning_rate=1e-3,
    train_loss=None,
    train_accuracy=0.1,
    validation_loss=2.3,
    validation_accuracy=0.1,
)
RESULT = Result(
    protocol="quick",
    overrides={"training.steps": 12},
    task="listops",
    task_version=1,
    task_options={"train": 200},
    data_source="generated",
    data_checksum="ab" * 32,
    chance=0.1,
    mechanism="local",
    options={"window": 16, "nested": {"a": [1, None]}},
    backend="torch",
    model={"width": 16},
    training={"steps": 12},
    seed=3,
    config_hash="0123456789",
    parameters=100,
    full_parameters=100,
    budget={"kind": "steps", "limit": 12},
    tuning=None,
    flops=10**13,
    attended_pairs=None,
    length=39,
    selection="best validation",
    selected_step=12,
    scores={"validation": SCORE, "test": SCORE},
    answers=None,
    slices={},
    alarms=[],
    steps=12,
    curve=[POINT],
    seconds=1.0,
    waiting=0.25,
    tokens_per_second=100.1,
    peak_memory=None,
    device="cpu, 1 threads",
    processes=1,
    parallelism="none",
    dtype="float32",
    versions={"torch": "2.13"},
    git_commit=None,
    date="2026-01-01T00:00:00+00:00",
)


def test_a_record_comes_back_as_it_was_from_where_it_belongs(tmp_path):
    path = RESULT.save(tmp_path)
    assert path == tmp_path / "quick" / "listops" / "local-0123456789-3.json"
    assert load(path) == RESULT
    assert load_all([tmp_path]) == [RESULT]


def test_a_whole_number_may_stand_for_a_real_one(tmp_path):
    path = RESULT.save(tmp_path)
    assert '"seconds": 1.0' in path.read_text()
    path.write_text(path.read_text().replace('"seconds": 1.0', '"seconds": 1'))
    assert load(path) == RESULT


def test_a_long_curve_is_checked_to_its_last_point(tmp_path):
    """Lists are looked at field by field; what is wrong with one point is still said."""
    many = dataclasses.replace(RESULT, curve=[POINT] * 50)
    path = many.save(tmp_path)
    assert load(path) == many
    whole = json.loads(path.read_text())
    for value, said in (
        (True, "got True"),
        ("x", "got 'x'"),
        (10**400, "got 1000"),
        (None, "None"),
    ):
        spoilt = json.loads(json.dumps(whole))
        spoilt["curve"][-1]["seconds"] = "VALUE"
        path.write_text(json.dumps(spoilt).replace('"VALUE"', json.dumps(value)))
        with pytest.raises(DataError, match=f"seconds must be a number, .*{said}"):
            load(path)
    whole["curve"][-1]["seconds"] = 1
    path.write_text(json.dumps(whole))
    last = load(path).curve[-1].seconds
    assert (last, type(last)) == (1.0, float)


def test_a_record_of_schema_1_is_read_and_says_nothing_of_waiting(tmp_path):
    path = RESULT.save(tmp_path)
    record = {**json.loads(path.read_text()), "schema": 1}
    del record["waiting"]
    path.write_text(json.dumps(record))
    assert load(path) == dataclasses.replace(RESULT, waiting=None)
    # saved again it is a record of today
    assert load(load(path).save(tmp_path / "again")) == dataclasses.replace(RESULT, waiting=None)
    path.write_text(json.dumps({k: v for k, v in record.items() if k != "seconds"}))
    with pytest.raises(DataError, match=r"missing fields \['seconds'\], unknown fields \[\]"):
        load(path)


def test_a_number_that_is_none_is_not_written(tmp_path):
    score = dataclasses.replace(SCORE, loss=float("nan"))
    with pytest.raises(RunError, match="it would hold a number that is not one"):
        dataclasses.replace(RESULT, scores={"test": score}).save(tmp_path)
    assert not list(tmp_path.rglob("*.*"))


def without(name):
    return lambda record: record.pop(name)


def setting(value, *way):
    def change(record):
        for name in way[:-1]:
            record = record[name]
        record[way[-1]] = value

    return change


MALFORMED = {
    "no schema": (without("schema"), r"is not a longspan result \(no 'schema' field\)"),
    "older": (setting(0, "schema"), "has schema 0, this version reads 1 to 3"),
    "newer": (setting(4, "schema"), "has schema 4, this version reads 1 to 3"),
    "missing": (without("seed"), r"Result with missing fields \['seed'\], unknown fields \[\]"),
    "unknown": (setting(1, "x"), r"Result with missing fields \[\], unknown fields \['x'\]"),
    "text for number": (setting("3", "seed"), "seed must be a whole number, got '3'"),
    "fraction": (setting(0.5, "steps"), "steps must be a whole number, got 0.5"),
    "truth": (setting(True, "parameters"), "parameters must be a whole number, got True"),
    "none": (setting(None, "chance"), "chance must be a number, got None"),
    "number for text": (setting(7, "task"), "task must be text, got 7"),
    "options": (setting([1], "options"), r"options must be named values, got \[1\]"),
    "version": (setting(2, "versions", "torch"), "versions must be named values"),
    "scores": (setting(5, "scores"), "scores must be named values, got 5"),
    "curve": (setting(5, "curve"), "curve must be a list, got 5"),
    "score": (setting(None, "scores", "test"), "a Score has named fields, got None"),
    "part of score": (setting({}, "scores", "test"), r"Score with missing fields \['accuracy'"),
    "accuracy": (setting("x", "scores", "test", "accuracy"), "Score is malformed: accuracy must"),
    "point": (setting({"step": 1}, "curve", 0), "Point with missing fields"),
    "loss": (setting("x", "curve", 0, "train_loss"), "train_loss must be a number or none"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_every_malformed_record_is_refused_with_its_file_and_its_fault(tmp_path, case):
    spoil, message = MALFORMED[case]
    path = RESULT.save(tmp_path)
    record = json.loads(path.read_text())
    spoil(record)
    path.write_text(json.dumps(record))
    for read in (load, lambda _: load_all([tmp_path])):
        with pytest.raises(DataError, match=message) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("text", ["[]", "3", "{}", '"schema"', '{"schema": 1}', ""])
def test_foreign_json_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a\.json"):
        load(path)


def test_every_field_is_needed(tmp_path):
    path = RESULT.save(tmp_path)
    whole = json.loads(path.read_text())
    for field in dataclasses.fields(Result):
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != field.name}))
        with pytest.raises(DataError, match=f"'{field.name}'"):
            load(path)


CONFIG = {"b": [1, 2.5, None, "é"], "a": {"y": True, "x": 1e-6}}


def test_the_hash_is_the_same_in_another_process_and_order_of_names():
    code = f"from longspan.results import config_hash; print(config_hash({CONFIG!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    turned = {"a": {"x": 1e-6, "y": True}, "b": CONFIG["b"]}
    assert found == {config_hash(CONFIG)} == {config_hash(turned)}
    assert len(config_hash(CONFIG)) == 10


def test_another_value_has_another_hash():
    others = [{**CONFIG, "b": []}, {**CONFIG, "a": {"y": True, "x": 2e-6}}, {"a": CONFIG["a"]}]
    assert len({config_hash(x) for x in (CONFIG, *others)}) == 4


def test_records_come_in_a_stable_order_and_working_files_are_passed_over(tmp_path):
    seeds = [dataclasses.replace(RESULT, seed=seed) for seed in (2, 0, 1)]
    saved = [result.save(tmp_path) for result in seeds]
    work = saved[0].parent / "work" / saved[0].stem
    for name in ("experiment.json", "last.json", "best-000004/config.json", "a/b/c.json"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("{}")
    (saved[0].parent / f".{saved[0].name}.json").write_text("{")
    assert [result.seed for result in load_all([tmp_path])] == [0, 1, 2]
    assert [result.seed for result in load_all([tmp_path / "quick", tmp_path])] == [0, 1, 2] * 2


def test_results_may_lie_in_a_folder_called_work(tmp_path):
    RESULT.save(tmp_path / "work")
    assert load_all([tmp_path / "work"]) == [RESULT]
    assert load_all([tmp_path / "work" / "quick" / "listops"]) == [RESULT]


def test_a_folder_that_is_absent_or_empty_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(DataError, match=r"absent is not a folder of results"):
        load_all([tmp_path / "absent"])
    with pytest.raises(DataError, match=r"holds no results; run `longspan arena` first"):
        load_all([tmp_path])
