"""Records of runs, and rescoring of their saved models."""

import dataclasses
import datetime
import errno
import io
import math
import shutil
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

import longspan
import tiny
from longspan.arena import RunPaths, arena, grid, make_model, run
from longspan.arena.callbacks import GridCallback
from longspan.arena.console import ConsoleCallback
from longspan.arena.finished_run import evaluate_run
from longspan.attention import MECHANISMS
from longspan.errors import DataError, OptionError, RunError
from longspan.results import SCHEMA, Result, load_result, load_results
from longspan.training.checkpoint_files import write_checksums
from longspan.training.loop import StageTrainer


@pytest.fixture(scope="module")
def finished_run(tiny_cache, tmp_path_factory):
    """Experiment, task, paths and record of a finished run."""
    paths = tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)
    experiment, task = tiny.experiment("performer", seed=2), tiny.listops(tiny_cache)
    run(experiment, task, paths)
    return experiment, task, paths, load_result(paths.record_file(experiment))


def test_record_identifies_experiment_and_data(finished_run):
    experiment, task, paths, record = finished_run
    assert (
        record.filename
        == paths.record_file(experiment).name
        == f"performer-{experiment.hash}-2.json"
    )
    names = ("protocol", "task", "mechanism", "seed", "config_hash", "metric", "selected_on")
    values = ("smoke", "listops", "performer", 2, experiment.hash, "accuracy", "validation")
    assert tuple(getattr(record, name) for name in names) == values
    assert record.config == record.effective_config == experiment.config
    assert record.overrides == experiment.overrides
    assert record.config.task.version == task.info.version
    assert record.config.task.options == dataclasses.asdict(task.options)
    assert (record.data_source, record.data_checksum) == (task.source, task.checksum)
    assert (record.tuning, record.resolved_budget) == (None, None)


def test_scores_cover_every_example(finished_run):
    _, task, _, record = finished_run
    assert set(record.scores) == {"validation", "test", "train"}
    assert record.scores["train"].num_examples == tiny.TASK["validation"]
    for split in ("validation", "test"):
        score, labels = record.scores[split], task.labels(split).tolist()
        assert score.num_examples == score.num_targets == len(labels) == tiny.TASK[split]
        assert score.majority_baseline == max(map(labels.count, labels)) / len(labels)
        correct = record.score(split) * score.num_targets
        assert correct == pytest.approx(round(correct))
        assert score.metrics == {"accuracy": record.score(split)}
        assert math.isfinite(score.loss)
    assert record.chance == 0.1


def test_per_example_statistics_aggregate_to_test_score(finished_run):
    *_, record = finished_run
    statistics = record.example_scores.unpack()
    assert statistics.shape == (tiny.TASK["test"], 2)
    assert record.main.aggregate(statistics) == record.score("test")
    for slices in record.slices.values():
        total = sum(part.num_targets for part in slices)
        assert total == tiny.TASK["test"]
        mean = sum(part.value * part.num_targets for part in slices) / total
        assert mean == pytest.approx(record.score("test"))


def test_record_has_cost_of_run(finished_run):
    experiment, task, _, record = finished_run
    model, full = (make_model(x, task) for x in (experiment, tiny.experiment("full")))
    assert record.num_parameters == model.num_parameters(only_trainable=True)
    assert record.full_num_parameters == full.num_parameters(only_trainable=True)
    assert record.length == task.length == 23
    assert record.flops > 2 * record.length * 4 * 16 * 16
    assert record.attended_pairs is None
    assert 0 < record.data_wait_seconds < record.seconds
    real = sum(
        int(batch.inputs["attention_mask"].sum())
        for _, batch in zip(range(12), task.batches("train", batch_size=4, seed=2), strict=False)
    )
    assert record.tokens_per_second == pytest.approx(real / record.seconds)
    assert record.peak_memory is None or record.peak_memory > 0


def test_record_has_device_versions_and_date(finished_run):
    _, _, _, record = finished_run
    assert record.backend_used == "torch"
    assert (record.dtype, record.world_size, record.parallelism) == ("float32", 1, "none")
    assert record.device == "cpu, 1 threads"
    assert record.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert record.versions["longspan"] == longspan.__version__
    assert {"python", "transformers", "accelerate", "numpy"} <= set(record.versions)
    assert list(record.source_files) == ["mechanism", "task"]
    when = datetime.datetime.fromisoformat(record.date)
    assert when.tzinfo is not None
    assert abs(datetime.datetime.now(datetime.UTC) - when) < datetime.timedelta(minutes=30)


def printed(record, **fields):
    """Return what the console prints at the end of a run."""
    output = io.StringIO()
    ConsoleCallback(Console(file=output)).on_run_end(dataclasses.replace(record, **fields))
    return output.getvalue()


def test_console_prints_data_wait(finished_run):
    *_, record = finished_run
    rules = {"test": {"a": 0.0}, "validation": {"a": 0.0}}
    for waited, line in ((3.0, "100 s, data wait 3 %, "), (2.0, "100 s, "), (None, "100 s, ")):
        text = printed(record, rules=rules, seconds=100.0, data_wait_seconds=waited)
        assert f"), {line}{record.tokens_per_second:,.0f} tokens/s" in text


def test_console_prints_the_margin_over_the_best_prediction_without_a_model(finished_run):
    *_, record = finished_run
    better = record.score() + 0.25
    for value, name in ((better, "(-25.0 against the rule b), "), (0.0, " the majority class), ")):
        rules = {"test": {"a": 0.01, "b": value}, "validation": {"a": 1.0}}
        assert name in printed(record, rules=rules)


def test_record_has_scores_of_rules_on_held_out_splits(finished_run):
    """Count the majority label of each first operator."""
    _, task, _, record = finished_run
    labels = {}
    for row in range(task.size("train")):
        labels.setdefault(task.show("train", row).split()[0], []).append(
            int(task.labels("train")[row])
        )
    expected = {}
    for split in ("validation", "test"):
        right = 0
        for row in range(task.size(split)):
            known = labels[task.show(split, row).split()[0]]
            right += max(sorted(set(known)), key=known.count) == int(task.labels(split)[row])
        expected[split] = {"first operator": right / task.size(split)}
    assert record.rules == expected


def test_record_has_learning_curve(finished_run):
    _, _, _, record = finished_run
    assert record.steps == 12
    assert [point.step for point in record.curve] == [4, 8, 12]
    for point in record.curve:
        assert all(value is not None for value in dataclasses.astuple(point))
        assert set(point.train_metrics) == set(point.validation_metrics) == {"accuracy"}


def test_only_schema_field_has_default(finished_run):
    """Reject defaults, which would hide fields that the arena does not fill.

    `start` is None for runs without one (test_start.py), `decoding_state` for runs that are not
    causal (test_decoding_state.py).
    """
    *_, record = finished_run
    assert {f.name for f in dataclasses.fields(Result) if f.default is not dataclasses.MISSING} == {
        "decoding_state",
        "schema",
        "start",
    }
    assert record.schema == SCHEMA


def test_record_has_attended_pairs(listops, finished):
    (record,) = (x for x in load_results([finished]) if x.mechanism == "full")
    assert record.attended_pairs == listops.length**2


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_rescoring_reproduces_recorded_scores_exactly(listops, precision, paths):
    experiment = tiny.experiment(
        changes={"training.precision": precision, "training.learning_rate": 0.03}
    )
    record = run(experiment, listops, paths)
    for split in ("validation", "test", "train"):
        assert tiny.rescore(paths.record_file(experiment), split, paths) == record.scores[split]


def test_samples_of_a_split_are_scored(finished_run):
    experiment, _, paths, record = finished_run
    path = paths.record_file(experiment)
    for split, size in (("test", 44), ("train", 200)):
        scores = {n: evaluate_run(path, split, paths, examples=n)[0].score for n in (30, size)}
        assert [score.num_examples for score in scores.values()] == [30, size]
        assert scores[30].loss != scores[size].loss
        message = f"examples must be between 1 and {size}, the size of {split}; got {size + 1}"
        with pytest.raises(OptionError, match=message):
            evaluate_run(path, split, paths, examples=size + 1)
    small, inference = evaluate_run(path, "test", paths, batch_size=1)
    assert small.score.loss == pytest.approx(record.scores["test"].loss, rel=1e-5)
    assert inference.examples_per_second > 0
    with pytest.raises(OptionError, match="batch size must be at least 1, got 0"):
        evaluate_run(path, "test", paths, batch_size=0)


def test_rescoring_rejects_missing_model(finished_run, tmp_path):
    experiment, _, paths, _ = finished_run
    path = paths.record_file(experiment)
    orphan = tmp_path / path.name
    shutil.copy(path, orphan)
    with pytest.raises(DataError, match=r"work.* holds no saved model of .*; run it again"):
        tiny.rescore(orphan, "test", paths)


def flip_bit(content):
    return content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]


@pytest.fixture
def copied(finished_run, tmp_path):
    """Experiment, paths and record of a copy of the run."""
    experiment, _, paths, record = finished_run
    shutil.copytree(paths.runs, tmp_path / "runs")
    return experiment, tiny.paths(tmp_path / "runs", paths.cache), record


@pytest.mark.parametrize("change", [flip_bit, lambda content: content[: len(content) // 2]])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "checksums.json"])
def test_damaged_model_is_rejected_with_single_line_message(copied, name, change):
    experiment, copied_paths, _ = copied
    (path,) = copied_paths.run_dir(experiment).glob(f"best-*/{name}")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"best-0000\d\d/{name} is .*; run it again") as e:
        tiny.rescore(copied_paths.record_file(experiment), "test", copied_paths)
    assert "\n" not in str(e.value)


MALFORMED_CONFIGS = {
    "list": "[]",
    "number": '{"hidden_size": "wide", "model_type": "longspan"}',
    "options": '{"attention_options": 3, "model_type": "longspan"}',
    "cut": '{"hidden',
}


@pytest.mark.parametrize("case", MALFORMED_CONFIGS)
def test_malformed_configuration_is_rejected(copied, case):
    """Checksums that fit say nothing about the content."""
    experiment, copied_paths, _ = copied
    (path,) = copied_paths.run_dir(experiment).glob("best-*/config.json")
    path.write_text(MALFORMED_CONFIGS[case])
    write_checksums(path.parent)
    with pytest.raises(DataError, match=r"best-0000\d\d cannot be read \(.+\); run it again"):
        tiny.rescore(copied_paths.record_file(experiment), "test", copied_paths)


def test_rescoring_on_different_data_is_rejected(copied):
    experiment, paths, record = copied
    path = paths.record_file(experiment)
    dataclasses.replace(record, data_checksum="0" * 64).save(paths.runs)
    with pytest.raises(DataError, match=r"was scored on data 000000000000, but .*--data"):
        tiny.rescore(path, "test", paths)


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(28, "No space left on device"), RunError, "No space left on device; free space"),
        (torch.OutOfMemoryError(), RunError, "needs more memory than the device has; raise"),
        (OSError(errno.EMFILE, "Too many open files"), OSError, r"^\[Errno 24\] Too many open "),
    ],
)
def test_exhausted_disk_and_memory_alone_raise_run_error(
    listops, monkeypatch, error, raised, message, paths
):
    monkeypatch.setattr(StageTrainer, "_step", Mock(side_effect=error))
    with pytest.raises(raised, match=message):
        run(tiny.experiment(), listops, paths)


def write_imdb(place, count=8):
    for part in ("train", "test"):
        for label, word in (("neg", "dull"), ("pos", "fine")):
            folder = place / "aclImdb" / part / label
            folder.mkdir(parents=True)
            for n in range(count):
                (folder / f"{n}_7.txt").write_text(f"{part} {n} is {word}")
    return place


SHORT_RUN = {
    **{name: value for name, value in tiny.CHANGES.items() if not name.startswith("task.")},
    "training.steps": 2,
    "training.evaluate_every": 2,
}
SMALL_TEXT = {"task.length": 32, "task.train": 8, "task.validation": 4, "task.test": 10}


def test_every_mechanism_runs(tiny_cache, tmp_path):
    """Alternate between two tasks, whose examples reach every model through the same head."""
    listops = {name: value for name, value in tiny.CHANGES.items() if name.startswith("task.")}
    listops["longformer.window"] = 8  # the protocol lists a window for each of its two layers
    names = sorted(MECHANISMS, key=lambda name: name != "longformer")
    experiments = []
    for number, (task, changes) in enumerate((("listops", listops), ("text", SMALL_TEXT))):
        planned, skipped = grid(
            "smoke", tasks=[task], mechanisms=names[number::2], changes={**SHORT_RUN, **changes}
        )
        assert skipped == []
        experiments += planned
    paths = RunPaths(
        runs=tmp_path / "runs", cache=tiny_cache, data=write_imdb(tmp_path / "data"), device="cpu"
    )
    results, failed = arena(experiments, paths, GridCallback())
    assert failed == []
    assert {result.mechanism for result in results} == set(MECHANISMS)
    sizes = {"listops": 44, "text": 10}
    assert all(x.scores["test"].num_examples == sizes[x.task] for x in results)
    both = [
        {(x.task, x.mechanism): x for x in many} for many in (results, load_results([paths.runs]))
    ]
    assert both[0] == both[1]
