"""Training in several processes, compared with one process.

The processes communicate over gloo. One launch runs many cases, because starting processes costs
more than the tiny runs.
"""

import itertools
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import many
import tiny
import toy_heads
from exactness import assert_bitwise_equal
from longspan.arena import make_model
from longspan.attention import MECHANISMS
from longspan.config import TrainingConfig
from longspan.errors import (
    DataError,
    DivergedError,
    LongspanError,
    OptionError,
    RunError,
    UnknownNameError,
)
from longspan.models import LongspanModel
from longspan.results import load_result
from longspan.training.checkpoint import Checkpoints
from longspan.training.distributed import group as process_group
from longspan.training.distributed.group import PARALLELISM, SINGLE_PROCESS, ProcessGroup
from longspan.training.distributed.sharding import check_config, parts_in_shards

# With a large epsilon, steps of AdamW depend on the magnitude of the gradient.
LARGE_EPSILON = {
    "training.steps": 8,
    "training.adam_epsilon": 1.0,
    "training.learning_rate": 10.0,
    "training.schedule": "constant",
}
TWO_LAYERS = {**LARGE_EPSILON, "model.num_hidden_layers": 2, "training.max_grad_norm": 0.5}
CASES = {
    # 5 rows for 2 processes: shards differ in size, and one has an empty last microbatch.
    "ddp": {
        "mechanism": "full",
        "changes": {
            **TWO_LAYERS,
            "training.batch_size": 5,
            "training.gradient_accumulation_steps": 3,
        },
    },
    "redrawn": {
        "mechanism": "performer",
        "changes": {**LARGE_EPSILON, "mechanism.redraw_every": 2},
    },
    # Evaluation batches have fewer rows than there are processes.
    "tokens": {
        "mechanism": "local",
        "tokens": True,
        "changes": {**LARGE_EPSILON, "training.eval_batch_size": 1},
    },
    "fsdp": {
        "mechanism": "full",
        "parallel": "fsdp",
        "changes": {
            **TWO_LAYERS,
            "training.batch_size": 5,
            "training.gradient_accumulation_steps": 3,
        },
    },
    # The projection belongs to the model, not to a layer: layers are sharded one by one.
    "shared": {
        "mechanism": "linformer",
        "parallel": "fsdp",
        "changes": {**TWO_LAYERS, "mechanism.sharing": "layerwise", "mechanism.rank": 8},
    },
    "context": {
        "mechanism": "full",
        "parallel": "context",
        "changes": {**TWO_LAYERS, "model.pooling": "cls", "model.position": "rotary"},
    },
}
REJECTED = {
    "training.batch_size must be >= 2, the number of processes, got 1; start fewer processes, or": {
        "mechanism": "full",
        "changes": {"training.batch_size": 1},
    },
    "local does not support context parallelism: all queries must be in one process": {
        "mechanism": "local",
        "parallel": "context",
    },
    "no parallelism called 'dpp'; did you mean ddp?": {"mechanism": "full", "parallel": "dpp"},
}


def assign_folders(cases, cache, root):
    """Return the cases with separate folders."""
    return {
        name: {**case, "cache": str(cache), "runs": str(root / "runs" / name)}
        for name, case in cases.items()
    }


def record(case):
    (path,) = Path(case["runs"]).rglob("smoke/*/*-0.json")
    return load_result(path)


def weights(case):
    (path,) = Path(case["runs"]).rglob("best-*/model.safetensors")
    return load_file(path)


def check_equal(case, reference):
    """Compare scores, curve, answers and weights of two runs."""
    one, other = record(case), record(reference)
    for split, score in one.scores.items():
        expected = other.scores[split]
        assert (score.metrics, score.num_targets) == (expected.metrics, expected.num_targets)
        assert score.loss == pytest.approx(expected.loss, abs=1e-5)
    assert one.example_scores == other.example_scores
    for a, b in zip(one.curve, other.curve, strict=True):
        assert (a.step, a.train_metrics["accuracy"]) == (b.step, b.train_metrics["accuracy"])
        assert a.validation_metrics["accuracy"] == b.validation_metrics["accuracy"]
        assert a.train_loss == pytest.approx(b.train_loss, abs=1e-5)
        assert a.validation_loss == pytest.approx(b.validation_loss, abs=1e-5)
    assert one.selected_step == other.selected_step
    assert one.tokens_per_second * one.seconds == pytest.approx(
        other.tokens_per_second * other.seconds
    )
    assert weights(case).keys() == weights(reference).keys()
    torch.testing.assert_close(weights(case), weights(reference), rtol=1e-3, atol=1e-5)


def check_tidy(case):
    """Check that only the record, the best model and the logs remain."""
    (work,) = Path(case["runs"]).glob("smoke/*/work/*")
    (best,) = (path.name for path in work.glob("best-*"))
    left = {"experiment.json", "tensorboard", best, "run.lock", "train.lock"}
    assert {p.name for p in work.iterdir()} == left
    assert len(list((work / "tensorboard").rglob("events*"))) == 1
    assert not list(Path(case["runs"]).rglob(".*"))


def interrupt(case, monkeypatch):
    """Interrupt a run of this process at step 7."""
    with monkeypatch.context() as patch:
        patch.setattr(many, "KillAtStep", tiny.StopAtStep)
        with pytest.raises(tiny.StopError):
            many.run_case({**case, "kill": 7})


@pytest.fixture(scope="module")
def server():
    return tiny.server()


@pytest.fixture(scope="module")
def two_process_runs(server, tiny_cache, tmp_path_factory):
    """Run all cases in two processes and in this one; return both and the printed output."""
    root, alone = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("one")
    cases = assign_folders({**CASES, "resumed": CASES["ddp"], **REJECTED}, tiny_cache, root)
    with pytest.MonkeyPatch.context() as patch:
        interrupt(cases["resumed"], patch)
    outputs = many.launch(server, 2, list(cases.values()), root)
    references = assign_folders(CASES, tiny_cache, alone)
    for reference in references.values():
        many.run_case(reference)
    return cases, references, outputs


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_like_one(two_process_runs, name):
    cases, references, _ = two_process_runs
    check_equal(cases[name], references[name])
    check_tidy(cases[name])
    assert record(references[name]).world_size == 1
    assert record(references[name]).parallelism == "none"
    assert record(cases[name]).world_size == 2
    assert record(cases[name]).parallelism == cases[name].get("parallel", "ddp")


def test_run_of_one_process_resumes_with_two(two_process_runs):
    cases, references, _ = two_process_runs
    check_equal(cases["resumed"], references["ddp"])
    assert record(cases["resumed"]).world_size == 2


def test_training_changes_weights(two_process_runs):
    """Check that runs change the weights, without which comparisons of runs would prove nothing."""
    _, references, _ = two_process_runs
    for name, reference in references.items():
        experiment, task = many.prepare(reference)
        fresh, found = make_model(experiment, task).state_dict(), weights(reference)
        moved = max(float((fresh[key] - x).abs().max()) for key, x in found.items())
        assert moved > 0.01, name


def test_only_the_main_process_writes(two_process_runs):
    _, _, outputs = two_process_runs
    assert not [line for line in outputs[1].splitlines() if line.startswith("wrote:")]


@pytest.mark.parametrize("reason", REJECTED)
def test_invalid_configurations_are_rejected_by_both_processes(two_process_runs, reason):
    _, _, outputs = two_process_runs
    for output in outputs:
        assert any(line.startswith(f"rejected: {reason}") for line in output.splitlines()), output


def test_killed_process_ends_other_process_and_run_resumes(server, tiny_cache, tmp_path):
    """Kill the main process of a sharded run at step 7; resume in one process."""
    (case,) = assign_folders({"fsdp": CASES["fsdp"]}, tiny_cache, tmp_path).values()
    started = many.start(server, 2, [{**case, "kill": 7}], tmp_path)
    codes, outputs = many.join(started)
    assert codes == [-signal.SIGKILL, 1]
    line = outputs[1].strip().splitlines()[-1]
    assert line.startswith("process 1 of 2 failed (")
    assert line.endswith("; run the same command to resume from the last checkpoint")
    assert "Traceback" not in outputs[1]
    assert max(path.name for path in Path(case["runs"]).rglob("step-*")) == "step-000006"
    many.run_case(case)
    (reference,) = assign_folders({"one": CASES["fsdp"]}, tiny_cache, tmp_path).values()
    many.run_case(reference)
    check_equal(case, reference)


def rows_of(group, num_rows, num_microbatches):
    shards = group.shard_rows(num_rows, num_microbatches)
    return [row for shard in shards if shard.weight for row in range(num_rows)[shard.rows]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_microbatches", [1, 2, 4])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 7, 12])
def test_every_row_is_in_one_shard(world_size, num_microbatches, num_rows):
    groups = [ProcessGroup(world_size, rank, "ddp") for rank in range(world_size)]
    rows = [rows_of(group, num_rows, num_microbatches) for group in groups]
    assert sorted(itertools.chain(*rows)) == list(range(num_rows))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    # Every process runs the same number of forward passes, each with at least one row.
    shards = [group.shard_rows(num_rows, num_microbatches) for group in groups]
    (count,) = {len(own) for own in shards}
    assert count <= num_microbatches
    assert all(range(num_rows)[shard.rows] for own in shards for shard in own)


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 7])
def test_microbatches_of_single_process_equal_chunk(num_microbatches):
    rows = torch.arange(7)
    shards = SINGLE_PROCESS.shard_rows(7, num_microbatches)
    assert [rows[shard.rows].tolist() for shard in shards] == [
        x.tolist() for x in rows.chunk(num_microbatches)
    ]


def test_context_parallel_processes_receive_all_rows():
    for rank in range(2):
        assert rows_of(ProcessGroup(2, rank, "context"), 5, 2) == list(range(5))


@pytest.mark.parametrize("cls", [x for x in toy_heads.TOYS if x is not toy_heads.ToyTextToText])
def test_every_text_is_read_in_shards_of_positions(cls, registries, tmp_path):
    case = {"mechanism": "full", "toy": cls.__name__, "cache": str(tmp_path)}
    model = make_model(*many.prepare(case))
    assert parts_in_shards(model) == [x for x in model.modules() if isinstance(x, LongspanModel)]


def test_encoder_is_read_in_shards_and_its_decoder_whole(registries, tmp_path):
    case = {"mechanism": "full", "toy": "ToyTextToText", "cache": str(tmp_path)}
    model = make_model(*many.prepare(case))
    assert parts_in_shards(model) == [model.model.encoder]


def test_rank_seeds_differ_and_rank_0_has_seed_of_run():
    seeds = [
        ProcessGroup(4, rank, "ddp").rank_seed(seed) for seed in range(50) for rank in range(4)
    ]
    assert len(set(seeds)) == 200
    assert seeds[::4] == list(range(50))


def test_local_errors_exit_process_and_shared_errors_do_not():
    two = ProcessGroup(2, 1, "ddp")
    with (
        pytest.raises(
            SystemExit, match=r"process 1 of 2 failed \(no memory\); run the same command"
        ),
        two.exit_on_local_error(),
    ):
        raise torch.OutOfMemoryError("no memory\nof any kind")
    for local in (MemoryError(), IndexError("i"), ValueError("v"), RunError("r"), DataError("d")):
        with pytest.raises(SystemExit, match=r"process 1 of 2 failed"), two.exit_on_local_error():
            raise local
    for shared in (DivergedError("the loss"), OptionError("o"), UnknownNameError("n")):
        with pytest.raises(type(shared)), two.exit_on_local_error():
            raise shared
    with pytest.raises(torch.OutOfMemoryError), SINGLE_PROCESS.exit_on_local_error():
        raise torch.OutOfMemoryError


@pytest.mark.parametrize("error", [RunError("full"), MemoryError(), OSError(28, "full")])
def test_error_in_run_on_main_is_shared(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(ProcessGroup, "broadcast", lambda _, value: value)
    main = ProcessGroup(2, 0, "ddp")
    with pytest.raises(type(error)), main.exit_on_local_error():
        main.run_on_main(fail)


def test_unshared_folder_is_rejected(tmp_path, monkeypatch):
    two = ProcessGroup(2, 1, "ddp")
    monkeypatch.setattr(ProcessGroup, "all_gather", lambda _, x: [1 - x, x])
    rejected = pytest.raises(
        RunError, match=r"not all 2 processes see the checkpoints in .*; share"
    )
    with rejected, two.exit_on_local_error():
        Checkpoints(tmp_path, two).exists()


def test_mps_device_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("accelerate.state.is_mps_available", lambda *_, **__: True)
    assert process_group.make_accelerator("no", tmp_path, None).device.type == "cpu"


def test_fp16_with_fsdp_is_rejected():
    recipe = TrainingConfig(
        **{**tiny.TRAIN, "schedule": "constant", "precision": "fp16"}  # type: ignore[arg-type]
    )
    with pytest.raises(OptionError, match="fsdp does not support precision fp16; use bf16"):
        check_config(recipe, ProcessGroup(2, 0, "fsdp"))
    check_config(recipe, ProcessGroup(2, 0, "ddp"))


def test_parallelism_follows_accelerate_launch_by_default(monkeypatch):
    class State:
        num_processes, process_index, device = 2, 1, torch.device("cpu")

    monkeypatch.setattr(process_group, "_reset_state", lambda _: State)
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert process_group.current_group().parallelism == "ddp"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert process_group.current_group().parallelism == "fsdp"
    assert process_group.current_group(parallel="ddp").parallelism == "ddp"
    with pytest.raises(UnknownNameError, match="no parallelism called 'fsdb'"):
        process_group.current_group(parallel="fsdb")


def test_unreachable_processes_raise_error(monkeypatch):
    def fail(_):
        raise RuntimeError("no address\nat all")

    monkeypatch.setattr(process_group, "_reset_state", fail)
    with pytest.raises(LongspanError, match=r"cannot be reached \(no address\)$"):
        process_group.current_group()


FREQUENT_CHECKPOINTS = {**LARGE_EPSILON, "training.steps": 12, "training.checkpoint_every": 3}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_killed_run_of_two_processes_with_dropout_resumes_exactly(
    server, tiny_cache, tmp_path, parallelism
):
    with_dropout = {
        **FREQUENT_CHECKPOINTS,
        "model.hidden_dropout_prob": 0.2,
        "model.attention_dropout": 0.1,
    }
    case = {"mechanism": "performer", "parallel": parallelism, "changes": with_dropout}
    cases = assign_folders({"killed": case, "truth": case, "again": case}, tiny_cache, tmp_path)
    started = many.start(server, 2, [{**cases["killed"], "kill": 8}], tmp_path)
    assert many.join(started)[0] == [-signal.SIGKILL, 1]
    many.launch(server, 2, list(cases.values()), tmp_path)
    for name in ("killed", "again"):
        assert record(cases[name]).scores == record(cases["truth"]).scores
        one, other = weights(cases[name]), weights(cases["truth"])
        assert_bitwise_equal(one, other, "resumption")


@pytest.mark.slow
def test_processes_have_different_dropout(server, tiny_cache, tmp_path):
    """Check that processes do not share random states, since equal rows would count twice."""
    case = {
        "mechanism": "local",
        "changes": {**FREQUENT_CHECKPOINTS, "model.hidden_dropout_prob": 0.3},
    }
    (case,) = assign_folders({"wet": case}, tiny_cache, tmp_path).values()
    started = many.start(server, 2, [{**case, "kill": 7}], tmp_path)
    assert many.join(started)[0] == [-signal.SIGKILL, 1]
    last = max(Path(case["runs"]).rglob("optimizer.safetensors"))
    states = load_file(last)
    assert not states["rng.cpu"].equal(states["rng.cpu.1"])


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_every_mechanism_trains_in_three_processes(server, tiny_cache, tmp_path, parallelism):
    cases = {
        name: {
            "mechanism": name,
            "parallel": parallelism,
            "changes": {**TWO_LAYERS, "training.steps": 4},
        }
        for name in MECHANISMS
    }
    both = [assign_folders(cases, tiny_cache, tmp_path / number) for number in ("three", "one")]
    (tmp_path / "three").mkdir()
    many.launch(server, 3, list(both[0].values()), tmp_path / "three")
    for name in cases:
        many.run_case(both[1][name])
        check_equal(both[0][name], both[1][name])


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", PARALLELISM)
def test_every_head_trains_in_two_processes(server, registries, tmp_path, parallelism):
    """Under ddp and fsdp, a process compares its queries with its own documents alone."""
    compares = toy_heads.ToyRetrieval if parallelism != "context" else None
    case = {"mechanism": "full", "parallel": parallelism, "changes": TWO_LAYERS}
    cases = {x.__name__: {**case, "toy": x.__name__} for x in toy_heads.TOYS if x is not compares}
    both = [assign_folders(cases, tmp_path, tmp_path / number) for number in ("two", "one")]
    (tmp_path / "two").mkdir()
    many.launch(server, 2, list(both[0].values()), tmp_path / "two")
    for name in cases:
        many.run_case(both[1][name])
        losses = [record(x[name]).curve[-1].train_loss for x in both]
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
        torch.testing.assert_close(*(weights(x[name]) for x in both), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_killed_torchrun_command_resumes(tiny_cache, tmp_path):
    """Kill one process of `torchrun -m longspan train`; torchrun ends the other."""
    changes = {**many.NO_DROPOUT, "training.steps": 200, "training.checkpoint_every": 3}
    runs = tmp_path / "runs"
    arguments = tiny.command(runs, tiny_cache, changes=changes)
    command = many.torchrun(2, ["-m", "longspan", *arguments])
    process = many.popen(command)
    deadline = time.monotonic() + 120
    while not list(runs.rglob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    many.kill_child(process)
    output = process.communicate(timeout=120)[0]
    assert process.returncode != 0, output
    assert not list(runs.glob("smoke/listops/*.json"))
    again = many.popen(command)
    output = again.communicate(timeout=240)[0]
    assert again.returncode == 0, output
    assert output.count("step 200/200") == 1
    (reference,) = assign_folders(
        {"truth": {"mechanism": "local", "changes": changes}}, tiny_cache, tmp_path
    ).values()
    many.run_case(reference)
    (path,) = runs.glob("smoke/listops/*.json")
    one, other = load_result(path), record(reference)
    assert one.world_size == 2
    assert one.scores["test"].metrics["accuracy"] == other.scores["test"].metrics["accuracy"]
    assert one.scores["test"].loss == pytest.approx(other.scores["test"].loss, abs=1e-4)
