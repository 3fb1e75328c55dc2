"""Running a record again, to compare the answers: same configuration, seed and number of threads.

With the same versions, number of threads and kind of processor, every answer is equal. Other
versions and processors round differently, so a few answers may change.
"""

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from longspan.arena.callbacks import GridCallback
from longspan.arena.experiment import Experiment, add_default_options
from longspan.arena.finished_run import check_registered
from longspan.arena.paths import RunPaths
from longspan.arena.run import train
from longspan.arena.run_state import data_mismatch
from longspan.config import Budget
from longspan.errors import DataError, RunError
from longspan.results import Result, load_result
from longspan.results.differences import differing_values
from longspan.tasks import TASKS, build

_THREADS = re.compile(r"cpu, (\d+) threads")
_COMPARED = ("device", "git_commit", "backend_used", "dtype", "parallelism", "world_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rerun:
    """A record, and the same run made again.

    Attributes:
        before: the record.
        after: the new result.
        num_answers: test examples whose per-example scores the record holds; None: it holds none.
        num_different: answers that differ; None: not recorded.
        first_different_step: first evaluation at which the learning curves differ; None: equal.
        environment: differences of versions, device, commit, source files and the code of earlier
            parts, by name.
    """

    before: Result
    after: Result
    num_answers: int | None
    num_different: int | None
    first_different_step: int | None
    environment: dict[str, tuple[Any, Any]]

    @property
    def is_equal(self) -> bool:
        """True if the test score and all recorded answers are equal."""
        return not self.num_different and self.before.score() == self.after.score()


def rerun(record: Path, paths: RunPaths, callback: GridCallback | None = None) -> Rerun:
    """Run a record again on the CPU, in a temporary folder, and compare it.

    A budget is not measured again: the run has the steps and sizes that it gave the record.

    Args:
        record: record of a finished run.
        paths: folders of the data; runs are made elsewhere, and its device is ignored.
        callback: receives the events of the run.

    Raises:
        UnknownNameError: the mechanism, the task or an option is not registered here.
        DataError: the record is invalid or has no test score, or its data is absent or differs.
        RunError: the run failed.
    """
    before, callback = load_result(record), callback or GridCallback()
    if "test" not in before.scores:
        raise DataError(f"{record.name} has no score on test to compare; name a finished run")
    check_registered(record, before)
    experiment = _experiment(before, _runs_folder(record, before))
    task = build(before.task, before.config.task.options)
    task.open(paths.cache, paths.data, callback.on_build)
    if reason := data_mismatch(before, task.checksum, record):
        raise DataError(reason)
    callback.on_run_begin(1, 1, experiment)
    with tempfile.TemporaryDirectory(prefix="longspan-rerun-") as folder, _threads_of(before):
        temporary_paths = dataclasses.replace(paths, runs=Path(folder), device="cpu", parallel=None)
        after = train(experiment, task, temporary_paths, callback.for_run(1))
    callback.on_run_end(after)
    callback.close_run(1)
    return compare(before, after)


def _runs_folder(path: Path, record: Result) -> Path:
    """Return the folder of runs that holds a record; those of trials are deeper than others."""
    folders = path.absolute().parents
    of_task = (x for x in folders if x.parts[-2:] == (record.protocol, record.task))
    return next(of_task, folders[0]).parent.parent


def _experiment(record: Result, runs: Path) -> Experiment:
    """Return the experiment of a record in a folder of runs, with its budget resolved as it was."""
    version, recorded = TASKS[record.task].info.version, record.config.task.version
    if version != recorded:
        raise RunError(
            f"the record has version {recorded} of task {record.task}, expected {version}; run it "
            f"with longspan {record.versions.get('longspan')}, commit {record.git_commit}"
        )
    config = record.config
    if record.resolved_budget is not None:
        config = dataclasses.replace(record.effective_config, budget=Budget())
    return Experiment(
        protocol=record.protocol,
        config=add_default_options(config),
        seed=record.seed,
        overrides=record.overrides,
        # A run that it started from is below the folder, a given checkpoint has a whole path.
        checkpoint=runs / record.start.source if record.start else None,
    )


@contextlib.contextmanager
def _threads_of(record: Result) -> Iterator[None]:
    """Use as many threads as a run on the CPU had: their number decides how sums are rounded."""
    threads, match = torch.get_num_threads(), _THREADS.fullmatch(record.device)
    torch.set_num_threads(int(match[1]) if match else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compare(before: Result, after: Result) -> Rerun:
    """Compare two results of one experiment, example by example."""
    num_answers, num_different = None, None
    if before.example_scores is not None and after.example_scores is not None:
        one, two = before.example_scores.unpack(), after.example_scores.unpack()
        num_answers = len(one)
        same_shape = one.shape == two.shape
        num_different = int((one != two).any(1).sum()) if same_shape else num_answers
    differing = differing_values(_describe_environment(before), _describe_environment(after))
    # Files that were not recorded do not differ.
    ignored = (after.source_files or {}) if before.source_files is None else {}
    return Rerun(
        before=before,
        after=after,
        num_answers=num_answers,
        num_different=num_different,
        first_different_step=_first_different_step(before, after),
        environment={name: x for name, x in differing.items() if name not in ignored},
    )


def _first_different_step(before: Result, after: Result) -> int | None:
    curves = [
        {x.step: (x.train_loss, x.validation_loss) for x in record.curve}
        for record in (before, after)
    ]
    steps = sorted(set(curves[0]) | set(curves[1]))
    return next((step for step in steps if curves[0].get(step) != curves[1].get(step)), None)


def _describe_environment(record: Result) -> dict[str, Any]:
    return {
        **{name: getattr(record, name) for name in _COMPARED},
        "start": None if record.start is None else record.start.sha256,
        "earlier_code": record.earlier_names or None,
        **record.versions,
        **{part: str(source) for part, source in (record.source_files or {}).items()},
    }
