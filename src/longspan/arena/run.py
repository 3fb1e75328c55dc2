"""One run: lock and claim its directory, build the model, train, score, write the record.

Training code (torch's compilers, transformers, accelerate) is imported only for unfinished runs,
so a finished grid returns at once.
"""

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import (
    FinishedRuns,
    claim,
    hold_lock,
    load_checked,
    record_start,
    recorded_start,
)
from longspan.errors import (
    BusyError,
    LongspanError,
    NoMemoryError,
    RunError,
    SourceFailedError,
)
from longspan.files import WRITE_REMEDY
from longspan.launch import launched_processes
from longspan.results import CodeVersion, Result, load_failure, write_record
from longspan.space import is_out_of_memory
from longspan.tasks import Task, build
from longspan.temporaries import remove_temporaries
from longspan.training import Callback
from longspan.training.checkpoint_names import find_best, saved_step

if TYPE_CHECKING:
    from longspan.arena.saved_checkpoint import SavedCheckpoint
    from longspan.models import LongspanPreTrainedModel
    from longspan.training.distributed.group import ProcessGroup

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
_RELEASE_SECONDS = 30.0  # time for a process to release the lock of a run that was taken from it
T = TypeVar("T")


def run(
    experiment: Experiment, task: Task, paths: RunPaths, callback: Callback | None = None
) -> Result:
    """Run an experiment on its open task, or load its result if it is finished.

    An interrupted run resumes from its last checkpoint. Where a launcher has started several
    processes, all of them call this function and the main process alone writes. A trial of a
    search (`paths.for_trials()`) is scored on validation alone.

    Raises:
        BusyError: another process holds the run's lock.
        DivergedError: the loss is not finite.
        NoMemoryError: the run needs more memory than the device has.
        RunError: the directory belongs to another configuration, or the run cannot continue.
    """
    with contextlib.ExitStack() as locks:
        result = run_on_main(paths, lambda: _load_or_lock(experiment, task, paths, locks))
        if result is None:
            trained = result = train(experiment, task, paths, callback)
            run_on_main(paths, lambda: save(experiment, trained, paths))
    return result


def is_distributed() -> bool:
    """Return whether torchrun or `accelerate launch` started this process as one of several."""
    return launched_processes() > 1


def run_on_main(paths: RunPaths, function: Callable[[], T]) -> T:
    """Call a function in the main process; all processes return its result."""
    return _process_group(paths).run_on_main(function) if is_distributed() else function()


def check_same(paths: RunPaths, flag: bool, action: str) -> bool:
    """Return a flag that must be equal in all processes.

    Args:
        paths: paths of the run.
        flag: value in this process.
        action: what a process does whose flag is True, for the message.

    Raises:
        RunError: the processes differ.
    """
    return _process_group(paths).check_same(flag, action) if is_distributed() else flag


def train(
    experiment: Experiment, task: Task, paths: RunPaths, callback: Callback | None = None
) -> Result:
    """Train and score an experiment on its open task; write checkpoints, but no record.

    Raises:
        RunError: see `run`.
    """
    from longspan.arena.budget_resolution import apply_budget, resolve_budget
    from longspan.arena.model import TRAINING_COPIES, check_weights
    from longspan.arena.record import make_result
    from longspan.arena.stages import make_stages
    from longspan.arena.start import find_start
    from longspan.training import fit_stages

    run_dir = paths.run_dir(experiment)
    with (
        contextlib.ExitStack() as locks,
        _translate_errors(experiment, run_dir),
        _process_group(paths).exit_on_local_error(),
    ):
        earlier_code = run_on_main(paths, lambda: _claim(experiment, task, paths, locks))
        _train_source(experiment, paths, callback)
        start = run_on_main(paths, lambda: find_start(experiment, task, paths))
        resolved = run_on_main(
            paths, lambda: resolve_budget(experiment, task, run_dir, paths.device)
        )
        effective = apply_budget(experiment, resolved)
        if callback is not None:
            callback.on_train_begin(effective.config.training.steps)
        if paths.parallel != "fsdp":  # which shards gradients and moments
            check_weights(effective.config, task, TRAINING_COPIES, paths.device_type)
        outcome = fit_stages(
            make_stages(effective, task, lambda x: _load_start(x, start, experiment, paths)),
            seed=experiment.seed,
            folder=run_dir,
            device=paths.device,
            parallel=paths.parallel,
            callback=callback,
            test=not paths.is_trial and task.size("test") > 0,
        )
        started = run_on_main(paths, lambda: recorded_start(run_dir))
        result = make_result(experiment, task, outcome, resolved, started)
        return dataclasses.replace(result, earlier_code=earlier_code)


def _train_source(experiment: Experiment, paths: RunPaths, callback: Callback | None) -> None:
    """Train the run that an experiment starts from, unless it is finished or needed no more.

    Raises:
        BusyError: another process trains it now.
        RunError: it has another recipe or other data than an earlier run of its command.
        SourceFailedError: it has failed.
    """
    source, paths_of_source = experiment.source, paths.for_sources()
    if source is None or saved_step(paths.run_dir(experiment)) is not None:
        return
    about = f"{experiment.name} on {experiment.task} starts from {source.name} on {source.task}"
    failure = paths_of_source.failure_file(source)
    if run_on_main(paths, lambda: FinishedRuns(paths_of_source).has(source)):
        return
    if run_on_main(paths, failure.exists):
        raise SourceFailedError(f"{about}, which failed: {load_failure(failure).reason}")
    task = build(source.task, source.config.task.options)
    try:
        task.open(paths.cache, paths.data)
        run(source, task, paths_of_source, callback)
    except BusyError:
        raise
    except LongspanError as error:
        raise SourceFailedError(f"{about}, which failed: {error}") from error


def _load_start(
    model: "LongspanPreTrainedModel",
    start: "SavedCheckpoint | None",
    experiment: Experiment,
    paths: RunPaths,
) -> None:
    """Load the checkpoint that a run starts from into its model, and record it; None: nothing."""
    from longspan.arena.start import load_start

    if start is not None:
        record = load_start(model, start, experiment)
        run_on_main(paths, lambda: record_start(paths.run_dir(experiment), record))


def _process_group(paths: RunPaths) -> "ProcessGroup":
    from longspan.training.distributed.group import current_group

    return current_group(paths.device, paths.parallel)


def _load_or_lock(
    experiment: Experiment, task: Task, paths: RunPaths, locks: contextlib.ExitStack
) -> Result | None:
    """Return the record of a finished run; for another, acquire its lock and return None."""
    path, run_dir = paths.record_file(experiment), paths.run_dir(experiment)
    if path.exists():
        result = load_checked(experiment, task.checksum, path)
        clean_up(run_dir)
        return result
    locks.enter_context(hold_lock(run_dir, "run"))
    # Another process may have finished it in the meantime.
    return load_checked(experiment, task.checksum, path) if path.exists() else None


def _claim(
    experiment: Experiment, task: Task, paths: RunPaths, locks: contextlib.ExitStack
) -> list[CodeVersion]:
    """Lock the run directory and check that it belongs to the experiment; return earlier code."""
    run_dir = paths.run_dir(experiment)
    locks.enter_context(hold_lock(run_dir, "train", timeout=_RELEASE_SECONDS))
    state = claim(experiment, task, run_dir, accept_changes=paths.accept_changes)
    return state.earlier_code


def save(experiment: Experiment, result: Result, paths: RunPaths) -> None:
    """Write the record of a run; remove its resumption checkpoints and an earlier failure."""
    path, run_dir = paths.record_file(experiment), paths.run_dir(experiment)
    remove_temporaries(path)
    write_record(result, path)
    paths.failure_file(experiment).unlink(missing_ok=True)
    # A run on another machine has its checkpoints there.
    if find_best(run_dir) is not None:
        _keep_only_best(run_dir)


def clean_up(run_dir: Path) -> None:
    """Remove everything but the selected model of a finished run.

    `save` does so too; its process may have been killed in between.
    """
    left = [
        *(path for pattern in ("step-*", ".*", "run.json") for path in run_dir.glob(pattern)),
        *list(run_dir.glob("best-*"))[1:],
    ]
    with contextlib.suppress(BusyError):
        if left and find_best(run_dir) is not None:
            with hold_lock(run_dir, "run"):
                _keep_only_best(run_dir)


def _keep_only_best(run_dir: Path) -> None:
    from longspan.training.checkpoint import Checkpoints

    Checkpoints(run_dir).keep_only_best()


@contextlib.contextmanager
def _translate_errors(experiment: Experiment, run_dir: Path) -> Iterator[None]:
    """Raise errors of exhausted memory and unwritable disks with a remedy."""
    try:
        yield
    except LongspanError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if is_out_of_memory(error):
            raise NoMemoryError(
                f"{experiment.name} needs more memory than the device has; raise "
                "training.gradient_accumulation_steps or set training.gradient_checkpointing=true"
            ) from error
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            reason = error.strerror or error
            raise RunError(f"cannot write below {run_dir}: {reason}; {WRITE_REMEDY}") from error
        raise
