"""A record says everything about its run, and the run can be scored again from what it left."""

import dataclasses
import datetime
import errno
import io
import math
import shutil

import pytest
import torch
from rich.console import Console

import longspan
import tiny
from longspan.arena import RunPaths, arena, grid, make_model, run
from longspan.arena import record as recording
from longspan.arena.callbacks import GridCallback
from longspan.arena.console import ConsoleCallback
from longspan.arena.record import git_commit
from longspan.arena.rescore import rescore
from longspan.attention import MECHANISMS, options_of
from longspan.errors import DataError, RunError, UnknownNameError
from longspan.results import SCHEMA, Result, load_result, load_results


@pytest.fixture(scope="module")
def ended(tiny_cache, tmp_path_factory):
    """A run that has ended: experiment, task, paths, record."""
    torch.set_num_threads(1)
    paths = tiny.paths(tmp_path_factory.mktemp("runs"), tiny_cache)
    made, task = tiny.experiment("performer", seed=2), tiny.listops(tiny_cache)
    run(made, task, paths)
    return made, task, paths, load_result(paths.record_file(made))


def test_the_record_names_what_was_run_on_what(ended):
    made, task, paths, record = ended
    assert record.filename == paths.record_file(made).name == f"performer-{made.hash}-2.json"
    names = ("protocol", "task", "task_version", "mechanism", "seed", "config_hash", "selection")
    values = ("quick", "listops", 1, "performer", 2, made.hash, "best validation")
    assert tuple(getattr(record, name) for name in names) == values
    assert record.overrides == made.overrides
    assert record.task_options == dataclasses.asdict(task.options)
    assert (record.data_source, record.data_checksum) == (task.source, task.checksum)
    assert record.options == {**options_of("performer"), **made.options}
    assert record.model == dataclasses.asdict(made.model)
    assert {**record.training, "betas": tuple(record.training["betas"])} == dataclasses.asdict(
        made.train
    )


def test_the_record_counts_every_example_and_what_chance_gives(ended):
    _, task, _, record = ended
    assert set(record.scores) == {"validation", "test"}
    for split, score in record.scores.items():
        labels = task.labels(split).tolist()
        assert score.examples == len(labels) == tiny.TASK[split]
        assert score.majority == max(map(labels.count, labels)) / len(labels)
        assert score.accuracy * score.examples == pytest.approx(
            round(score.accuracy * score.examples)
        )
        assert math.isfinite(score.loss)
    assert record.chance == 0.1


def test_the_record_says_what_it_cost(ended):
    made, task, _, record = ended
    assert record.parameters == make_model(made, task).num_parameters(only_trainable=True)
    assert record.length == task.length == 23
    assert record.flops > 2 * record.length * 4 * 16 * 16
    assert record.attended_pairs is None
    assert 0 < record.waiting < record.seconds
    real = sum(
        int(batch.key_mask.sum())
        for _, batch in zip(range(12), task.batches("train", batch=4, seed=2), strict=False)
    )
    assert record.tokens_per_second == pytest.approx(real / record.seconds)
    assert record.peak_memory is None or record.peak_memory > 0


def test_the_record_says_where_and_when(ended):
    _, _, _, record = ended
    assert record.backend == "torch"
    assert record.dtype == "float32"
    assert record.device == "cpu, 1 threads"
    assert record.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert record.versions["longspan"] == longspan.__version__
    assert {"python", "transformers", "accelerate", "numpy"} <= set(record.versions)
    when = datetime.datetime.fromisoformat(record.date)
    assert when.tzinfo is not None
    assert abs(datetime.datetime.now(datetime.UTC) - when) < datetime.timedelta(minutes=30)


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(3.0, "100 s, 3 % of it waiting for data, "), (2.0, "100 s, "), (None, "100 s, ")],
)
def test_a_run_that_waited_for_data_says_so(ended, waiting, said):
    *_, record = ended
    output = io.StringIO()
    callback = ConsoleCallback(Console(file=output))
    callback.on_run_end(dataclasses.replace(record, seconds=100.0, waiting=waiting))
    assert f"majority class), {said}{record.tokens_per_second:,.0f} tokens/s" in output.getvalue()


def test_the_record_has_the_curve(ended):
    _, _, _, record = ended
    assert record.steps == 12
    assert [point.step for point in record.curve] == [4, 8, 12]
    assert all(v is not None for point in record.curve for v in dataclasses.astuple(point))


def test_no_field_of_a_record_is_forgotten_here(ended):
    """Fields whose default would go unseen; a new one needs a line in the tests above."""
    *_, record = ended
    assert {f.name for f in dataclasses.fields(Result) if f.default is not dataclasses.MISSING} == {
        "schema"
    }
    assert record.schema == SCHEMA


def test_pairs_are_counted_where_there_are_some(listops, tiny_cache, tmp_path):
    made = tiny.experiment("full")
    record = run(made, listops, tiny.paths(tmp_path, tiny_cache))
    assert record.attended_pairs == listops.length**2


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_rescoring_gives_the_recorded_scores_exactly(listops, tiny_cache, tmp_path, precision):
    paths = tiny.paths(tmp_path, tiny_cache)
    made = tiny.experiment(
        changes={"training.precision": precision, "training.learning_rate": 0.03}
    )
    record = run(made, listops, paths)
    for split in ("validation", "test"):
        assert rescore(paths.record_file(made), split, paths) == record.scores[split]


def test_rescoring_is_refused_where_it_would_not_be_the_same(ended, tmp_path):
    made, _, paths, _ = ended
    path = paths.record_file(made)
    with pytest.raises(
        UnknownNameError, match="no split to score called 'tset'; did you mean test"
    ):
        rescore(path, "tset", paths)
    # it has no end
    with pytest.raises(UnknownNameError, match="no split to score called 'train'; there are: test"):
        rescore(path, "train", paths)
    with pytest.raises(DataError, match=r"absent\.json does not exist"):
        rescore(tmp_path / "absent.json", "test", paths)
    lonely = tmp_path / path.name
    shutil.copy(path, lonely)
    with pytest.raises(DataError, match=r"work.* holds no saved model of .*; run it again"):
        rescore(lonely, "test", paths)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_model_is_refused_in_one_line(ended, tmp_path, name):
    made, _, paths, _ = ended
    shutil.copytree(paths.runs, tmp_path / "runs")
    there = tiny.paths(tmp_path / "runs", paths.cache)
    (path,) = there.run_dir(made).glob(f"best-*/{name}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"best-0000\d\d cannot be read \(.*\); run it again") as e:
        rescore(there.record_file(made), "test", there)
    assert "\n" not in str(e.value)


def test_other_data_than_was_trained_on_is_refused(ended, tmp_path):
    made, _, paths, record = ended
    shutil.copytree(paths.runs, tmp_path / "runs")
    path = tiny.paths(tmp_path / "runs", paths.cache).record_file(made)
    dataclasses.replace(record, data_checksum="0" * 64).save(tmp_path / "runs")
    with pytest.raises(DataError, match=r"was scored on data 000000000000, here is .*--data"):
        rescore(path, "test", paths)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), torch.OutOfMemoryError()]
)
def test_a_machine_that_has_too_little_is_one_line(
    listops, tiny_cache, tmp_path, monkeypatch, error
):
    from longspan.training.loop import _Run

    def fail(*_):
        raise error

    monkeypatch.setattr(_Run, "_step", fail)
    message = "No space left on device; free space|needs more memory than the device has; raise"
    with pytest.raises(RunError, match=message):
        run(tiny.experiment(), listops, tiny.paths(tmp_path, tiny_cache))


def test_an_error_that_is_not_of_the_disk_is_not_said_to_be(
    listops, tiny_cache, tmp_path, monkeypatch
):
    from longspan.training.loop import _Run

    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(_Run, "_step", fail)
    with pytest.raises(OSError, match=r"^\[Errno 24\] Too many open files$"):
        run(tiny.experiment(), listops, tiny.paths(tmp_path, tiny_cache))


def test_no_commit_is_recorded_outside_a_working_tree(monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "__file__", str(tmp_path / "record.py"))
    assert git_commit.__wrapped__() is None


def write_imdb(place, count=8):
    for part in ("train", "test"):
        for label, word in (("neg", "dull"), ("pos", "fine")):
            folder = place / "aclImdb" / part / label
            folder.mkdir(parents=True)
            for n in range(count):
                (folder / f"{n}_7.txt").write_text(f"{part} {n} is {word}")
    return place


CUT = {
    **{name: value for name, value in tiny.CHANGES.items() if not name.startswith("task.")},
    "training.steps": 2,
    "training.evaluate_every": 2,
}
TEXT = {"task.length": 32, "task.train": 8, "task.validation": 4, "task.test": 10}


def test_every_mechanism_runs_on_every_task(tiny_cache, tmp_path):
    listops = {name: value for name, value in tiny.CHANGES.items() if name.startswith("task.")}
    experiments = []
    for task, changes in (("listops", {**CUT, **listops}), ("text", {**CUT, **TEXT})):
        made, skipped = grid("quick", tasks=[task], changes=changes)
        assert skipped == []
        experiments += made
    paths = RunPaths(
        runs=tmp_path / "runs",
        cache=tiny_cache,
        data=write_imdb(tmp_path / "data"),
        device="cpu",
    )
    results, failed = arena(experiments, paths, GridCallback())
    assert failed == []
    cells = {(result.task, result.mechanism) for result in results}
    assert cells == {(task, name) for task in ("listops", "text") for name in MECHANISMS}
    assert all(result.scores["test"].examples in (44, 10) for result in results)
    assert sorted(map(repr, load_results([paths.runs]))) == sorted(map(repr, results))
