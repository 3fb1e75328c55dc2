"""Records of schemas 1 to 5 upgraded to schema 6.

The files in `records/` were written by earlier versions of the code; learning curves are cut to
three points. Names are transcribed here independently of `results.upgrades`.
"""

import base64
import copy
import dataclasses
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from record_examples import remove_field, replace_value

from longspan.attention import MECHANISMS, options_of
from longspan.config.run import newer_fields
from longspan.errors import DataError
from longspan.results import load_failure, load_result, write_record

RECORDS = Path(__file__).parent / "records"
RESULTS = [
    "schema-1-linformer",
    "schema-3-flops-budget",
    "schema-3-memory-budget",
    "schema-3-overrides-alarm",
    "schema-3-search",
    "schema-3-seconds-budget",
    "schema-3-sparse-transformer",
    "schema-3-synthesizer",
]
RENAMED_MODEL = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "head_dim": "attention_head_size",
    "feed_forward": "intermediate_size",
    "classifier": "classifier_hidden_size",
    "dropout": "hidden_dropout_prob",
    "initializer": "initializer_range",
}
RENAMED_TRAINING = {
    "batch": "batch_size",
    "warmup": "warmup_steps",
    "betas": "adam_betas",
    "epsilon": "adam_epsilon",
    "clip": "max_grad_norm",
    "accumulate": "gradient_accumulation_steps",
    "evaluation_batch": "eval_batch_size",
}
RENAMED_FIELDS = {
    "backend": "backend_used",
    "parameters": "num_parameters",
    "full_parameters": "full_num_parameters",
    "waiting": "data_wait_seconds",
    "processes": "world_size",
}
KEPT_FIELDS = (
    *("protocol", "task", "mechanism", "seed", "data_source", "data_checksum", "chance", "flops"),
    *("attended_pairs", "length", "selected_step", "steps", "seconds", "tokens_per_second"),
    *("peak_memory", "device", "parallelism", "dtype", "versions", "git_commit", "date"),
)


def read_content(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


@pytest.fixture(params=RESULTS)
def content_and_record(request):
    """Content of a file and its upgraded record."""
    return read_content(request.param), load_result(RECORDS / f"{request.param}.json")


def load_content(content, tmp_path, load=load_result):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content))
    return load(path)


def test_scalar_fields_are_kept(content_and_record):
    old, new = content_and_record
    assert new.schema == 6
    for name in KEPT_FIELDS:
        if name in old:
            assert getattr(new, name) == old[name], name
    for name, renamed in RENAMED_FIELDS.items():
        assert getattr(new, renamed) == old.get(name, 1 if name == "processes" else None), name


def test_scores_are_kept(content_and_record):
    old, new = content_and_record
    assert new.scores.keys() == old["scores"].keys()
    assert new.metric == "accuracy"
    for split, score in old["scores"].items():
        upgraded = new.scores[split]
        assert new.score(split) == score["accuracy"]
        assert upgraded.metrics == {"accuracy": score["accuracy"]}
        assert upgraded.loss == score["loss"]
        assert upgraded.num_examples == upgraded.num_targets == score["examples"]
        assert upgraded.majority_baseline == score["majority"]


def test_model_and_training_are_kept_under_new_names(content_and_record):
    old, new = content_and_record
    for parts, renamed, config in (
        (old["model"], RENAMED_MODEL, new.effective_config.model),
        (old["training"], RENAMED_TRAINING, new.effective_config.training),
    ):
        for name, value in parts.items():
            found = getattr(config, renamed.get(name, name))
            assert (list(found) if isinstance(found, tuple) else found) == value, name


def test_task_is_kept(content_and_record):
    old, new = content_and_record
    task = new.config.task
    assert (task.name, task.version, task.options) == (
        old["task"],
        old["task_version"],
        {{"grey": "grayscale"}.get(name, name): x for name, x in old["task_options"].items()},
    )


def test_curve_is_kept(content_and_record):
    old, new = content_and_record
    assert len(new.curve) == len(old["curve"]) == 3
    for before, point in zip(old["curve"], new.curve, strict=True):
        for name in ("step", "seconds", "learning_rate", "train_loss", "validation_loss"):
            assert getattr(point, name) == before[name]
        assert point.train_metrics == {"accuracy": before["train_accuracy"]}
        assert point.validation_metrics == {"accuracy": before["validation_accuracy"]}


def test_example_scores_and_slices_are_kept(content_and_record):
    old, new = content_and_record
    if old.get("answers") is None:
        assert new.example_scores is None
    else:
        counts = np.frombuffer(zlib.decompress(base64.b64decode(old["answers"])), "<u2")
        statistics = new.example_scores.unpack()
        assert (statistics == counts.reshape(2, -1).T).all()
        assert new.example_scores.metric == "accuracy"
        assert new.main.aggregate(statistics) == old["scores"]["test"]["accuracy"]
    slices = {
        name: [{"label": x.label, "accuracy": x.value, "examples": x.num_targets} for x in group]
        for name, group in new.slices.items()
    }
    assert slices == old.get("slices", {})


def test_alarms_are_kept(content_and_record):
    old, new = content_and_record
    assert [vars(alarm) for alarm in new.alarms] == old.get("alarms", [])


def test_upgraded_record_saves_and_loads_equal(content_and_record, tmp_path):
    _, new = content_and_record
    path = write_record(new, tmp_path / "again.json")
    assert json.loads(path.read_text())["schema"] == 6
    assert load_result(path) == new
    assert new.config_hash == new.config.hash


def test_record_of_schema_4_has_no_checksum_and_keeps_every_field(tmp_path):
    old = read_content("schema-4-bigbird")
    assert (old["schema"], "sha256" in old) == (4, False)
    new = load_result(RECORDS / "schema-4-bigbird.json")
    path = write_record(new, tmp_path / "again.json")
    again = json.loads(path.read_text())
    for part, fields in newer_fields("bigbird").items():
        if part == "start":  # no run started from another one
            continue
        tree = old["config"][part]
        read_back = json.loads(json.dumps(fields))
        (tree["options"] if part == "mechanism" else tree).update(read_back)
    absent = ("source_files", "changed_files", "added_files", "rules", "family", "inference")
    old["example_scores"]["unit"] = "example"
    added = {"schema": 6, **dict.fromkeys(absent)}
    assert again == {"sha256": again["sha256"], **old, **added}


def test_missing_training_accuracy_has_no_metric(tmp_path):
    old = read_content("schema-3-synthesizer")
    old["curve"][0]["train_accuracy"] = old["curve"][0]["train_loss"] = None
    point = load_content(old, tmp_path).curve[0]
    assert (point.train_metrics, point.train_loss) == ({}, None)


def test_schema_2_has_data_wait_and_schema_1_does_not(tmp_path):
    old = read_content("schema-1-linformer")
    first = load_content(old, tmp_path)
    second = load_content({**old, "schema": 2, "waiting": 12.5}, tmp_path)
    assert (first.data_wait_seconds, second.data_wait_seconds) == (None, 12.5)
    for record in (first, second):
        assert (record.example_scores, record.tuning, record.resolved_budget) == (None, None, None)
        assert (record.slices, record.alarms) == ({}, [])
        assert (record.full_num_parameters, record.selected_step) == (None, None)
        assert (record.world_size, record.parallelism) == (1, "none")
        assert (record.config.budget.kind, record.config.budget.limit) == ("steps", None)
    assert first.overrides == {"training.evaluate_every": 250, "training.checkpoint_every": 100}
    assert first.config.model.attention_head_size is None


# Renamed options by mechanism.
OPTIONS = {
    "bigbird": {"random": "num_random_blocks", "globals": "global_blocks"},
    "compressive": {"compressed": "compressed_memory", "through": "backprop_through_memory"},
    "long_short": {"convolution": "conv_kernel_size"},
    "nystrom": {"convolution": "conv_kernel_size"},
    "performer": {"map": "feature_map"},
    "position_infused": {"through": "backprop_through_memory"},
    "reformer": {"rounds": "hashes"},
    # In two parts, so that a rename across the code does not change the old name.
    "sparse_transformer": {"heads" + "_use": "head_patterns"},
    "transformer_xl": {"through": "backprop_through_memory"},
}
BY_MECHANISM = read_content("schema-3-options")


@pytest.mark.parametrize("mechanism", BY_MECHANISM)
def test_mechanism_options_have_current_names(mechanism, tmp_path):
    options = BY_MECHANISM[mechanism]
    record = {**read_content("schema-3-synthesizer"), "mechanism": mechanism, "options": options}
    upgraded = load_content(record, tmp_path).config.mechanism.options
    names = OPTIONS.get(mechanism, {})
    newer = newer_fields(mechanism).get("mechanism", {})
    assert upgraded == newer | {names.get(name, name): value for name, value in options.items()}
    assert set(upgraded) == set(options_of(mechanism))


def test_option_cases_are_registered_mechanisms():
    assert set(BY_MECHANISM) <= set(MECHANISMS)
    assert set(OPTIONS) <= set(BY_MECHANISM)


def test_synthesizer_scores_have_american_spelling(tmp_path):
    old = read_content("schema-3-synthesizer")
    british = old["options"]["scores"]
    assert british == "factori" + "sed_random+dot"
    changed = "factori" + "sed_dense"
    old["overrides"] = {"options.scores": changed}
    old["tuning"] = {
        "rule": "mean: ...",
        "grid": {"options.scores": [changed, "dot"]},
        "chosen": {"options.scores": changed},
        "trials": [],
    }
    new = load_content(old, tmp_path)
    assert new.config.mechanism.options["scores"] == "factorized_random+dot"
    assert new.overrides == {"mechanism.scores": "factorized_dense"}
    assert new.tuning.grid == {"mechanism.scores": ["factorized_dense", "dot"]}
    assert new.tuning.chosen == {"mechanism.scores": "factorized_dense"}


def test_overrides_have_current_dotted_names():
    old = read_content("schema-3-memory-budget")
    new = load_result(RECORDS / "schema-3-memory-budget.json")
    assert old["overrides"]["options.rounds"] == 3
    assert new.overrides == {
        **{name: x for name, x in old["overrides"].items() if name.startswith("task.")},
        "mechanism.chunk": 8,
        "mechanism.hashes": 3,
        "model.hidden_size": 16,
        "model.num_hidden_layers": 1,
        "model.intermediate_size": 16,
        "model.classifier_hidden_size": 16,
        "training.steps": 12,
        "training.batch_size": 4,
        "training.warmup_steps": 2,
        "training.learning_rate": 0.01,
        "training.evaluate_every": 4,
        "training.checkpoint_every": 2,
        "training.eval_batch_size": 16,
        "budget": "memory=1073741824",
    }


STEPS = {"training.steps", "training.warmup_steps", "training.evaluate_every"}


@pytest.mark.parametrize(
    ("name", "limit", "measured"),
    [("flops", 3e7, "flops_per_step"), ("seconds", 1.0, "seconds_per_step")],
)
def test_flops_and_seconds_budgets_are_kept(name, limit, measured):
    old = read_content(f"schema-3-{name}-budget")
    new = load_result(RECORDS / f"schema-3-{name}-budget.json")
    assert (new.config.budget.kind, new.config.budget.limit) == (name, limit)
    requested, effective = new.config.training, new.effective_config.training
    assert (requested.steps, requested.warmup_steps, requested.evaluate_every) == (12, 2, 4)
    assert (effective.steps, effective.warmup_steps, effective.evaluate_every) == tuple(
        old["training"][name] for name in ("steps", "warmup", "evaluate_every")
    )
    assert effective.steps == new.steps != 12
    assert new.resolved_budget.changes.keys() == STEPS
    assert new.resolved_budget.measurements == {measured: old["budget"][measured]}


def test_memory_budget_is_kept(tmp_path):
    old = read_content("schema-3-memory-budget")
    new = load_result(RECORDS / "schema-3-memory-budget.json")
    assert new.config.mechanism.options["chunk"] == 8
    assert new.effective_config.mechanism.options["chunk"] == 16
    assert new.resolved_budget.changes == {"mechanism.chunk": 16}
    assert new.resolved_budget.measurements == {
        "bytes": 590556,
        "candidates": [[8, 387996], [16, 590556]],
    }
    # The chosen size equals the requested size.
    old["budget"]["asked"] = {}
    same = load_content(old, tmp_path)
    assert same.config.mechanism.options["chunk"] == 16
    assert same.resolved_budget.changes == {"mechanism.chunk": 16}
    # The mechanism has no size option.
    old["budget"] = {"kind": "memory", "limit": 1e9, "steps": 12, "option": None, "bytes": 7}
    fixed = load_content(old, tmp_path)
    assert fixed.resolved_budget.changes == {}
    assert fixed.resolved_budget.measurements == {"bytes": 7}


def test_search_is_kept():
    old = read_content("schema-3-search")["tuning"]
    new = load_result(RECORDS / "schema-3-search.json").tuning
    names = {
        "train.learning_rate": "training.learning_rate",
        "train.clip": "training.max_grad_norm",
        "options.random": "mechanism.num_random_blocks",
        "seed": "seed",
    }
    assert new.rule == old["rule"]
    assert new.grid == {names[name]: values for name, values in old["grid"].items()}
    assert new.chosen == {names[name]: value for name, value in old["chosen"].items()}
    assert len(new.trials) == len(old["trials"]) == 8
    for before, trial in zip(old["trials"], new.trials, strict=True):
        assert trial.changes == {names[name]: value for name, value in before["changes"].items()}
        assert (trial.seed, trial.config_hash) == (before["seed"], before["config_hash"])
        assert (trial.loss, trial.failure) == (before["validation_loss"], before["failed"])
        accuracy = before["validation_accuracy"]
        assert trial.metrics == (None if accuracy is None else {"accuracy": accuracy})
    assert {trial.failure for trial in new.trials} == {None, "diverged"}


@pytest.mark.parametrize(
    ("selection", "split"),
    [("best validation", "validation"), ("last (validation is test)", "test")],
)
def test_selection_split_is_kept(selection, split, tmp_path):
    old = {**read_content("schema-3-synthesizer"), "selection": selection}
    assert load_content(old, tmp_path).selected_on == split


def test_schema_4_is_kept_without_measurements_of_schema_5():
    old, new = read_content("schema-4-local"), load_result(RECORDS / "schema-4-local.json")
    found = json.loads(json.dumps(dataclasses.asdict(new)))
    assert found.pop("schema") == old.pop("schema") + 2 == 6
    names = ("inference", "source_files", "family", "changed_files", "added_files", "rules")
    assert [found.pop(name) for name in names] == [None] * 6
    assert "train" not in new.scores
    # Defaults of fields that schema 4 lacks.
    assert found["config"]["training"].pop("train_eval_examples") is None
    assert found["config"]["model"].pop("stem") == "none"
    assert found.pop("start") is None
    assert found.pop("earlier_code") == []
    assert found["config"].pop("start") is None
    assert found["config"].pop("evaluation") == {"options": {}}
    assert found["config"]["training"].pop("stages") == []
    pop_adaptive(found)
    assert found["example_scores"].pop("unit") == "example"
    assert found == old
    assert new.config.hash == new.config_hash


def pop_adaptive(found):
    """Remove defaults of fields of language models that older records lack."""
    assert found["config"]["training"].pop("schedule_over") == "stage"
    model = found["config"]["model"]
    assert (model.pop("adaptive_cutoffs"), model.pop("adaptive_factor")) == ([], 4)


@pytest.mark.parametrize("name", ["schema-5-plug-in", "schema-5-failed"])
def test_schema_5_is_kept_with_unnamed_external_sources(name):
    is_failure = name.endswith("failed")
    load = load_failure if is_failure else load_result
    old, new = read_content(name), load(RECORDS / f"{name}.json")
    found = json.loads(json.dumps(dataclasses.asdict(new)))
    assert found.pop("schema") == old.pop("schema") + 1 == 6
    digest = old.pop("external_sources")["mechanism"]
    assert found.pop("source_files") == {"mechanism": {"name": None, "sha256": digest}}
    assert new.source_files["mechanism"].is_external
    absent = ["changed_files", "added_files", *([] if is_failure else ["rules"])]
    assert [found.pop(name) for name in absent] == [None] * len(absent)
    old.pop("sha256")
    assert found["config"].pop("start") is None
    assert found["config"].pop("evaluation") == {"options": {}}
    assert found["config"]["training"].pop("stages") == []
    pop_adaptive(found)
    assert found.pop("start", None) is None  # of results alone
    assert found.pop("earlier_code", []) == []
    if not is_failure:
        assert found["example_scores"].pop("unit") == "example"
    assert found == old


def test_failure_is_kept(tmp_path):
    old, new = read_content("schema-3-failed"), load_failure(RECORDS / "schema-3-failed.json")
    for name in (
        *("protocol", "task", "mechanism", "seed", "kind", "reason", "step", "device"),
        *("versions", "git_commit", "date"),
    ):
        assert getattr(new, name) == old[name]
    assert (new.kind, new.step) == ("diverged", 2)
    assert new.config.training.learning_rate == new.overrides["training.learning_rate"] == 1e30
    assert new.config.training.max_grad_norm is None
    path = write_record(new, tmp_path / "again.failed.json")
    assert load_failure(path) == new


MALFORMED = {
    "missing field": (remove_field("seed"), "field 'seed' of schema 3 is missing"),
    "missing score": (
        replace_value({}, "scores", "test"),
        "field 'accuracy' of schema 3 is missing",
    ),
    "scores": (replace_value(5, "scores"), "is not a valid record of schema 3: .*'int'"),
    "training": (
        replace_value("3", "training", "steps"),
        "3: steps should be a valid integer, got '3'",
    ),
    "budget": (replace_value({}, "budget"), "field 'kind' of schema 3 is missing"),
    "answers": (replace_value(7, "answers"), "example_scores.data should be a valid string, got 7"),
    "curve": (replace_value(None, "curve"), "is not a valid record of schema 3: .*'NoneType'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_records_of_older_schemas_are_rejected(case, tmp_path):
    change, message = MALFORMED[case]
    record = copy.deepcopy(read_content("schema-3-synthesizer"))
    change(record)
    with pytest.raises(DataError, match=rf"^{tmp_path}/record\.json.*{message}"):
        load_content(record, tmp_path)
