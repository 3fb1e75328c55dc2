"""Validation rules, each checked with a planted error in a valid record."""

import base64
import dataclasses
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest
from counted_records import with_counts

import synthetic
from longspan.arena import get, override, replace_budget
from longspan.arena.budget_resolution import find_resolution, scale_steps
from longspan.arena.experiment import hash_config
from longspan.arena.model import forward_flops
from longspan.arena.stages import mean_step_flops, training_flops
from longspan.config import Budget, StageConfig, replace_fields
from longspan.errors import DataError
from longspan.files import read_json
from longspan.results import (
    Failure,
    ResolvedBudget,
    Slice,
    SourceFile,
    TrialRecord,
    Tuning,
    load_result,
    load_results,
    pack_scores,
)
from longspan.tasks import build
from longspan.validation import validate_records
from longspan.validation.across import check_costs, check_data
from longspan.validation.findings import RecordFile
from longspan.validation.training import check_budget

COMMITTED = Path(__file__).parents[2] / "results"
ERROR, WARNING, NOTE = "error", "warning", "note"


def file_of(folder, mechanism="local", task="listops", seed=0):
    (path,) = folder.glob(f"smoke/{task}/{mechanism}-*-{seed}.json")
    return path


def edit(path, change):
    record = read_json(path)
    change(record)
    # Not `write_json`, which refuses NaN.
    path.write_text(json.dumps(record))


def put(value, *keys):
    """Return a change of the value at some keys; a function maps the value."""

    def change(record):
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value(record[keys[-1]]) if callable(value) else value

    return change


def remove(*keys):
    def change(record):
        for key in keys[:-1]:
            record = record[key]
        del record[keys[-1]]

    return change


def put_scores(correct, targets):
    scores = pack_scores("accuracy", np.array([correct, targets], float).T)
    return put(dataclasses.asdict(scores), "example_scores")


def findings(folder):
    return validate_records([folder]).findings


def finding_fields(folder):
    return {(finding.field, finding.severity) for finding in findings(folder)}


def test_valid_records_have_no_findings(folder):
    validation = validate_records([folder])
    assert (validation.num_results, validation.num_failures) == (12, 0)
    assert validation.findings == []


def test_records_of_real_runs_have_no_errors(finished):
    validation = validate_records([finished])
    assert validation.num_results == 2
    assert {finding.field for finding in validation.findings} <= {"git_commit"}
    assert not validation.of(ERROR)


def test_committed_records_have_no_errors_and_those_of_a_missing_corpus_have_notes():
    validation = validate_records([COMMITTED])
    assert validation.num_results >= 41
    assert not validation.of(ERROR)
    corpus = COMMITTED / "xiong-small" / "long_documents"
    found = [x for x in validation.findings if x.file.startswith(str(corpus))]
    assert {finding.severity for finding in found} == {NOTE}
    # Two records of equal time also name a start by a folder that is not here.
    recipes = [finding for finding in found if finding.field == "config"]
    assert len(recipes) == len(load_results([corpus])) >= 7
    for finding in recipes:
        assert "run longspan data import corpus FOLDER --name long_documents" in finding.found


OWN_FILE = "longspan/attention/mechanisms/local.py"


def put_source(name, digest):
    return put({"task": {"name": name, "sha256": digest}}, "source_files")


def put_changes(changed, added=None):
    """Return a change of a record to one of a dirty working tree; None: of unknown changes."""

    def change(record):
        record["git_commit"] = "0123456789ab-dirty"
        record["changed_files"], record["added_files"] = changed, added

    return change


TEST, VALIDATION, TRAIN = ("scores", "test"), ("scores", "validation"), ("scores", "train")
ACCURACY = ("metrics", "accuracy")
# Change, field and severity of the finding.
PLANTED_ERRORS = {
    "seed differs from file name": (put(7, "seed"), "file name", ERROR),
    "protocol differs from folder": (put("lra-small", "protocol"), "file name", ERROR),
    "changed option": (put(4, "config", "mechanism", "options", "window"), "config_hash", ERROR),
    "changed learning rate": (
        put(0.5, "config", "training", "learning_rate"), "config.training.learning_rate", ERROR
    ),
    "changed learning rate against hash": (
        put(0.5, "config", "training", "learning_rate"), "config_hash", ERROR
    ),
    "changed learning rate against curve": (
        put(0.5, "config", "training", "learning_rate"), "curve.learning_rate at step 100", ERROR
    ),
    "changed hash": (put("0" * 10, "config_hash"), "config_hash", ERROR),
    "infinite option": (
        put(math.inf, "config", "mechanism", "options", "window"), "the whole file", ERROR
    ),
    "absent field": (remove("seconds"), "the whole file", ERROR),
    "unknown field": (put(1, "sconds"), "the whole file", ERROR),
    "unknown metric": (put("acuracy", "metric"), "the whole file", ERROR),
    "vast step": (put(10**400, "curve", 0, "step"), "the whole file", ERROR),
    "override of another value": (
        put({"training.steps": 1}, "overrides"), "config.training.steps", ERROR
    ),
    "override of an unknown field": (put({"training.stps": 1}, "overrides"), "config", ERROR),
    "unknown protocol": (put("quik", "protocol"), "config", ERROR),
    "unknown mechanism": (put("locl", "config", "mechanism", "name"), "config", ERROR),
    "task of another protocol": (put("image", "config", "task", "name"), "config", ERROR),
    "old task version": (put(0, "config", "task", "version"), "config.task.version", ERROR),
    "unknown option": (
        put(1, "config", "mechanism", "options", "depth"), "config.mechanism.depth", ERROR
    ),
    "absent option": (
        remove("config", "mechanism", "options", "window"), "config.mechanism.window", ERROR
    ),
    "no commit": (put(None, "git_commit"), "git_commit", NOTE),
    "changed file": (put_changes({"longspan/models/layers.py": "ab" * 32}), "git_commit", WARNING),
    "deleted file": (put_changes({"longspan/bounds.py": None}), "git_commit", WARNING),
    "unknown changes": (put_changes(None), "git_commit", WARNING),
    "added file": (put_changes({}, {OWN_FILE: "ab" * 32}), "added_files", NOTE),
    "no source": (put_source(None, None), "source_files.task", WARNING),
    "own file": (put_source("task.py", "ab" * 32), "source_files.task", NOTE),
    "no rule": (put({}, "rules", "test"), "rules.test", WARNING),
    "unknown rule": (put({"last": 0.5}, "rules", "test"), "rules.test", WARNING),
    "rounded rule": (
        put(0.30001, "rules", "test", "first operator"), "rules.test.first operator", ERROR
    ),
    "rule in percent": (
        put(30.0, "rules", "validation", "first operator"),
        "rules.validation.first operator", ERROR,
    ),
    "rule of other data": (put(0.5, "rules", "test", "first operator"), "rules.test", ERROR),
    "no test score": (remove(*TEST), "scores.test", ERROR),
    "score in percent": (put(30.0, *TEST, *ACCURACY), "scores.test.metrics.accuracy", ERROR),
    "rounded score": (put(0.30001, *TEST, *ACCURACY), "scores.test.metrics.accuracy", ERROR),
    "altered score": (
        put(lambda x: x + 0.01, *TEST, *ACCURACY), "scores.test.metrics.accuracy", ERROR
    ),
    "altered validation score": (
        put(lambda x: x + 0.05, *VALIDATION, *ACCURACY), "scores.validation.metrics.accuracy", ERROR
    ),
    "validation score off by one example": (
        put(lambda x: x + 0.002, *VALIDATION, *ACCURACY),
        "scores.validation.metrics.accuracy", WARNING,
    ),
    "no training sample": (remove(*TRAIN), "scores.train", ERROR),
    "smaller training sample": (
        put(250, *TRAIN, "num_examples"), "scores.train.num_examples", ERROR
    ),
    "altered training score": (
        put(lambda x: x + 0.0001, *TRAIN, *ACCURACY), "scores.train.metrics.accuracy", ERROR
    ),
    "inference without speed": (
        put(0.0, "inference", "examples_per_second"), "inference.examples_per_second", ERROR
    ),
    "negative memory of inference": (
        put(-1, "inference", "peak_memory"), "inference.peak_memory", ERROR
    ),
    "negative loss": (put(-1.0, *TEST, "loss"), "scores.test.loss", ERROR),
    "no targets": (put(0, *TEST, "num_targets"), "scores.test.metrics.accuracy", ERROR),
    "omitted test examples": (put_scores([1, 0], [1, 1]), "scores.test.num_examples", ERROR),
    "omitted validation examples": (
        put(250, *VALIDATION, "num_examples"), "scores.validation.num_examples", ERROR
    ),
    "other number of targets": (put(1000, *TEST, "num_targets"), "scores.test.num_targets", ERROR),
    "no example scores": (put(None, "example_scores"), "example_scores", WARNING),
    "truncated example scores": (
        put(lambda x: x[:-8], "example_scores", "data"), "example_scores", ERROR
    ),
    "example scores of another metric": (
        put("f1", "example_scores", "metric"), "example_scores.metric", ERROR
    ),
    "more correct than targets": (put_scores([2, 0], [1, 1]), "example_scores", ERROR),
    "repeated slice": (put(lambda x: [x[0], *x], "slices", "length"), "slices.length", ERROR),
    "better slice": (put(1.0, "slices", "depth", 0, "value"), "slices.depth", ERROR),
    "worse slice": (put(0.0, "slices", "depth", 0, "value"), "slices.depth", ERROR),
    "rounded slice": (put(0.1234567, "slices", "depth", 0, "value"), "slices.depth", ERROR),
    "larger slice": (put(10**6, "slices", "depth", 0, "num_targets"), "slices.depth", ERROR),
    "curve without its end": (put(lambda x: x[:-1], "curve"), "curve", ERROR),
    "no curve": (put([], "curve"), "curve", ERROR),
    "curve with a gap": (put(lambda x: [x[0], x[2]], "curve"), "curve", ERROR),
    "unordered curve": (put(lambda x: [x[1], x[0], x[2]], "curve"), "curve", ERROR),
    "decreasing seconds": (put(1e-6, "curve", 1, "seconds"), "curve", ERROR),
    "altered rate in curve": (
        put(1e-5, "curve", 1, "learning_rate"), "curve.learning_rate at step 200", ERROR
    ),
    "fewer steps than planned": (put(299, "steps"), "steps", ERROR),
    "selected on test": (put("test", "selected_on"), "selected_on", ERROR),
    "another checkpoint": (put(17, "selected_step"), "selected_step", ERROR),
    "no checkpoint": (put(None, "selected_step"), "selected_step", WARNING),
    "no time": (put(0.0, "seconds"), "seconds", ERROR),
    "seconds of another run": (put(lambda x: 2 * x, "seconds"), "seconds", ERROR),
    "more waiting than training": (put(1e9, "data_wait_seconds"), "data_wait_seconds", ERROR),
    "altered speed": (
        put(lambda x: 1.01 * x + 0.1, "tokens_per_second"), "tokens_per_second", ERROR
    ),
    "infinite speed": (put(1e308, "tokens_per_second"), "tokens_per_second", ERROR),
    "double speed": (put(lambda x: 2 * x, "tokens_per_second"), "tokens_per_second", ERROR),
    "more parameters": (put(1, "num_parameters"), "num_parameters", ERROR),
    "more parameters of full": (put(1, "full_num_parameters"), "full_num_parameters", ERROR),
    "fewer FLOPs": (put(1, "flops"), "flops", ERROR),
    "more pairs": (put(255**2 + 1, "attended_pairs"), "attended_pairs", ERROR),
    "another chance": (put(0.2, "chance"), "chance", ERROR),
    "another length": (put(256, "length"), "length", ERROR),
    "other data": (put("0" * 64, "data_checksum"), "data_checksum", ERROR),
    "another baseline": (
        put(0.5, *TEST, "majority_baseline"), "scores.test.majority_baseline", ERROR
    ),
    "budget without changes": (
        put({"kind": "flops", "limit": 1e12}, "config", "budget"), "resolved_budget.changes", ERROR
    ),
    "changes without budget": (
        put({"changes": {}, "measurements": {}}, "resolved_budget"),
        "resolved_budget.changes", ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED_ERRORS)
def test_planted_error_is_found(listops_folder, case):
    change, field, severity = PLANTED_ERRORS[case]
    path = file_of(listops_folder)
    edit(path, change)
    found = findings(listops_folder)
    assert {finding.file for finding in found} == {str(path)}
    matching = [f for f in found if (f.field, f.severity) == (field, severity)]
    assert matching, "\n".join(map(str, found))
    assert str(matching[0]).startswith(f"{path}: {field}: expected ")
    assert all(dataclasses.astuple(matching[0]))


def test_speed_is_compared_with_runs_of_same_batches(folder):
    """Halve the speed, which still gives a possible integer number of tokens."""
    edit(file_of(folder), put(lambda x: x / 2, "tokens_per_second"))
    (found,) = findings(folder)
    assert found.field == "tokens_per_second"
    assert "as in 1 of 2 records" in found.expected


def test_staged_runs_have_token_counts_of_their_own(valid_records):
    """Segments of other lengths end other documents."""
    first, *_ = (x for x in valid_records if x.task == "listops")
    stage = StageConfig(steps=1, changes={"task.max_length": 64})
    training = dataclasses.replace(first.config.training, stages=(stage, StageConfig(steps=1)))
    staged = dataclasses.replace(
        first,
        config=dataclasses.replace(first.config, training=training),
        tokens_per_second=first.tokens_per_second / 2,
    )
    plain = dataclasses.replace(staged, config=first.config)

    def found_with(other):
        records = (first, other)
        files = [RecordFile(path=Path("file"), record=x) for x in records]
        return list(check_data(files))

    assert not found_with(staged)
    assert found_with(plain)


def test_misplaced_file_is_found(folder):
    path = file_of(folder)
    path.rename(folder / "smoke" / "text" / path.name)
    (found,) = findings(folder)
    assert (found.field, found.expected) == ("file name", f"smoke/listops/{path.name}")
    assert found.found == f"smoke/text/{path.name}"


def test_undeclared_override_is_found_despite_correct_hash(folder):
    experiment = override(get("smoke").experiment("listops", "local", 7), {"mechanism.window": 4})
    record = with_counts(synthetic.record(dataclasses.replace(experiment, overrides={})))
    path = record.save(folder)
    (found,) = findings(path)
    assert (found.field, found.found) == ("config.mechanism.window", "4")


def test_declared_overrides_have_no_findings(tmp_path):
    experiment = get("smoke").experiment("listops", "local", 0)
    changes = {"training.steps": 200, "mechanism.window": 8, "mechanism.backend": "torch"}
    with_counts(synthetic.record(override(experiment, changes))).save(tmp_path)
    assert findings(tmp_path) == []


def own_record(changes=None):
    """Return a record of a mechanism and a protocol that are registered elsewhere alone."""
    experiment = get("smoke").experiment("listops", "local", 0)
    record = with_counts(synthetic.record(override(experiment, {"training.steps": 200})))
    mechanism = dataclasses.replace(record.config.mechanism, name="mine")
    config = dataclasses.replace(
        record.config, mechanism=mechanism, budget=Budget(kind="memory", limit=1e9)
    )
    own = {"mechanism": SourceFile(name="mine.py", sha256="ab" * 32)}
    fields = {"config": config, "source_files": own}
    budget = ResolvedBudget(changes={"mechanism.window": 8}, measurements={"bytes": 9e8})
    return dataclasses.replace(record, **{**fields, "resolved_budget": budget, **(changes or {})})


UNREGISTERED = {
    "plug-in": {},
    "file that the commit lacks": {
        "git_commit": "0123456789ab-dirty",
        "source_files": {"mechanism": SourceFile(name=OWN_FILE, sha256="ab" * 32)},
        "added_files": {OWN_FILE: "ab" * 32},
    },
    "protocol": {
        "protocol": "mine",
        "source_files": {
            "mechanism": SourceFile(name="mine.py", sha256="ab" * 32),
            "protocol mine": SourceFile(name="mine.toml", sha256="cd" * 32),
        },
    },
}


@pytest.mark.parametrize("case", UNREGISTERED)
def test_own_records_have_notes_alone_where_their_files_are_not_loaded(tmp_path, case):
    own_record(UNREGISTERED[case]).save(tmp_path)
    found = findings(tmp_path)
    assert {finding.severity for finding in found} == {NOTE}
    (config,) = (finding for finding in found if finding.field == "config")
    assert "abababab" in config.remedy
    assert "to check the recipe" in config.remedy


def test_names_that_no_file_defines_are_errors(tmp_path):
    sources = {"task": SourceFile(name="mine.py", sha256="ab" * 32)}
    own_record({"source_files": sources}).save(tmp_path)
    assert ("config", ERROR) in finding_fields(tmp_path)


def test_commit_with_changes_in_other_files_has_no_findings(folder):
    edit(file_of(folder), put_changes({}, {}))
    assert findings(folder) == []


def with_budget(kind, limit, changes, measurements):
    """Return a record of linformer with a resolved budget."""
    experiment = get("smoke").experiment("listops", "linformer", 0)
    requested = replace_budget(experiment, Budget(kind=kind, limit=limit))
    ran = synthetic.record(override(experiment, changes))
    resolved = ResolvedBudget(changes=changes, measurements=measurements)
    record = dataclasses.replace(
        ran,
        config=requested.config,
        config_hash=requested.hash,
        overrides=requested.overrides,
        resolved_budget=resolved,
    )
    return with_counts(record)


def test_microbatches_of_a_budget_are_recomputed(tmp_path):
    name, candidates = "training.gradient_accumulation_steps", [[1, 2e9], [2, 8e8], [4, 5e8]]
    record = with_budget("microbatch", 1e9, {name: 2}, {"bytes": 8e8, "candidates": candidates})
    record.save(tmp_path)
    assert findings(tmp_path) == []
    edit(
        file_of(tmp_path, "linformer"),
        put(9e9, "resolved_budget", "measurements", "candidates", 1, 1),
    )
    assert finding_fields(tmp_path) == {("resolved_budget.changes", ERROR)}


def test_changes_of_memory_budget_are_recomputed(tmp_path):
    candidates = [[64, 5e8], [128, 9e8], [256, 2e9]]
    record = with_budget(
        "memory", 1e9, {"mechanism.rank": 128}, {"bytes": 9e8, "candidates": candidates}
    )
    record.save(tmp_path)
    assert findings(tmp_path) == []
    edit(
        file_of(tmp_path, "linformer"),
        put(1e8, "resolved_budget", "measurements", "candidates", 2, 1),
    )
    assert finding_fields(tmp_path) == {("resolved_budget.changes", ERROR)}


def test_steps_of_flops_budget_are_recomputed(tmp_path):
    experiment = get("smoke").experiment("listops", "linformer", 0)
    step = training_flops(with_counts(synthetic.record(experiment)).flops, 32)
    changes = scale_steps(experiment.config.training, 200)
    with_budget("flops", 200.0 * step, changes, {"flops_per_step": step}).save(tmp_path)
    assert findings(tmp_path) == []
    edit(
        file_of(tmp_path, "linformer"),
        put(100, "resolved_budget", "changes", "training.warmup_steps"),
    )
    assert ("resolved_budget.changes", ERROR) in finding_fields(tmp_path)


def test_steps_of_flops_budget_are_those_of_all_stages(tmp_path):
    """Half of the steps have a quarter of the batch."""
    experiment = get("smoke").experiment("listops", "linformer", 0)
    small = StageConfig(steps=1, changes={"training.batch_size": 8})
    stages = (small, StageConfig(steps=1))
    config = replace_fields(experiment.config, {"training.stages": stages})
    staged = dataclasses.replace(experiment, config=config)
    task = build("listops", config.task.options)
    step = mean_step_flops(config, task)
    assert step < training_flops(forward_flops(config, task), config.training.batch_size)
    budget = Budget(kind="flops", limit=200.5 * step)
    changes = find_resolution(replace_budget(staged, budget), task).changes
    assert changes["training.steps"] == 200
    record = synthetic.record(replace_budget(staged, budget))
    record = dataclasses.replace(
        record,
        flops=forward_flops(config, task),
        resolved_budget=ResolvedBudget(changes=changes, measurements={"flops_per_step": step}),
    )
    file = RecordFile(path=Path("file"), record=record)
    assert list(check_budget(file)) == []


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.25])
def test_tokens_of_all_stages_are_counted(share):
    """The first stage has a larger batch than the last one, which is the run's.

    A training may end before its last step.
    """
    experiment = get("smoke").experiment("listops", "linformer", 0)
    large = StageConfig(steps=1, changes={"training.batch_size": 320})
    config = replace_fields(experiment.config, {"training.stages": (large, StageConfig(steps=1))})
    record = with_counts(synthetic.record(dataclasses.replace(experiment, config=config)))
    half, steps = record.steps // 2, round(share * record.steps)
    most = (min(steps, half) * 320 + max(steps - half, 0) * 32) * record.length
    record = dataclasses.replace(record, steps=steps)
    for tokens, fields in ((most, []), (most + 1, ["tokens_per_second"])):
        one = dataclasses.replace(record, tokens_per_second=tokens / record.seconds)
        file = RecordFile(path=Path("file"), record=one)
        assert [x.field for x in check_costs([file])] == fields


def test_seconds_budget_requires_seconds_per_step(tmp_path):
    experiment = get("smoke").experiment("listops", "linformer", 0)
    changes = scale_steps(experiment.config.training, 200)
    with_budget("seconds", 100.0, changes, {"seconds_per_step": 0.5}).save(tmp_path)
    assert findings(tmp_path) == []
    edit(file_of(tmp_path, "linformer"), put({}, "resolved_budget", "measurements"))
    (found,) = findings(tmp_path)
    assert "measurements of a budget of seconds" in found.expected


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"budget": "flops=300M"}, None),
        ({}, "config.budget.kind"),
        ({"budget": "flops=1"}, "config.budget.limit"),
        ({"budget": "money=1"}, "config"),
    ],
)
def test_budget_outside_protocol_must_be_override(folder, overrides, field):
    budget = Budget(kind="flops", limit=3e8)
    experiment = replace_budget(get("smoke").experiment("listops", "local", 5), budget)
    record = dataclasses.replace(synthetic.record(experiment), overrides=overrides)
    path = record.save(folder)
    fields = {finding.field for finding in findings(path)}
    assert (field in fields) if field else not any("config" in name for name in fields)


RATES = [0.01, 0.001]


def searched_record(valid_records, accuracies=(0.2, 0.3), chosen=0.001, rule="mean"):
    """Return a record selected by a search over two learning rates."""
    record = next(x for x in valid_records if x.mechanism == "local" and x.task == "listops")
    validation = record.scores["validation"].metrics["accuracy"]
    trials = [
        TrialRecord(
            changes={"training.learning_rate": rate},
            seed=0,
            config_hash=record.config_hash if rate == 0.001 else "0" * 10,
            metrics={"accuracy": validation if rate == 0.001 else validation + accuracy - 0.3},
            loss=1.0,
            failure=None,
        )
        for rate, accuracy in zip(RATES, accuracies, strict=True)
    ]
    grid = {"training.learning_rate": RATES, "seed": [0]}
    changes = {"training.learning_rate": chosen}
    tuning = Tuning(rule=f"{rule}: described", grid=grid, chosen=changes, trials=trials)
    return dataclasses.replace(record, tuning=tuning)


@pytest.mark.parametrize("rule", ["mean", "best-run"])
def test_valid_search_has_no_findings(valid_records, tmp_path, rule):
    searched_record(valid_records, rule=rule).save(tmp_path)
    assert findings(tmp_path) == []


PLANTED_SEARCH_ERRORS = {
    "other combination": (put(0.01, "tuning", "chosen", "training.learning_rate"),
                          "tuning.chosen.training.learning_rate"),
    "trial omitted": (put(lambda x: x[1:], "tuning", "trials"), "tuning.trials"),
    "own trial omitted": (put(lambda x: x[:1], "tuning", "trials"), "scores.validation"),
    "own trial altered": (put(0.9, "tuning", "trials", 1, "metrics", "accuracy"),
                          "scores.validation"),
    "better combination": (put(0.9, "tuning", "trials", 0, "metrics", "accuracy"), "tuning.chosen"),
    "search on test": (put("test", "selected_on"), "selected_on"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED_SEARCH_ERRORS)
def test_planted_search_error_is_found(valid_records, tmp_path, case):
    change, field = PLANTED_SEARCH_ERRORS[case]
    path = searched_record(valid_records).save(tmp_path)
    edit(path, change)
    assert (field, ERROR) in finding_fields(tmp_path)


def test_combination_of_protocol_grid_is_not_an_override(tmp_path):
    experiment = get("xiong").experiment("listops", "local", 42)
    rate = next(x for x in get("xiong").grids["listops"]["training.learning_rate"]
                if x != experiment.config.training.learning_rate)  # fmt: skip
    chosen = {"training.learning_rate": rate}
    experiment = dataclasses.replace(override(experiment, chosen), overrides={})
    record = synthetic.record(experiment)
    tuning = Tuning(rule="mean", grid={}, chosen={**chosen, "seed": 42}, trials=[])
    for saved in (record, dataclasses.replace(record, tuning=tuning)):
        saved.save(tmp_path)
        fields = {finding.field for finding in findings(tmp_path)}
        assert ("config.training.learning_rate" in fields) == (saved.tuning is None)


def test_copy_under_different_seed_is_found(folder):
    path = file_of(folder)
    copy = dataclasses.replace(load_result(path), seed=9).save(folder)
    (found,) = findings(folder)
    assert (found.field, found.severity) == ("curve", ERROR)
    assert {found.file, found.found} in (
        {str(copy), f"those of {path}"}, {str(path), f"those of {copy}"}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"seconds": 1.0}, WARNING),
        ({"seconds": 0.0}, ERROR),
        ({"seconds": 1.0, "seed": 1}, ERROR),
        ({"seconds": 1.0, "flops": 1}, ERROR),
        ({"seconds": 1.0, "attended_pairs": 1}, ERROR),
        ({"seconds": 1.0, "attended_pairs": None}, WARNING),
    ],
)
def test_equivalent_mechanisms_are_distinguished_from_copies(
    folder, valid_records, change, severity
):
    """Save a run of local under the name of longformer, which without global tokens equals it."""
    record = next(r for r in valid_records if r.mechanism == "local" and r.task == "listops")
    moved = {x: None if by is None else getattr(record, x) + by for x, by in change.items()}
    config = get("smoke").config("listops", "longformer")
    path = dataclasses.replace(
        record, config=config, config_hash=hash_config(config), **moved
    ).save(folder)
    found = [f for f in findings(folder) if f.field == "curve" and "those of" in f.found]
    assert [f.severity for f in found] == [severity]
    assert str(path) in (found[0].file, found[0].found.removeprefix("those of "))


def test_rows_whose_option_has_no_effect_may_have_equal_scores(folder, valid_records):
    """Save a run of local under a row with another window, which may reach as far."""
    record = next(r for r in valid_records if r.mechanism == "local" and r.task == "listops")
    options = record.config.mechanism.options
    config = replace_fields(record.config, {"mechanism.window": options["window"] + 1})
    fields = {"config": config, "config_hash": hash_config(config), "seconds": record.seconds + 1}
    dataclasses.replace(record, **fields, overrides={"variant": "wider"}).save(folder)
    copies = [f for f in findings(folder) if f.field == "curve" and "those of" in f.found]
    assert [f.severity for f in copies] == [WARNING]


def test_equal_example_scores_with_losses_of_their_own_have_no_findings(folder):
    """Models that learned the same rule answer the same examples correctly."""
    local, linformer = (load_result(file_of(folder, name)) for name in ("local", "linformer"))
    test = dataclasses.replace(local.scores["test"], loss=1.2345)
    dataclasses.replace(
        linformer,
        example_scores=local.example_scores,
        scores={**linformer.scores, "test": test},
        slices={},
    ).save(folder)
    assert findings(folder) == []


def test_equal_training_under_different_budgets_is_not_a_copy(tmp_path):
    experiment = get("smoke").experiment("listops", "full", 0)
    record = with_counts(synthetic.record(experiment))
    record.save(tmp_path)
    resolved = ResolvedBudget(changes={}, measurements={"candidates": [[None, 1]]})
    budget = replace_budget(experiment, Budget(kind="memory", limit=2.0**30))
    same = with_counts(synthetic.record(budget))
    dataclasses.replace(same, resolved_budget=resolved).save(tmp_path)
    torch_only = override(experiment, {"mechanism.backend": "torch"})
    with_counts(synthetic.record(torch_only)).save(tmp_path)
    assert findings(tmp_path) == []


def test_run_recorded_twice_is_found(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    load_result(file_of(folder)).save(other)
    found = validate_records([folder, other]).findings
    assert [(f.field, f.severity) for f in found] == [("seed", WARNING)]
    assert str(file_of(folder)) in found[0].found


def test_file_passed_twice_is_checked_once(folder):
    validation = validate_records([folder, file_of(folder), folder / "smoke" / "listops"])
    assert (validation.num_results, validation.findings) == (12, [])


def to_bits_per_byte(record):
    """Convert a record of accuracy to bits per byte."""
    size = record.scores["test"].num_examples
    statistics = np.stack([np.linspace(1, 3, size), np.full(size, 2.0)], axis=1)
    bits = 1 / math.log(2)
    points = [
        dataclasses.replace(point, validation_metrics={"bits_per_byte": 2.0 + 1 / point.step})
        for point in record.curve
    ]
    scores = {
        split: dataclasses.replace(
            record.scores[split], metrics={"bits_per_byte": value}, majority_baseline=None
        )
        for split, value in (
            ("validation", 2.0 + 1 / points[-1].step),
            ("test", bits),
            ("train", bits),
        )
    }
    return dataclasses.replace(
        record,
        metric="bits_per_byte",
        scores=scores,
        rules={"validation": {}, "test": {}},
        example_scores=pack_scores("bits_per_byte", statistics),
        slices={"depth": [Slice(label="all", value=bits, num_targets=size)]},
        curve=points,
        selected_step=points[-1].step,
    )


def test_rules_apply_to_metrics_other_than_accuracy(valid_records, tmp_path):
    """Use bits per byte, where lower is better."""
    path = to_bits_per_byte(next(r for r in valid_records if r.task == "listops")).save(tmp_path)
    assert findings(tmp_path) == []
    edit(path, put(0.5, *TEST, "metrics", "bits_per_byte"))
    assert finding_fields(tmp_path) == {("scores.test.metrics.bits_per_byte", ERROR)}


INVALID_FILES = {
    "empty": b"",
    "truncated": b'{"schema": 3, "protocol": "qui',
    "foreign": b'{"name": "foreign"}',
    "list": b"[1, 2]",
    "bytes": bytes(range(128, 256)),
    "deep": b"[" * 100_000,
    "digits": b"1" * 10_000,
    "NaN": b'{"schema": NaN}',
    "newer schema": b'{"schema": 99}',
    "schema of another type": b'{"schema": [3]}',
}


@pytest.mark.parametrize("case", INVALID_FILES)
def test_invalid_file_is_reported_and_others_are_checked(listops_folder, case):
    path = listops_folder / "smoke" / "listops" / "junk-0123456789-0.json"
    path.write_bytes(INVALID_FILES[case])
    validation = validate_records([listops_folder])
    assert validation.num_results == 3
    (found,) = validation.findings
    assert (found.file, found.field, found.severity) == (str(path), "the whole file", ERROR)


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 10**308], ids=["vast", "negative", "large"]
)
@pytest.mark.parametrize(
    "keys",
    [(*TEST, "num_examples"), (*TEST, "num_targets"), ("length",), ("steps",), ("seed",),
     ("config", "training", "batch_size"), ("config", "training", "steps")],
    ids=".".join,
)  # fmt: skip
def test_impossible_numbers_are_found(listops_folder, keys, number):
    edit(file_of(listops_folder), put(number, *keys))
    errors = validate_records([listops_folder]).of(ERROR)
    assert {finding.file for finding in errors} == {str(file_of(listops_folder))}


def test_compressed_bomb_does_not_exhaust_memory(folder):
    bomb = base64.b64encode(zlib.compress(b"\0" * (2**27 + 2), 1)).decode()
    edit(file_of(folder), put(bomb, "example_scores", "data"))
    (found,) = findings(folder)
    assert "more than 134,217,728 bytes" in found.found


def test_failures_are_checked(folder, valid_records):
    names = {field.name for field in dataclasses.fields(Failure)} - {"kind", "reason", "step"}
    shared = {name: getattr(valid_records[0], name) for name in names}
    path = Failure(**shared, kind="memory", reason="needs more memory", step=3).save(folder)
    validation = validate_records([folder])
    assert (validation.num_results, validation.num_failures) == (12, 1)
    assert validation.findings == []
    edit(path, put(4, "config", "mechanism", "options", "rank"))
    path.rename(path.with_name("x.failed.json"))
    fields = {finding.field for finding in findings(folder)}
    assert {"file name", "config_hash"} <= fields


def test_absent_and_empty_folders_are_rejected(tmp_path):
    with pytest.raises(DataError, match="absent does not exist; pass record files"):
        validate_records([tmp_path / "absent"])
    with pytest.raises(DataError, match="holds no records; pass record files"):
        validate_records([tmp_path])


def stopped_record(accuracies, **changes):
    """Return a record of a training that ends at 45 %, with these scores in its curve."""
    experiment = override(
        get("smoke").experiment("listops", "local", 0),
        {"training.stop_at": 0.45, "training.evaluate_every": 100, "training.steps": 300},
    )
    record = synthetic.record(experiment)
    points = [
        dataclasses.replace(point, validation_metrics={**point.validation_metrics, "accuracy": x})
        for point, x in zip(record.curve, accuracies, strict=False)
    ]
    share, steps = len(points) / len(record.curve), points[-1].step
    return dataclasses.replace(
        record,
        curve=points,
        steps=steps,
        seconds=points[-1].seconds,
        tokens_per_second=record.tokens_per_second * record.seconds * share / points[-1].seconds,
        selected_step=max(points, key=lambda x: x.validation_metrics["accuracy"]).step,
        **changes,
    )


def test_training_that_ends_at_a_score_has_the_steps_up_to_it(tmp_path):
    path = stopped_record([0.3, 0.47]).save(tmp_path)
    fields = {"steps", "curve", "tokens_per_second", "selected_step"}
    assert not fields & {finding.field for finding in findings(tmp_path)}
    for accuracies in ([0.3, 0.4], [0.46, 0.47], [0.3, 0.47, 0.48]):
        path.unlink()
        path = stopped_record(accuracies).save(tmp_path)
        assert ("steps", ERROR) in finding_fields(tmp_path), accuracies
