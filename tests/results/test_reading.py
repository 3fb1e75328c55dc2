"""Loading of records, and rejection of invalid files."""

import dataclasses
import json

import pytest
from record_examples import FAILURE, POINT, RESULT, SCORE, remove_field, replace_value

from longspan.errors import DataError, OptionError
from longspan.files import read_json, write_json
from longspan.results import (
    Failure,
    Result,
    failure_paths,
    load_failure,
    load_failures,
    load_result,
    load_results,
    record_paths,
    write_record,
)
from longspan.results.reading import ANALYSES, CONTEXTS, EVALUATIONS, side_record_paths

STEM = f"local-{RESULT.config_hash}-3"


def test_saved_record_loads_equal(tmp_path):
    path = RESULT.save(tmp_path)
    assert path == tmp_path / "smoke" / "listops" / f"{STEM}.json"
    assert load_result(path) == RESULT
    assert load_results([tmp_path]) == [RESULT]
    failed = FAILURE.save(tmp_path)
    assert failed == tmp_path / "smoke" / "listops" / f"{STEM}.failed.json"
    assert load_failure(failed) == FAILURE
    assert write_record(RESULT, path).read_bytes() == path.read_bytes()


def test_record_properties():
    for record in (RESULT, FAILURE):
        assert (record.task, record.mechanism, record.stem) == ("listops", "local", STEM)
    assert RESULT.main.name == "accuracy"
    assert RESULT.score() == RESULT.score("validation") == 0.5
    assert RESULT.config.mechanism.options["window"] == 16
    assert RESULT.effective_config.mechanism.options["window"] == 32
    unchanged = dataclasses.replace(RESULT, resolved_budget=None)
    assert unchanged.effective_config == RESULT.config


def test_integer_is_converted_for_float_field(tmp_path):
    path = RESULT.save(tmp_path)
    assert '"seconds": 1.0' in path.read_text()
    write_json(path, {**read_json(path), "seconds": 1})
    assert '"seconds": 1,' in path.read_text()
    record = load_result(path)
    assert record == RESULT
    assert type(record.seconds) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "curve.49.seconds should be a valid number, got True"),
        ("x", "curve.49.seconds should be a valid number, got 'x'"),
        (None, "curve.49.seconds should be a valid number, got None"),
        (2**63, r"cannot be read as JSON \(9223372036854775808... has more than 64 bits\)"),
    ],
)
def test_every_point_of_long_curve_is_validated(tmp_path, value, message):
    long_curve = dataclasses.replace(RESULT, curve=[POINT] * 50)
    path = long_curve.save(tmp_path)
    assert load_result(path) == long_curve
    record = read_json(path)
    record["curve"][-1]["seconds"] = value
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=message):
        load_result(path)


@pytest.mark.parametrize("record", [RESULT, FAILURE])
def test_changed_digit_is_found(tmp_path, record):
    path = record.save(tmp_path)
    load = load_result if record is RESULT else load_failure
    text = path.read_text()
    path.write_text(text.replace('"seed": 3', '"seed": 2'))
    with pytest.raises(DataError, match=r"json is damaged: its content has sha256 \w+, expected"):
        load(path)
    # An edit by hand without the checksum is read.
    path.write_text(json.dumps({**read_json(record.save(tmp_path)), "seed": 2}))
    assert load(path) == dataclasses.replace(record, seed=2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_rejected(tmp_path, value):
    with pytest.raises(OptionError, match=r"loss should be a finite number, got (nan|inf)"):
        dataclasses.replace(SCORE, loss=value)
    path = RESULT.save(tmp_path)
    record = read_json(path)
    record["scores"]["test"]["loss"] = value
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=f"{path} cannot be read as JSON"):
        load_result(path)


MALFORMED = {
    "no schema": (remove_field("schema"), "is not a longspan record: it has no field 'schema'"),
    "older schema": (replace_value(6, "schema"), "record of schema 7, got 6; read it with the ver"),
    "newer schema": (replace_value(8, "schema"), "record of schema 7, got 8; read it with the ver"),
    "schema as text": (replace_value("7", "schema"), "of schema 7, got '7'"),
    "boolean schema": (replace_value(True, "schema"), "of schema 7, got True"),
    "missing": (remove_field("seed"), "seed is missing"),
    "unknown": (replace_value(1, "x"), "x is not a known field"),
    "text for integer": (replace_value("3", "seed"), "seed should be a valid integer, got '3'"),
    "fraction": (replace_value(0.5, "steps"), "steps should be a valid integer, .*got 0.5"),
    "boolean": (
        replace_value(True, "num_parameters"),
        "num_parameters should be a valid integer, got",
    ),
    "integer for text": (replace_value(7, "protocol"), "protocol should be a valid string, got 7"),
    "config": (replace_value([1], "config"), r"config should be an object, got \[1\]"),
    "option": (
        replace_value("12", "config", "training", "steps"),
        "config.training.steps should be a valid integer, got '12'",
    ),
    "range": (replace_value(0, "config", "training", "steps"), "steps must be at least 1, got 0"),
    "budget": (
        replace_value("money", "config", "budget", "kind"),
        r"config.budget.kind should be 'steps', .* or 'microbatch', got 'money'",
    ),
    "version": (
        replace_value(2, "versions", "torch"),
        "versions.torch should be a valid string, got 2",
    ),
    "scores": (replace_value(5, "scores"), "scores should be an object, got 5"),
    "curve": (replace_value(5, "curve"), "curve should be a valid array, got 5"),
    "score": (replace_value(None, "scores", "test"), "scores.test should be an object, got None"),
    "part of score": (
        replace_value({}, "scores", "test"),
        "scores.test.metrics is missing; scores.te",
    ),
    "accuracy": (
        replace_value("x", "scores", "test", "metrics", "accuracy"),
        "scores.test.metrics.accuracy should be a valid number, got 'x'",
    ),
    "point": (replace_value({"step": 1}, "curve", 0), "curve.0.seconds is missing"),
    "loss": (
        replace_value("x", "curve", 0, "train_loss"),
        "curve.0.train_loss should be a valid numb",
    ),
    "metric": (
        replace_value("acuracy", "metric"),
        "metric called 'acuracy'; did you mean accuracy|'ac",
    ),
    "main metric": (
        replace_value("f1", "metric"),
        "scores of validation, test lack the main metric f1",
    ),
    "resolved budget": (
        replace_value({"training.steps": 0}, "resolved_budget", "changes"),
        "steps must be at least 1, got 0; read it with the version",
    ),
    "trial": (replace_value({}, "tuning", "trials", 0), "tuning.trials.0.changes is missing"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_record_is_rejected_with_file_and_reason(tmp_path, case):
    change, message = MALFORMED[case]
    path = RESULT.save(tmp_path)
    record = json.loads(path.read_text())
    change(record)
    write_json(path, record)
    for read in (load_result, lambda _: load_results([tmp_path])):
        with pytest.raises(DataError, match=message) as caught:
            read(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_message_lists_every_invalid_field(tmp_path):
    path = RESULT.save(tmp_path)
    record = json.loads(path.read_text())
    record["seed"] = "3"
    record["extra"] = 1
    record["config"]["model"]["hidden_size"] = 1.5
    del record["device"], record["curve"][0]["step"]
    write_json(path, record)
    with pytest.raises(DataError) as caught:
        load_result(path)
    for reason in (
        "seed should be a valid integer, got '3'",
        "extra is not a known field",
        "config.model.hidden_size should be a valid integer",
        "device is missing",
        "curve.0.step is missing",
    ):
        assert reason in str(caught.value)


def test_malformed_failure_is_rejected(tmp_path):
    path = FAILURE.save(tmp_path)
    record = json.loads(path.read_text())
    for change, message in (
        ({"kind": "tired"}, "kind should be 'memory', 'diverged', 'died' or 'source', got 'tired'"),
        ({"reason": None}, "reason should be a valid string, got None"),
        ({"schema": 9}, "of schema 7, got 9"),
    ):
        write_json(path, {**record, **change})
        with pytest.raises(DataError, match=message):
            load_failure(path)
    with pytest.raises(DataError, match="scores is missing"):
        load_result(write_json(path, record) or path)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '"schema"', '{"schema": 1}', ""])
def test_foreign_json_is_rejected(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    for load in (load_result, load_failure):
        with pytest.raises(DataError, match=r"a\.json"):
            load(path)


@pytest.mark.parametrize("kind", [Result, Failure])
def test_every_field_is_required(tmp_path, kind):
    record, load = (RESULT, load_result) if kind is Result else (FAILURE, load_failure)
    path = record.save(tmp_path)
    content = json.loads(path.read_text())
    for field in dataclasses.fields(kind):
        # None of random initialization, or of no causal model; empty where one program trained it.
        if field.name in ("start", "decoding_state", "earlier_code"):
            continue
        write_json(path, {k: v for k, v in content.items() if k != field.name})
        with pytest.raises(DataError, match=f"(?:{field.name} is missing|field '{field.name}')"):
            load(path)


def test_records_are_listed_in_stable_order_without_other_files(tmp_path):
    seeds = [dataclasses.replace(RESULT, seed=seed) for seed in (2, 0, 1)]
    saved = [result.save(tmp_path) for result in seeds]
    folder = saved[0].parent
    work = folder / "work" / saved[0].stem
    for path in (
        *(work / name for name in ("experiment.json", "best-000004/config.json")),
        folder / "trials" / saved[0].name,
        folder / "analysis" / saved[0].name,
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (folder / f".{saved[0].name}.json").write_text("{")
    assert [result.seed for result in load_results([tmp_path])] == [0, 1, 2]
    assert [result.seed for result in load_results([tmp_path / "smoke", tmp_path])] == [0, 1, 2] * 2


def test_failure_is_listed_until_run_finishes(tmp_path):
    failed = FAILURE.save(tmp_path)
    other = dataclasses.replace(FAILURE, seed=4).save(tmp_path)
    assert failure_paths(tmp_path) == [failed, other]
    finished = RESULT.save(tmp_path)
    assert failure_paths(tmp_path) == [other]
    assert [failure.seed for failure in load_failures([tmp_path])] == [4]
    assert record_paths(tmp_path) == sorted([failed, finished, other])
    assert load_results([tmp_path]) == [RESULT]


def test_folder_of_any_name_with_results_is_read_and_others_are_rejected(tmp_path):
    with pytest.raises(DataError, match=r"absent is not a folder of results"):
        load_results([tmp_path / "absent"])
    with pytest.raises(DataError, match=r"holds no results; run `longspan arena` first"):
        load_results([tmp_path])
    assert load_failures([tmp_path]) == []
    RESULT.save(tmp_path / "work")
    for folder in (tmp_path / "work", tmp_path / "work" / "smoke" / "listops"):
        assert load_results([folder]) == [RESULT]


def test_side_records_are_those_of_their_folder_alone(tmp_path):
    found = {}
    for name in (ANALYSES, EVALUATIONS, CONTEXTS):
        for part in (name, f"work/{name}", f"{name}/trials"):
            folder = tmp_path / "smoke" / "text" / part
            folder.mkdir(parents=True)
            for file in ("b.json", "a.json", ".c.json", "d.txt"):
                (folder / file).write_text("{}")
        found[name] = [tmp_path / "smoke" / "text" / name / file for file in ("a.json", "b.json")]
    for name, paths in found.items():
        assert side_record_paths([tmp_path, tmp_path / "smoke"], name) == 2 * paths
