"""Evaluation of a run's model on another task, or on other options of its task."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

import tiny
from longspan.arena import get, override, run
from longspan.arena.cross_evaluation import (
    evaluate_elsewhere,
    evaluate_lengths,
    find_refusals,
    find_vocabulary_refusals,
    task_config,
)
from longspan.arena.finished_run import evaluate_run
from longspan.arena.protocols.files import register_imports
from longspan.config import StageConfig, replace_fields
from longspan.data.imports.texts import TextsRequest, import_texts
from longspan.errors import OptionError, UnknownNameError
from longspan.models import LongspanForSequenceClassification
from longspan.results import CrossEvaluation, load_result, load_results, load_side_records
from longspan.tasks import build
from longspan.training.checkpoint import Checkpoints
from own_files import forgotten_imports, write_csv
from test_cli_errors import check_rejected

OPTIONS = {"min_length": 26, "max_length": 80, "max_depth": 4, "test": 30}
LONGER = {f"task.{name}": value for name, value in OPTIONS.items()}
SMALL_IMAGES = {"train": 8, "validation": 4, "test": 6}


@pytest.fixture(scope="module")
def trained(tiny_cache, tmp_path_factory):
    """Experiment, paths and record file of a run with rotary positions."""
    paths = tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)
    experiment = tiny.experiment(changes={"model.position": "rotary"})
    run(experiment, tiny.listops(tiny_cache), paths)
    return experiment, paths, paths.record_file(experiment)


def score_one_by_one(folder, task, length, rows):
    """Score with a model of the saved weights that is built for `length` tokens."""
    model = LongspanForSequenceClassification.from_pretrained(
        folder, max_position_embeddings=length
    ).eval()
    hits, losses = [], []
    for row in rows:
        tokens = task.dataset.splits["test"].tokens[row].astype(np.int64)
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens)[None]).logits
        label = torch.tensor([int(task.dataset.splits["test"].labels[row])])
        hits.append(int(logits.argmax() == label))
        losses.append(float(torch.nn.functional.cross_entropy(logits, label)))
    return np.mean(hits), np.mean(losses)


def test_longer_inputs_are_scored_with_the_same_weights(trained):
    experiment, paths, record = trained
    found = evaluate_elsewhere(record, paths, changes=LONGER, batch_size=4)
    task = build("listops", {**tiny.TASK, **OPTIONS})
    task.open(paths.cache)
    assert task.length == 79
    folder = Checkpoints(paths.run_dir(experiment)).best()
    accuracy, loss = score_one_by_one(folder, task, task.length, range(30))
    assert found.score.metrics == {"accuracy": accuracy}
    assert found.score.loss == pytest.approx(loss, rel=1e-4)
    assert (found.trained_on.name, found.evaluated_on.name) == ("listops", "listops")
    assert found.changed_options == OPTIONS
    assert (found.length, found.available, found.batch_size) == (task.length, 30, 4)
    assert found.data_checksum == task.checksum
    labels = task.labels("test").bincount()
    assert found.score.majority_baseline == int(labels.max()) / 30


def test_default_sample_of_train_is_as_large_as_validation(trained):
    _, paths, record = trained
    task = build("listops", {**tiny.TASK, **OPTIONS})
    task.open(paths.cache)
    assert task.size("validation") < task.size("train")
    found = evaluate_elsewhere(record, paths, changes=LONGER, split="train")
    assert found.score.num_examples == task.size("validation")
    assert found.available == task.size("train")
    # A batch of longer inputs has as many tokens, not as many rows.
    rows = load_result(record).config.training.eval_batch_size
    assert 1 < found.batch_size == rows * found.trained_length // task.length < rows


def test_arguments_are_checked_before_the_model_is_loaded(trained, tmp_path):
    _, paths, record = trained
    alone = tmp_path / record.name
    shutil.copy(record, alone)
    with pytest.raises(OptionError, match="examples must be at least 1, got 0"):
        evaluate_elsewhere(alone, paths, changes=LONGER, examples=0)
    with pytest.raises(OptionError, match="batch size must be at least 1, got 0"):
        evaluate_elsewhere(alone, paths, changes=LONGER, batch_size=0)
    with pytest.raises(UnknownNameError, match="no task called 'listop'"):
        evaluate_elsewhere(alone, paths, task="listop")
    with pytest.raises(OptionError, match="examples must be at least 1, got 0"):
        evaluate_run(alone, "test", paths, examples=0)


def test_learned_positions_are_refused(tiny_cache, paths):
    experiment = tiny.experiment(changes={"model.position": "learned"})
    run(experiment, tiny.listops(tiny_cache), paths)
    with pytest.raises(OptionError, match="learned positions and local attention has parameters"):
        evaluate_elsewhere(paths.record_file(experiment), paths, changes=LONGER)


def test_other_layouts_vocabularies_and_classes_are_refused_with_every_reason(trained):
    _, paths, record = trained
    listops = build("listops", tiny.TASK)
    assert find_refusals(listops, build("listops", {**tiny.TASK, **OPTIONS})) == []
    assert find_refusals(listops, build("recall")) == [
        "its head is token_classification, the model was trained with sequence_classification",
        "it has 4096 classes, the model 10",
    ]
    pathfinder = build("pathfinder")
    assert find_refusals(pathfinder, build("path_x")) == []
    assert find_refusals(pathfinder, build("path_x", {"pixels": "continuous"})) == [
        "its inputs are 1 numbers at each position, those of the model token ids"
    ]
    assert find_refusals(pathfinder, build("image")) == ["it has 10 classes, the model 2"]
    with pytest.raises(OptionError, match=r"cannot be evaluated on recall: its head .*; it has"):
        evaluate_elsewhere(record, paths, task="recall")


def own_task(folder, name, targets, kind="class"):
    """Import texts with these targets as a task."""
    rows = [(f"text {n}", str(targets[n % len(targets)])) for n in range(40)]
    request = TextsRequest(text="body", target="stars", kind=kind)
    import_texts(folder / "cache", name, write_csv(folder / f"{name}.csv", rows), request)
    register_imports(folder / "cache")
    return build(name)


def test_other_names_of_classes_and_scales_of_numbers_are_refused(tmp_path):
    """Class 0 of one import is another class than class 0 of another one."""
    with forgotten_imports(tmp_path / "none"):
        good = own_task(tmp_path, "good", ["neg", "pos"])
        same = own_task(tmp_path, "same", ["pos", "neg"])
        other = own_task(tmp_path, "other", ["0", "1"])
        numbers = own_task(tmp_path, "numbers", range(5), "number")
        larger = own_task(tmp_path, "larger", range(0, 50, 10), "number")
        assert find_refusals(good, same) == []
        assert find_refusals(numbers, numbers) == []
        (reason,) = find_refusals(good, other)
        assert "its class 0 is '0', that of the model 'neg'" in reason
        (reason,) = find_refusals(numbers, larger)
        assert "in training, those of the model" in reason
        assert "--test FILE" in reason
        labels = own_task(tmp_path, "labels", ["neg", "pos", "neg|pos"], "labels")
        (reason,) = find_refusals(good, labels)
        assert reason == "its targets are several labels each, those of the model one class each"


def test_other_vocabularies_are_refused():
    listops, pathfinder = build("listops", tiny.TASK), build("pathfinder")
    assert find_vocabulary_refusals(pathfinder, build("path_x")) == []
    assert find_vocabulary_refusals(listops, pathfinder) == [
        "its vocabulary has 256 ids, that of the model 16"
    ]
    # Numbers have no vocabulary.
    assert find_vocabulary_refusals(listops, build("path_x", {"pixels": "continuous"})) == []
    # Equally many ids may be other tokens.
    other = build("listops", tiny.TASK)
    other.ids_to_tokens = lambda ids: [str(i) for i in ids]
    (reason,) = find_vocabulary_refusals(listops, other)
    assert "15 ids of its vocabulary are other tokens than those of the model" in reason
    assert "such as 1: '1' here, '0' there" in reason


def test_options_are_those_of_the_protocol_then_the_changes(trained):
    result = load_results([trained[1].runs])[0]
    protocol = get("lra-small")
    renamed = dataclasses.replace(result, protocol="lra-small")
    found = task_config(renamed, "pathfinder", {"task.test": 5})
    expected = build("pathfinder", dict(protocol.recipe("pathfinder").task_options)).options
    assert found.options == {**dataclasses.asdict(expected), "test": 5}
    assert task_config(result, "copying", {}).options == dataclasses.asdict(
        build("copying").options
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"changes": {}}, OptionError, "was trained on listops with these options; name another"),
        ({"task": "listops"}, OptionError, "was trained on listops with these options"),
        ({"task": "path-x"}, UnknownNameError, "no task called 'path-x'; did you mean path_x"),
        ({"changes": {"task.lenth": 3}}, UnknownNameError, "no option of task 'listops' called"),
        ({"changes": {"model.position": "none"}}, OptionError, "of the task.*; got model.pos"),
        ({"split": "tst", "changes": LONGER}, UnknownNameError, "no split to score called 'tst'"),
    ],
)
def test_requests_without_sense_are_refused(trained, options, error, message):
    _, paths, record = trained
    with pytest.raises(error, match=message):
        evaluate_elsewhere(record, paths, **options)


def test_pathfinder_model_is_evaluated_on_path_x(tmp_path):
    """Long Range Arena's second setup: a model of 1,024 pixels reads 16,384."""
    paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
    changes = {f"task.{name}": size for name, size in SMALL_IMAGES.items()}
    changes |= {f"model.{name}": size for name, size in tiny.MODEL.items()}
    changes |= {"model.position": "sinusoidal", "mechanism.window": 8}
    changes |= {"training.steps": 1, "training.batch_size": 2, "training.evaluate_every": 1}
    experiment = override(get("lra-small").experiment("pathfinder", "local", 0), changes)
    task = build("pathfinder", experiment.config.task.options)
    task.open(paths.cache)
    run(experiment, task, paths)
    sizes = {f"task.{name}": size for name, size in SMALL_IMAGES.items()}
    found = evaluate_elsewhere(
        paths.record_file(experiment), paths, task="path_x", changes=sizes, batch_size=2
    )
    assert (found.trained_on.name, found.trained_length) == ("pathfinder", 1_024)
    assert (found.evaluated_on.name, found.length) == ("path_x", 16_384)
    assert found.changed_options == {"resolution": 128}
    assert found.score.num_examples == 6
    assert task.head is LongspanForSequenceClassification


def test_stages_are_over_when_a_model_is_evaluated(trained):
    """A last stage that names its length was in the way of another length."""
    result = load_result(trained[2])
    length = result.config.task.options["max_length"]
    stages = tuple(
        StageConfig(steps=1, changes={"task.max_length": x}) for x in (length - 4, length)
    )
    config = replace_fields(result.config, {"training.stages": stages})
    staged = dataclasses.replace(result, config=config)
    assert task_config(staged, None, LONGER).options["max_length"] == 80
    assert task_config(staged, "needle", {}).name == "needle"


def test_command_saves_prints_and_reports_evaluation(cli, trained):
    _, paths, record = trained
    flags = ["--cache", paths.cache, "--device", "cpu"]
    flags += [part for name, x in LONGER.items() for part in ("--set", f"{name}={x}")]
    out, err = cli.done("eval", record, *flags, "--examples", 20)
    (line,) = out.splitlines()
    setup = f"{record.stem}, trained on listops with up to 23 tokens, evaluated on listops ("
    assert line.startswith(setup)
    for part in ("max_length=80", ": test accuracy ", "20 of 30 examples (majority class"):
        assert part in line
    (found,) = load_side_records(CrossEvaluation, [paths.runs])
    assert str(found.filename) in err
    assert found.filename.endswith("-test-20.json")
    _, out, _ = cli("eval", record, *flags, "--json")
    assert [x["score"]["num_examples"] for x in json.loads(out)] == [30]
    assert len(load_side_records(CrossEvaluation, [paths.runs])) == 2
    assert len(load_results([paths.runs])) == 1
    out, _ = cli.done(
        "report",
        paths.runs,
        *("--section", "other-tasks", "--format", "csv"),
        *("--output", paths.runs / "report.html"),
    )
    # Of a sample and the whole split, the whole split.
    (row,) = out.splitlines()[1:]
    assert row.startswith('"local (model.')
    assert '",listops,listops,' in row
    assert row.split(",")[-3:] == ["30", "30", "1"]
    found = cli("eval", record, "--task", "recall", *flags[:4])
    check_rejected(found, "cannot be evaluated on recall")


NEEDLE = {
    **{"task.train": 64, "task.validation": 16, "task.test": 40, "task.length": 16},
    **{"training.steps": 2, "training.evaluate_every": 2, "training.warmup_steps": 0},
}


def needle(mechanism, position, paths):
    """Train on needle for two steps; return the record file."""
    changes = {**NEEDLE, "model.position": position}
    experiment = override(get("quick").experiment("needle", mechanism, 0), changes)
    task = build("needle", experiment.config.task.options)
    task.open(paths.cache)
    run(experiment, task, paths)
    return paths.record_file(experiment)


def test_model_is_scored_at_every_length_but_its_own(paths):
    record = needle("linear", "none", paths)
    scored = evaluate_lengths(record, paths, [16, 32, 64, 32])
    assert [one.length for one in scored] == [64, 32]
    for one in scored:
        changes = {"task.length": one.length}
        alone = evaluate_elsewhere(record, paths, changes=changes)
        assert (alone.score, alone.changed_options) == (one.score, {"length": one.length})
    few = evaluate_lengths(record, paths, [16, 32], changes={"task.train": 8})
    assert [(one.length, one.score) for one in few] == [(32, scored[1].score)]
    with pytest.raises(OptionError, match="length=1 is too short"):
        evaluate_lengths(record, paths, [1])
    with pytest.raises(OptionError, match=r"other than that of training, .* got 16; to score"):
        evaluate_lengths(record, paths, [16])
    with pytest.raises(OptionError, match=r"given twice: 32, 64, and task.length=48 among"):
        evaluate_lengths(record, paths, [32, 64], changes={"task.length": 48})


@pytest.mark.parametrize(
    ("arguments", "lengths"),
    [
        ({}, [32]),
        ({"task": "needle"}, [32]),
        ({"task": "recall"}, [32, 16]),
        ({"changes": {"task.train": 8}}, [32]),
        ({"changes": {"evaluation.window": 4}}, [32, 16]),
        # Values that the run has already.
        ({"changes": {"evaluation.window": 8}}, [32]),
        ({"changes": {"task.symbols": 8}}, [32]),
    ],
)
def test_own_length_is_left_out_on_the_same_task_alone(paths, monkeypatch, arguments, lengths):
    """On another task the record has no score of it, and the length was missing."""
    record, scored = needle("local", "none", paths), []
    monkeypatch.setattr(
        "longspan.arena.cross_evaluation.evaluate_elsewhere",
        lambda record, paths, **given: scored.append((given["task"], given["changes"])),
    )
    evaluate_lengths(record, paths, [16, 32], **arguments)
    changes = arguments.get("changes", {})
    expected = [(arguments.get("task"), {**changes, "task.length": x}) for x in lengths]
    assert scored == expected


@pytest.mark.parametrize(("mechanism", "position"), [("linformer", "none"), ("full", "learned")])
def test_model_for_one_length_is_refused_by_name(mechanism, position, paths):
    record = needle(mechanism, position, paths)
    with pytest.raises(OptionError, match=f"{position} positions and {mechanism} attention has"):
        evaluate_lengths(record, paths, [8, 32])
    assert not (record.parent / "evaluations").exists()
