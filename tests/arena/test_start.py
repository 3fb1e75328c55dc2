"""Runs that start from the weights of others: order, identity, refusals, resumption."""

import collections
import dataclasses
import importlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

import many
import tiny
import toy_heads
from longspan import catalog
from longspan.arena import (
    RunChoices,
    SearchSpace,
    arena,
    get,
    grid,
    load_protocol,
    make_model,
    override,
    plan,
    pretrain,
    run,
    searches,
    tune,
)
from longspan.arena.callbacks import GridCallback
from longspan.arena.executors import WorkerPoolExecutor
from longspan.arena.experiment import hash_config
from longspan.arena.grid import order_runs
from longspan.arena.one_run import pretraining_experiment
from longspan.arena.protocols.base import PROTOCOLS
from longspan.arena.protocols.compare import compare
from longspan.arena.protocols.files import read_protocol
from longspan.arena.rerun import rerun
from longspan.arena.run_state import hold_lock
from longspan.arena.start import find_start, load_start
from longspan.cli.parsing import parse_changes
from longspan.config import Budget
from longspan.errors import OptionError, RunError
from longspan.publishing import export_run
from longspan.results import (
    StartRecord,
    load_failure,
    load_result,
    load_results,
    write_record,
)
from longspan.results.commands import run_command
from longspan.tasks import build
from longspan.training.checkpoint import Checkpoints
from longspan.training.checkpoint_folder import weights_sha256
from longspan.training.loop import StageTrainer
from longspan.training.stage_weights import load_checkpoint
from longspan.validation import validate_records
from longspan.validation.identity import _requested_experiment
from staged_protocol import FILE as PROTOCOL_FILE
from staged_protocol import SOURCE, TASKS, make, recipe


@pytest.fixture
def staged(registries):
    """Register the small tasks, and a protocol whose tasks start from the first one."""
    PROTOCOLS["staged"] = make()
    return PROTOCOLS["staged"]


@pytest.fixture
def paths(tmp_path):
    return tiny.paths(tmp_path / "runs", tmp_path / "cache")


def opened(experiment, paths):
    task = build(experiment.task, experiment.config.task.options)
    task.open(paths.cache)
    return task


def finish(experiment, paths):
    return run(experiment, opened(experiment, paths), paths)


def elsewhere(paths):
    return dataclasses.replace(paths, runs=paths.runs.parent / "more")


def count_steps(monkeypatch):
    """Return the steps of each task from now on, which are counted as they are trained."""
    steps, step = collections.Counter(), StageTrainer._step

    def counted(self, batches):
        steps[self.task.info.name] += 1
        return step(self, batches)

    monkeypatch.setattr(StageTrainer, "_step", counted)
    return steps


def started(experiment, paths):
    """Return the model of an experiment after its start, and the record of the start."""
    task = opened(experiment, paths)
    model = make_model(experiment, task)
    found = find_start(experiment, task, paths)
    return model, load_start(model, found, experiment)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Paths of the finished source, which the first test that needs it trains."""
    folder = tmp_path_factory.mktemp("source")
    return tiny.paths(folder / "runs", folder / "cache")


@pytest.fixture
def source(staged, paths, kept):
    """Run on the source task, finished in the paths of the test."""
    experiment = staged.row(SOURCE, "local", 0)
    if not kept.runs.exists():
        finish(experiment, kept)
    for place, copy in ((kept.runs, paths.runs), (kept.cache, paths.cache)):
        shutil.copytree(place, copy)
    return experiment


def saved_weights(experiment, paths):
    folder = Checkpoints(paths.run_dir(experiment)).best()
    return folder, load_file(folder / "model.safetensors")


def test_weights_are_loaded_by_name_and_the_head_is_new(staged, paths, source):
    row = staged.row("toy_labels", "local", 0)
    folder, weights = saved_weights(source, paths)
    model, record = started(row, paths)
    drawn = make_model(row, opened(row, paths)).state_dict()
    for name, x in model.state_dict().items():
        assert x.equal(weights[name] if name.startswith("model.") else drawn[name]), name
    assert record.new == [name for name in drawn if not name.startswith("model.")]
    assert record.dropped == [x for x in weights if not x.startswith("model.")]
    assert record.sha256 == weights_sha256(folder)
    assert not drawn["model.embeddings.words.weight"].equal(
        weights["model.embeddings.words.weight"]
    )


def test_grid_runs_sources_first_and_adds_missing_ones(staged, paths):
    experiments, _ = grid(
        "staged", tasks=["toy_labels"], mechanisms=["local", "full"], seeds=(0, 1)
    )
    assert len(experiments) == 8
    for number, experiment in enumerate(experiments):
        assert (experiment.source is None) == (experiment.task == SOURCE)
        assert all(source in experiments[:number] for source in experiment.sources)
    results, failed = arena(experiments[:4], paths, GridCallback())
    assert not failed
    assert [x.config for x in results] == [x.config for x in experiments[:4]]
    for result in results:
        again = load_result(paths.runs / result.protocol / result.task / result.filename)
        assert again.start == result.start
        assert (result.start is None) == (result.task == SOURCE)


@pytest.mark.parametrize("seed", range(5))
def test_order_of_runs_respects_starts(staged, seed):
    experiments, _ = grid("staged", mechanisms=["local", "full", "wide"], seeds=(0, 1))
    costs = torch.rand(len(experiments), generator=torch.Generator().manual_seed(seed)).tolist()
    numbers = {id(x): cost for x, cost in zip(experiments, costs, strict=True)}
    ordered = order_runs(experiments, lambda x: numbers[id(x)])
    assert sorted(x.name for x in ordered) == sorted(x.name for x in experiments)
    assert all(source in ordered[:n] for n, x in enumerate(ordered) for source in x.sources)


def test_source_is_trained_once_by_the_first_run_that_needs_it(staged, paths, monkeypatch):
    rows = [staged.row(task, "local", 0) for task in TASKS[1:]]
    trained = count_steps(monkeypatch)
    results, failed = arena(rows, paths, GridCallback())
    assert failed == []
    (source,) = load_results([paths.runs / "staged" / SOURCE])
    assert trained[SOURCE] == source.steps
    assert {x.start.sha256 for x in results} == {
        weights_sha256(saved_weights(rows[0].source, paths)[0])
    }
    assert [x.scores for x in results] == [finish(x, elsewhere(paths)).scores for x in rows]


def test_run_waits_while_another_process_trains_its_source(staged, paths):
    """The lock of the source is that of a run: its dependents are tried again, and not failed."""
    row = staged.row("toy_labels", "local", 0)
    with hold_lock(paths.run_dir(row.source), "run"):
        results, failed = arena([row], paths, GridCallback())
    assert (results, [x.is_locked for x in failed]) == ([], [True])
    assert not paths.failure_file(row).exists()
    assert len(arena([row], paths, GridCallback())[0]) == 1


@pytest.fixture
def protocol_file(registries, tmp_path):
    """Return a file that registers the tasks and the protocol, in other processes too."""
    path = tmp_path / "stages.py"
    path.write_text(PROTOCOL_FILE)
    return path


@pytest.mark.slow
def test_worker_processes_wait_for_sources(protocol_file, paths):
    staged = load_protocol(str(protocol_file))
    experiments = [staged.row(task, "local", seed) for task in TASKS for seed in (0, 1)]
    executor = WorkerPoolExecutor(2)
    results, failed = arena(experiments[::-1], paths, GridCallback(), executor=executor)
    assert len(results) == 6, failed


@pytest.mark.slow
def test_processes_of_torchrun_train_the_source_first(protocol_file, tmp_path, places):
    command = ("-m", "longspan", "train", "local", "toy_labels", "--protocol", protocol_file)
    run = many.torchrun(2, list(map(str, (*command, *places))))
    search = os.pathsep.join([str(Path(many.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        run, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search}, check=False
    )
    assert done.returncode == 0, done.stderr
    results = {x.task: x for x in load_results([tmp_path / "runs"])}
    assert [x.world_size for x in results.values()] == [2, 2]
    assert results["toy_labels"].start.source.startswith(f"staged/{SOURCE}/work/")


def test_train_and_arena_train_the_source_first(cli, protocol_file, tmp_path, places):
    command = ("toy_labels", "--protocol", protocol_file, *places)
    out, _ = cli.done("train", "local", *command, "--set", "toy_masked.training.steps=2")
    assert "toy_labels" in out
    steps = {x.task: x.steps for x in load_results([tmp_path / "runs"])}
    assert steps == {SOURCE: 2, "toy_labels": 4}
    out, _ = cli.done("arena", "--tasks", *command, "--mechanisms", "local", "--dry-run", "--json")
    planned = [(x["task"], x["state"]) for x in json.loads(out)["runs"]]
    assert planned == [(SOURCE, "new"), ("toy_labels", "new")]


def test_plan_of_a_search_has_the_runs_that_trials_start_from(cli, protocol_file, places):
    command = ("--tasks", "toy_labels", "--protocol", protocol_file, "--mechanisms", "local")
    grid_of = ("--tune", "--grid", "training.learning_rate=0.01,0.02", "--dry-run", "--json")
    out, _ = cli.done("arena", *command, *grid_of, *places)
    planned = [(x["task"], x["state"]) for x in json.loads(out)["runs"]]
    assert planned == [(SOURCE, "new"), ("toy_labels", "new"), ("toy_labels", "new")]
    assert json.loads(out)["totals"]["runs"] == 3


def test_source_without_a_model_is_refused(staged, paths):
    row = staged.row("toy_labels", "local", 0)
    finish(staged.row(SOURCE, "local", 1), paths)  # of another seed
    with pytest.raises(RunError, match=r"toy_masked/local-\w+-0.json has no saved model beside it"):
        started(row, paths)
    with pytest.raises(RunError, match="starts from a checkpoint, and no folder of it is known"):
        started(dataclasses.replace(row, source=None), paths)


def test_changes_and_budget_of_the_source_change_the_hash(staged):
    base = staged.row("toy_labels", "local", 0)
    assert base.config.start.run == staged.row(SOURCE, "local", 0).hash
    changed = staged.row("toy_labels", "local", 0, {"toy_masked.training.steps": 6})
    assert changed.hash != base.hash
    assert changed.overrides == {"toy_masked.training.steps": 6}
    assert staged.row("toy_labels", "local", 0, changed.overrides).hash == changed.hash
    budget = Budget(kind="flops", limit=1e9)
    limited = staged.row("toy_labels", "local", 0, {}, budget)
    source = staged.row(SOURCE, "local", 0, {}, budget)
    assert limited.config.start.run == source.hash
    own = staged.row("toy_labels", "local", 0, {"toy_labels.training.steps": 6})
    assert own.config.start == base.config.start


def test_start_from_scratch_is_the_same_run_without_a_protocol_of_stages(staged):
    plain = dataclasses.replace(staged.row("toy_labels", "local", 0).config, start=None)
    made = staged.row("toy_labels", "local", 0, {"start.task": None})
    assert made.config == plain
    assert made.overrides == {"start.task": None}
    assert "start" not in json.dumps(hash_config(plain))
    assert staged.row("toy_labels", "scratch", 0).config.start is None


def test_reference_row_starts_from_the_row_of_its_mechanism(staged):
    row = staged.row("toy_labels", "wide", 0)
    assert row.config.start.run == staged.row(SOURCE, "local", 0).hash
    experiments, _ = grid("staged", tasks=["toy_labels"], mechanisms=["wide"])
    rows = [(x.task, x.row_name) for x in experiments]
    assert rows == [(SOURCE, "local"), ("toy_labels", "wide")]


def test_circles_and_unknown_sources_are_refused_and_a_source_starts_from_none(staged):
    base = staged.row("toy_labels", "local", 0)
    for name in ("start.task", "local.start.task", "toy_labels.start.task"):
        assert staged.row("toy_labels", "local", 0, {name: SOURCE}) == base
    for start, message in ((SOURCE, "start from each other"), ("listops", "has no task")):
        with pytest.raises(Exception, match=message):
            staged.row(SOURCE, "local", 0, {"start.task": start})


def test_settings_of_a_start_that_no_run_has_are_refused(staged):
    """The run began from random initialization, and its record did not name the setting."""
    cell = {"tasks": [SOURCE], "mechanisms": ["local"]}
    for name, value in (("start.row", "full"), (f"{SOURCE}.start.extend_positions", "tile")):
        with pytest.raises(OptionError, match=r"none of toy_masked starts from another run; set"):
            grid("staged", **cell, changes={name: value})
    with pytest.raises(OptionError, match=r"none of toy_masked starts from another run; set"):
        searches("staged", SearchSpace(grid={"start.row": ("full", "local")}), **cell)
    space = SearchSpace(grid={"start.task": (None, SOURCE)}, changes={"start.row": "full"})
    (found,), _ = searches("staged", space, **cell)
    assert [x.source and x.source.row_name for x in found.experiments] == [None, "full"]
    changes = {"start.task": SOURCE, "start.row": "full"}
    experiments, _ = grid("staged", **cell, changes=changes)
    assert [x.row_name for x in experiments] == ["full", "local"]
    # One of the runs has a start.
    grid("staged", tasks=TASKS, mechanisms=["local"], changes={"start.row": "local"})


def test_circles_of_settings_are_refused(staged):
    """They ended in the limit of recursion."""
    circle = {"toy_labels.start.task": "toy_span", "toy_span.start.task": "toy_labels"}
    with pytest.raises(OptionError, match="runs start from each other: local on toy_labels from"):
        staged.row("toy_labels", "local", 0, circle)


def test_given_widths_that_differ_are_refused(staged, paths, source):
    row = staged.row("toy_labels", "local", 0)
    for changes, message in (
        ({"model.norm": "post"}, "another architecture: norm is 'pre' there, 'post' here"),
        ({"model.hidden_size": 32}, "hidden_size is 16 there, 32 here"),
        ({"model.position": "rotary"}, "position is 'learned' there"),
        ({"model.pooling": "cls"}, "have other shapes|lacks weights of the Transformer"),
    ):
        with pytest.raises(OptionError, match=message):
            started(override(row, changes), paths)


def from_local(staged, mechanism, changes):
    """Return the run of a mechanism that starts from that of `local`."""
    row = staged.row("toy_labels", mechanism, 0, changes)
    other = staged.row("toy_labels", "local", 0)
    config = dataclasses.replace(row.config, start=other.config.start)
    return dataclasses.replace(row, config=config, source=other.source)


def test_weights_of_another_mechanism_are_new(staged, paths, source):
    experiment = from_local(staged, "linformer", {})
    fresh = make_model(experiment, opened(experiment, paths)).state_dict()
    model, record = started(experiment, paths)
    own = [x for x in fresh if ".mechanism." in x]
    assert own
    assert [x for x in record.new if x.startswith("model.")] == own
    assert record.started == {}
    for name in own:
        assert model.state_dict()[name].equal(fresh[name])


def test_projections_of_global_tokens_start_as_copies(staged, paths, source):
    changes = {"longformer.global_projections": True}
    model, record = started(from_local(staged, "longformer", changes), paths)
    _, saved = saved_weights(source, paths)
    name = "model.layers.0.attention.{}key.weight"
    own = name.format("mechanism.projections.")
    assert record.started[own] == f"started from {name.format('')}"
    assert model.state_dict()[own].equal(saved[name.format("")])
    assert not [x for x in record.new if x.startswith("model.")]


def test_drawn_buffers_of_another_shape_are_new(staged, paths):
    source = staged.row(SOURCE, "performer", 0)
    finish(source, paths)
    changes = {"toy_labels.performer.features": 6}
    model, record = started(staged.row("toy_labels", "performer", 0, changes), paths)
    features = [x for x in record.new if x.startswith("model.")]
    assert features == [x for x in record.dropped if x.startswith("model.")]
    buffers = dict(model.named_buffers())
    _, saved = saved_weights(source, paths)
    for name in features:
        assert buffers[name].shape != saved[name].shape
    assert features


def test_new_weights_inside_the_transformer_are_refused(paths, source):
    folder, saved = saved_weights(source, paths)
    removed = "model.layers.0.attention.key.weight"
    save_file({x: y for x, y in saved.items() if x != removed}, folder / "model.safetensors")
    model = make_model(source, opened(source, paths))
    with pytest.raises(OptionError, match=rf"lacks weights .*{removed}; keep the checkpoint's"):
        load_checkpoint(model, folder)


def test_more_tokens_or_ids_than_the_checkpoint_has_are_refused(staged, paths):
    row = staged.row("toy_labels", "local", 0)
    for field, message in (
        ("task.length", "up to 30 tokens, the checkpoint 24 positions.*give toy_masked the length"),
        ("task.words", "30 token ids, the checkpoint 13"),
    ):
        experiment = override(row, {field: 30})
        with pytest.raises(OptionError, match=message):
            make_model(experiment, build(row.task, experiment.config.task.options))


def test_fewer_tokens_and_ids_keep_the_whole_checkpoint_and_others_are_refused(
    staged, paths, source, monkeypatch
):
    shorter = override(staged.row("toy_labels", "local", 0), {"task.length": 12, "task.words": 9})
    model, _ = started(shorter, paths)
    assert model.config.max_position_embeddings == 24
    assert model.config.vocab_size == toy_heads.WORDS
    for cls, name in ((toy_heads.ToyLabels, "word {}"), (toy_heads.ToyMasked, "{}")):
        monkeypatch.setattr(cls, "ids_to_tokens", lambda _, ids, x=name: [x.format(i) for i in ids])
    with pytest.raises(OptionError, match=r"12 ids .* other tokens .* 'word 1' here, '1' there"):
        started(staged.row("toy_labels", "local", 0), paths)


def test_interrupted_run_resumes_without_its_source(staged, paths, source, monkeypatch):
    row, other = staged.row("toy_labels", "local", 0), elsewhere(paths)
    shutil.copytree(paths.runs, other.runs)
    whole = finish(row, paths)
    with pytest.raises(tiny.StopError):
        run(row, opened(row, other), other, tiny.StopAtStep(3))
    shutil.rmtree(other.record_file(source).parent)
    trained = count_steps(monkeypatch)
    resumed = run(row, opened(row, other), other)
    assert SOURCE not in trained
    assert resumed.scores == whole.scores
    assert resumed.start == whole.start


def test_run_that_was_killed_before_its_first_step_refuses_another_source(staged, paths, source):
    row = staged.row("toy_labels", "local", 0)
    with pytest.raises(tiny.StopError):
        run(row, opened(row, paths), paths, tiny.StopAtStep(1))
    state = json.loads((paths.run_dir(row) / "experiment.json").read_text())
    state["start"]["sha256"] = "0" * 64
    del state["sha256"]
    (paths.run_dir(row) / "experiment.json").write_text(json.dumps(state))
    with pytest.raises(RunError, match="started from other weights, 000000000000"):
        run(row, opened(row, paths), paths)


def test_record_is_run_again_and_scored_again(staged, paths, source):
    row = staged.row("toy_span", "local", 0)
    result = finish(row, paths)
    path = paths.record_file(row)
    again = rerun(path, paths)
    assert again.is_equal
    assert again.after.start == result.start
    assert tiny.rescore(path, "test", paths) == result.scores["test"]
    scratch = staged.row("toy_span", "local", 0, {"start.task": None})
    assert finish(scratch, paths).curve != result.curve


def test_trial_is_run_again_from_its_start(staged, paths, source):
    row = staged.row("toy_span", "local", 0)
    trial = paths.for_trials()
    result = run(row, opened(row, paths), trial)
    path = trial.record_file(row)
    scores = {**result.scores, "test": tiny.rescore(path, "test", paths)}
    write_record(dataclasses.replace(result, scores=scores), path)
    again = rerun(path, paths)
    assert again.is_equal
    assert again.after.start == result.start


def test_failure_of_the_source_is_that_of_its_dependents(staged, paths, monkeypatch):
    """A failure is recorded with the reason, and void as soon as the source has a record."""

    source, row = (staged.row(task, "local", 0) for task in (SOURCE, "toy_labels"))
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "_step", Mock(side_effect=MemoryError))
        assert arena([row, source], paths, GridCallback())[0] == []
    own, theirs = (load_failure(paths.failure_file(x)) for x in (row, source))
    assert (own.kind, theirs.kind) == ("source", "memory")
    assert own.reason.endswith(f"which failed: {theirs.reason}")
    results, failed = arena([row, source], paths, GridCallback())
    assert results == []
    assert all("--retry-failed" in x.reason for x in failed)
    assert [x.state for x in plan([row, source], paths)] == ["failed", "failed"]
    arena([source], paths, GridCallback(), retry_failed=True)
    assert [x.state for x in plan([row, source], paths)] == ["new", "finished"]
    results, failed = arena([row, source], paths, GridCallback())
    assert [x.task for x in results] == ["toy_labels", SOURCE]
    assert not paths.failure_file(row).exists()


CHAIN = """
base = "staged"

[rows.short]
tasks = ["toy_masked"]
start = { task = "none" }

[rows.long]
tasks = ["toy_masked"]
mechanism = "local"
start = { task = "toy_masked", row = "short" }

[rows.last]
tasks = ["toy_labels"]
mechanism = "local"
start = { task = "toy_masked", row = "long" }
"""


@pytest.fixture
def chain(staged, tmp_path):
    """Return a protocol with three runs, each of which starts from the one before."""
    made = read_protocol(tmp_path / "chain.toml", CHAIN.encode())
    PROTOCOLS["chain"] = made
    return made


def test_failures_of_sources_are_void_within_one_command(chain, paths, monkeypatch):
    """All runs of a chain end in the command that ends its first one."""
    row = chain.row("toy_labels", "last", 0)
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "_step", Mock(side_effect=MemoryError))
        arena([*row.sources, row], paths, GridCallback())
    # As if the first run had been refused: it has no record of a failure.
    paths.failure_file(row.sources[0]).unlink()
    assert paths.failure_file(row).exists()
    results, failed = arena([*row.sources, row], paths, GridCallback())
    assert (len(results), failed) == (3, [])


def test_pretraining_retries_its_source(chain, paths, monkeypatch):
    """The message promised so, and the recorded failure of the source stayed."""
    choices = RunChoices(mechanism="long", protocol="chain")
    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "_step", Mock(side_effect=MemoryError))
        with pytest.raises(RunError, match="the same command retries it"):
            pretrain(SOURCE, paths, choices=choices)
    assert pretrain(SOURCE, paths, choices=choices).row_name == "long"
    changed = RunChoices(mechanism="long", protocol="chain", changes={"short.training.steps": 2})
    assert pretraining_experiment(SOURCE, None, changed).source.config.training.steps == 2


def test_source_of_other_data_or_recipe_is_no_start(staged, paths, source):
    """It was named as refused, and its dependents were trained from it or from a new one."""
    row = staged.row("toy_labels", "local", 0)
    recipes = {x: staged.recipe(x) for x in TASKS}
    longer = dataclasses.replace(recipes[SOURCE].training, steps=6)
    recipes[SOURCE] = recipes[SOURCE]._replace(training=longer)
    PROTOCOLS["staged"] = changed = dataclasses.replace(staged, recipe=recipes.__getitem__)
    other = changed.row("toy_labels", "local", 0)
    results, failed = arena([other.source, other], paths, GridCallback())
    assert (results, ["earlier recipe" in x.reason for x in failed]) == ([], [True, True])
    record = load_result(paths.record_file(source))
    write_record(dataclasses.replace(record, data_checksum="0" * 64), paths.record_file(source))
    results, failed = arena([source, row], paths, GridCallback())
    assert (results, ["scored on data 0000" in x.reason for x in failed]) == ([], [True, True])
    assert not paths.failure_file(row).exists()


def parse(line):
    """Return the experiment that a line of `longspan train` names."""
    row, task, *options = shlex.split(line)[2:]
    changes = parse_changes(options[options.index("--seed") + 2 :][1::2])
    return get(options[options.index("--protocol") + 1]).row(task, row, 0, changes)


@pytest.mark.parametrize(
    ("task", "row", "changes"),
    [
        ("toy_labels", "last", {"toy_labels.training.steps": 2}),
        ("toy_labels", "last", {"toy_masked.long.training.steps": 2}),
        ("toy_masked", "long", {"long.mechanism.sink_tokens": 1, "training.steps": 2}),
        ("toy_masked", "long", {"long.training.steps": 2, "start.extend_positions": None}),
    ],
)
def test_line_of_a_run_leaves_its_source_alone(chain, source, paths, task, row, changes):
    """A setting of the run alone was one of the source too, which has another hash then."""
    made = chain.row(task, row, 0, changes)
    record = load_result(paths.record_file(source))
    folder = f"chain/{SOURCE}/work/{made.source.name}/best-000004"
    record = dataclasses.replace(
        record,
        protocol="chain",
        config=made.config,
        overrides=made.overrides,
        config_hash=made.hash,
        start=StartRecord(source=folder, sha256="0" * 64, new=[], dropped=[], changed={}),
    )
    again = parse(run_command(record))
    assert (again.hash, again.source.hash) == (made.hash, made.source.hash)
    assert _requested_experiment(record).hash == made.hash


def test_search_takes_settings_of_the_runs_that_trials_start_from(staged):
    grid_of = {"training.learning_rate": (0.001, 0.02)}
    space = SearchSpace(grid=grid_of, changes={"toy_masked.training.steps": 2})
    (found,), _ = searches("staged", space, tasks=["toy_labels"], mechanisms=["local"])
    assert {x.source.config.training.steps for x in found.experiments} == {2}
    of_source = SearchSpace(grid={"toy_masked.training.steps": (2, 4)})
    with pytest.raises(OptionError, match="applies to no run"):
        searches("staged", of_source, tasks=["toy_labels"], mechanisms=["local"])


def test_grid_leaves_out_what_has_nothing_to_start_from(staged, paths, monkeypatch):
    # The package has a function of this name.
    module = importlib.import_module("longspan.arena.grid")
    monkeypatch.setattr(module, "find_refusal", lambda x: "too long" if x.task == SOURCE else None)
    experiments, left_out = grid("staged", tasks=["toy_labels"])
    assert experiments == []
    assert {x.name: x.reason for x in left_out}["local on toy_labels"] == (
        "it starts from local on toy_masked, which is left out: too long"
    )


def test_search_runs_the_sources_of_its_trials(staged, paths):
    grid_of = {"training.learning_rate": (0.001, 0.02)}
    space = SearchSpace(grid=grid_of, changes={"training.steps": 2})
    outcome = tune("staged", paths, GridCallback(), tasks=["toy_labels"], mechanisms=["local"],
                   space=space)  # fmt: skip
    (result,) = outcome.results
    (source,) = load_results([paths.runs / "staged" / SOURCE])
    assert outcome.failed == []
    assert result.start.source.startswith(f"staged/{SOURCE}/work/{source.stem}/best-")
    assert (source.steps, result.config.start.run) == (2, source.config_hash)
    assert source.config.training.learning_rate == 0.01
    assert result.overrides.keys() >= {"training.steps", f"{SOURCE}.training.steps"}


FILE = """
[tasks.toy_masked]
from = "staged"

[tasks.toy_labels]
from = "staged"
start = {start}
"""


def test_protocol_file_names_starts(staged, tmp_path):
    path = tmp_path / "mine.toml"
    for start, task in (('"toy_masked"', SOURCE), ('"none"', None)):
        made = read_protocol(path, FILE.format(start=start).encode())
        config = made.row("toy_labels", "local", 0).config
        assert (config.start and config.start.task) == task
    for start, message in (
        ("3", "must be a task, or task and row, got 3"),
        ('"listops"', "no task of this file called 'listops'"),
        ('"toy_labels"', "runs start from each other: full on toy_labels from full on toy_labels"),
    ):
        with pytest.raises(OptionError, match=rf"tasks\.toy_labels.*{message}"):
            read_protocol(path, FILE.format(start=start).encode())


RESTARTED = """
base = "staged"

[rows.first]
start = { task = "toy_masked", row = "local", extend_positions = "tile" }
[rows.first.tasks.toy_labels]
[rows.first.tasks.toy_span]
start = { row = "linear" }

[rows.second]
from = "first"
covers = ["toy_labels", "toy_span"]
start = { task = "toy_masked" }

[rows.third]
from = "first"
[rows.third.tasks.toy_labels]
start = { task = "toy_span" }
"""


def test_start_of_a_row_that_names_its_task_has_no_row_of_an_earlier_one(staged, tmp_path):
    made = read_protocol(tmp_path / "mine.toml", RESTARTED.encode())
    pairs = {(x.name, task): made.row(task, x.name, 0) for x in made.named_rows for task in x.tasks}
    starts = {
        x: (y.source.task, y.source.row_name, y.config.start.extend_positions)
        for x, y in pairs.items()
        if x[0] in ("first", "second", "third")
    }
    assert starts == {
        ("first", "toy_labels"): (SOURCE, "local", "tile"),
        ("first", "toy_span"): (SOURCE, "linear", "tile"),
        ("second", "toy_labels"): (SOURCE, "full", None),
        ("second", "toy_span"): (SOURCE, "full", None),
        ("third", "toy_labels"): ("toy_span", "full", None),
    }


def test_protocols_are_compared_and_described_with_their_starts(staged, monkeypatch):
    plain = dataclasses.replace(
        staged, name="plain", recipe=lambda task: recipe(task)._replace(start=None)
    )
    found = {x.field: (x.tasks, x.a, x.b) for x in compare(plain, staged, mechanisms=["local"])}
    assert found == {"start.task": (("toy_labels", "toy_span"), None, SOURCE)}
    described = catalog.describe("staged")
    assert described["start (toy_labels)"] == f"the run on {SOURCE}"
    assert f"start ({SOURCE})" not in described


def test_records_of_stages_pass_the_validation(staged, paths):
    source, row = (staged.row(task, "local", 0, {"training.steps": 2}) for task in TASKS[:2])
    arena([source, row], paths, GridCallback())
    validation = validate_records([paths.runs])
    assert [str(x) for x in validation.of("error")] == []
    assert not [x for x in validation.findings if x.field.startswith(("start", "config"))]
    paths.record_file(source).unlink()
    (found,) = [x for x in validate_records([paths.runs]).findings if "start" in x.field]
    assert (found.field, found.severity) == ("config.start.run", "note")
    result = load_result(paths.record_file(row))
    assert run_command(result).endswith(
        "--set toy_labels.local.training.steps=2 --set toy_masked.local.training.steps=2"
    )
    write_record(dataclasses.replace(result, start=None), paths.record_file(row))
    assert "start" in [x.field for x in validate_records([paths.runs]).of("error")]


def test_model_cards_name_the_start(staged, paths, tmp_path):
    source, row = (staged.row(task, "local", 0) for task in TASKS[:2])
    arena([source, row], paths, GridCallback())
    cards = []
    for experiment in (source, row):
        folder = tmp_path / experiment.task
        export_run(paths.record_file(experiment), folder, paths)
        cards.append((folder / "README.md").read_text())
    assert "type: fill-mask" in cards[0]
    assert "The weights started from" not in cards[0]
    sha256 = weights_sha256(saved_weights(source, paths)[0])[:12]
    assert f"The weights started from a run on {SOURCE} (sha256 {sha256})." in cards[1]
    rows = [line.replace("\\", "") for line in cards[1].splitlines() if line.startswith("| ")]
    cells = dict(line.strip("| ").split(" | ", 1) for line in rows if line.count(" | ") == 1)
    assert cells["started from"].strip().startswith(f"staged/{SOURCE}/work/")
    assert cells["new weights"].startswith("classifier.hidden.weight, ")
