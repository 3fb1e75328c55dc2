"""Grids of runs: selection, order, execution and rejected records."""

import json

import pytest
from callbacks import LogRuns

import many
import tiny
from longspan.arena import SearchSpace, WorkerPoolExecutor, arena, get, grid, run, searches
from longspan.arena.stages import check_goal
from longspan.attention import MECHANISMS, Attention, Traits
from longspan.errors import OptionError, RunError, UnknownNameError
from longspan.files import write_json
from longspan.results import load_results
from longspan.tasks import TASKS, build


class LogSteps(LogRuns):
    """Callback that logs steps too."""

    def on_step(self, step, loss, tokens, seconds):
        self.lines.append("step")


def small_grid(mechanisms=("local", "full"), **options):
    options = {"tasks": ["listops"], "changes": tiny.CHANGES, **options}
    return grid("smoke", mechanisms=mechanisms, **options)[0]


def test_seeds_are_outermost_and_baseline_is_first():
    experiments, skipped = grid(
        "smoke", tasks=["text", "listops"], mechanisms=["performer", "full"], seeds=[3, 1]
    )
    assert skipped == []
    assert [(x.seed, x.mechanism) for x in experiments] == [
        (seed, mechanism) for seed in (3, 1) for mechanism in ("full", "performer") for _ in "12"
    ]
    assert {(x.mechanism, x.task) for x in experiments} == {
        (mechanism, task) for mechanism in ("full", "performer") for task in ("text", "listops")
    }


def test_grid_defaults_to_everything_and_drops_duplicates():
    experiments, _ = grid("smoke")
    assert {x.mechanism for x in experiments} == set(MECHANISMS)
    assert {x.task for x in experiments} == set(get("smoke").tasks)
    again, _ = grid("smoke", mechanisms=["full", "full"], tasks=["text", "text"], seeds=[0, 0])
    assert len(again) == 1


def test_empty_list_selects_nothing():
    assert grid("smoke", tasks=[]) == ([], [])
    assert grid("smoke", mechanisms=[]) == ([], [])
    space = SearchSpace(grid={"training.batch_size": [4]})
    assert searches("smoke", space, tasks=[]) == ([], [])
    assert searches("smoke", space, mechanisms=[]) == ([], [])


@pytest.mark.parametrize("name", TASKS)
def test_goals_that_decide_nothing_are_refused(name):
    """95 in place of 0.95, or a ROUGE where perplexity is measured, ended no training."""
    task = build(name, {})
    metric = task.selection_metrics[0]
    for goal in {0.0, 0.5, 1.0, 1.5, 95.0}:
        config = tiny.experiment(changes={"training.stop_at": goal}).config
        if metric.lowest <= goal <= metric.highest:
            check_goal(config, task)
            continue
        with pytest.raises(OptionError, match=f"a score of {metric.name} on {name}, which is at"):
            check_goal(config, task)


def test_runs_with_a_goal_that_decides_nothing_do_not_begin():
    with pytest.raises(OptionError, match=r"at least 0 and at most 1, got 95; set listops\.train"):
        small_grid(changes={**tiny.CHANGES, "training.stop_at": 95.0})


@pytest.fixture(scope="module")
def outputs(tiny_cache, tmp_path_factory):
    """Printed lines of two processes by grid and process: one lacks data, one grid diverges."""
    folder = tmp_path_factory.mktemp("two")
    case = {"cache": str(tiny_cache), "runs": str(folder / "runs" / "blind")}
    blind = {**case, "grid": [{}, {"training.steps": 4}]}
    shared = {**case, "runs": str(folder / "runs" / "shared"), "grid": [{}, tiny.DIVERGING]}
    cases = [{**blind, "blind": True}, blind, shared, shared]
    both = [x.splitlines() for x in many.launch(tiny.server(), 2, cases, folder)]
    lines = [[x for x in text if x.startswith(("ended", "failed"))] for text in both]
    # Each of the two blind grids ends two lines.
    assert [len(x) for x in lines] == [8, 8]
    wrote = [x for x in both[1] if x.startswith("wrote") and "/runs/shared" in x]
    return [x[:4] for x in lines], [x[4:] for x in lines], wrote


def test_all_processes_fail_if_one_lacks_data(outputs):
    """Check all processes: one that continued alone would join the next run of the others."""
    reasons = ("not all 2 processes can open the data of listops", "no folder")
    for lines, reason in zip(outputs[0], reasons, strict=True):
        failed = [line for line in lines if line.startswith("failed ")]
        assert len(failed) == 2
        assert all(reason in line for line in failed)
        assert len([line for line in lines if line.startswith("ended ")]) == 2


def test_processes_of_torchrun_start_no_workers(monkeypatch, paths):
    for name, value in tiny.LAUNCH.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        OptionError, match="several processes, and each would start a grid of its own"
    ):
        arena(small_grid(), paths, LogRuns(), executor=WorkerPoolExecutor(2))


def test_main_process_decides_for_all_processes(outputs):
    """Check that other processes agree on results, failures and order, and write no files."""
    _, (one, other), wrote = outputs
    assert not wrote
    assert one == other
    assert [x.split()[0] for x in one] == ["ended", "failed"] * 2


class ShortInputsOnly(Attention):
    """Mechanism that rejects long inputs."""

    traits = Traits(paper="none", family="kernel", cost="T", exact=False, sizes=("max_length",))

    def __init__(self, *, max_length: int):
        super().__init__()
        if max_length > 500:
            raise OptionError(f"picky takes max_length up to 500, got {max_length}")

    def flops(self, T, head_dim):
        return T


@pytest.fixture
def picky(monkeypatch):
    monkeypatch.setitem(MECHANISMS, "picky", ShortInputsOnly)
    monkeypatch.setattr(ShortInputsOnly, "name", "picky", raising=False)


def test_unfit_mechanisms_are_skipped_unless_named(picky):
    experiments, skipped = grid("smoke", tasks=["listops", "text"])
    assert [(x.name, x.reason) for x in skipped] == [
        ("picky on text", "picky takes max_length up to 500, got 1024")
    ]
    assert ("listops", "picky") in {(x.task, x.mechanism) for x in experiments}
    with pytest.raises(OptionError, match="picky takes max_length up to 500, got 1024"):
        grid("smoke", tasks=["text"], mechanisms=["picky"])


def test_tasks_that_a_reference_row_lacks_are_left_out():
    experiments, left_out = grid(
        "lra-paper", tasks=["image", "text"], mechanisms=["full", "cnn-stem"]
    )
    assert {(x.task, x.row_name) for x in experiments} == {
        *(("image", "full"), ("text", "full"), ("image", "cnn-stem"))
    }
    reason = "reference row 'cnn-stem' is a row of image only"
    assert [(x.name, x.reason) for x in left_out] == [("cnn-stem on text", reason)]
    with pytest.raises(OptionError, match=reason):
        grid("lra-paper", tasks=["text"], mechanisms=["full", "cnn-stem"])
    found, skipped = searches(
        "lra-paper",
        SearchSpace(grid={"training.learning_rate": [1e-3]}),
        tasks=["image", "retrieval"],
        mechanisms=["cnn-stem"],
    )
    assert [x.title for x in found] == ["cnn-stem on image"]
    assert [x.name for x in skipped] == ["cnn-stem on retrieval"]


def test_protocols_with_the_reference_row_are_named():
    message = "'lra-scaled' has no reference row 'words'; lra-paper and lra-repo have it"
    with pytest.raises(UnknownNameError, match=message):
        grid("lra-scaled", mechanisms=["words"])


def test_results_are_ordered_and_saved_after_each_run(tmp_path, paths):
    log = LogSteps()
    seen = log.on_run_end
    log.on_run_end = lambda result: seen(result) or log.lines.append(len(load_results([tmp_path])))
    results, failed = arena(small_grid(), paths, log)
    assert failed == []
    assert [result.mechanism for result in results] == ["full", "local"]
    lines = [line for line in log.lines if line != "step"]
    assert lines == ["1/2 full 0", "ended full 0", 1, "2/2 local 0", "ended local 0", 2]
    assert log.lines.count("step") == 24


def test_failed_run_does_not_stop_other_runs(paths):
    broken = small_grid(mechanisms=["full"], changes={**tiny.CHANGES, **tiny.DIVERGING})
    log = LogRuns()
    results, failed = arena([*broken, *small_grid(["local"])], paths, log)
    assert [result.mechanism for result in results] == ["local"]
    assert [x.name for x in failed] == [f"{broken[0].name} on listops"]
    assert failed[0].reason.startswith("the training loss is nan at step 2; lower the learning")
    assert "ended full 0" not in log.lines


def test_task_without_data_fails_its_own_runs_only(tiny_cache, tmp_path):
    text, _ = grid("smoke", tasks=["text"], mechanisms=["full", "local"])
    paths = tiny.paths(tmp_path / "runs", tiny_cache)
    empty = tmp_path / "empty"
    empty.mkdir()
    paths = type(paths)(runs=paths.runs, cache=paths.cache, data=empty, device="cpu")
    results, failed = arena([*text, *small_grid(["local"])], paths, LogRuns())
    assert len(results) == 1
    assert len(failed) == 2
    assert all("IMDB" in x.reason for x in failed), failed


def test_finished_runs_are_loaded(tmp_path, paths):
    first, _ = arena(small_grid(), paths, LogRuns())
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    log = LogSteps()
    again, _ = arena(small_grid(), paths, log)
    assert again == first
    assert "step" not in log.lines
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == files


@pytest.fixture
def finished_run(listops, paths):
    """Finished experiment, its paths, and a function that reruns it."""
    experiment = tiny.experiment()
    run(experiment, listops, paths)
    return experiment, paths, lambda: run(experiment, listops, paths)


@pytest.mark.parametrize(("field", "value"), [("config_hash", "0123456789"), ("seed", 4)])
def test_record_of_different_configuration_is_rejected(finished_run, field, value):
    experiment, paths, again = finished_run
    path = paths.record_file(experiment)
    record = {**json.loads(path.read_text()), field: value}
    write_json(path, record)
    message = (
        f"{path.name} records configuration .* expected {experiment.hash} with seed 0.*; "
        "move it away or"
    )
    with pytest.raises(RunError, match=message):
        again()


def test_run_directory_of_different_data_is_rejected(finished_run):
    experiment, paths, again = finished_run
    paths.record_file(experiment).unlink()
    path = paths.run_dir(experiment) / "experiment.json"
    write_json(path, {**json.loads(path.read_text()), "data_checksum": "0" * 64})
    message = r"belongs to another configuration \(data: 0{12} there, [0-9a-f]{12} here\); move it"
    with pytest.raises(RunError, match=message):
        again()


def test_run_directory_of_different_configuration_is_rejected(finished_run):
    experiment, paths, again = finished_run
    paths.record_file(experiment).unlink()
    path = paths.run_dir(experiment) / "experiment.json"
    there = json.loads(path.read_text())
    there["config"]["training"]["learning_rate"] = 7.0
    there["config"]["mechanism"]["options"] = {}
    write_json(path, there)
    message = (
        r"belongs to another configuration \(mechanism.window: 128 there, 16 here; "
        r"training.learning_rate: 7.0 there, 0.01 here\); move it away or choose another --runs"
    )
    with pytest.raises(RunError, match=message):
        again()


def test_next_start_cleans_up_after_kill_between_record_and_cleanup(finished_run):
    experiment, paths, again = finished_run
    work = paths.run_dir(experiment)
    (work / "step-000012").mkdir()
    again()
    assert not (work / "step-000012").exists()
    assert len(list(work.glob("best-*"))) == 1
