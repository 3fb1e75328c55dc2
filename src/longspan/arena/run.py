"""One run: claim its folder, build the model, train, score, write the record.

What trains (torch's compilers, transformers, accelerate) is imported when there is something to
train: a grid that has ended is told at once.
"""

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from longspan.arena.experiment import Experiment
from longspan.arena.lock import hold_lock
from longspan.arena.paths import RunPaths
from longspan.arena.resume import checked, claim
from longspan.errors import BusyError, LongspanError, NoMemoryError, RunError
from longspan.files import REMEDY, sweep
from longspan.results import Result, write_record
from longspan.tasks import Task
from longspan.training import Callback
from longspan.training.config import POINTER

if TYPE_CHECKING:
    from longspan.training.distributed.group import ProcessGroup

__all__ = ["RunPaths", "check_same", "finish", "run", "run_on_main", "save", "several", "trained"]

# What torch says, in errors without a class of their own, when there is no memory left.
NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
T = TypeVar("T")
ENDING = 30.0  # seconds that a process may take to let go of a run that was taken from it


def run(
    experiment: Experiment, task: Task, paths: RunPaths, callback: Callback | None = None
) -> Result:
    """Run an experiment on its open task, or load its result if it has already ended.

    A run that was interrupted continues from its last checkpoint. Several processes, when a
    launcher has started them, all call it; the main one alone writes. A trial of a grid
    (`paths.for_trials()`) is scored on validation alone.

    Raises:
        BusyError: another process is at it.
        DivergedError: the loss is not finite.
        NoMemoryError: the run needs more memory than there is.
        RunError: the folder belongs to another configuration, or the run cannot go on.
    """
    with contextlib.ExitStack() as locks:
        result = run_on_main(paths, lambda: _begun(experiment, task, paths, locks))
        if result is None:
            ended = result = trained(experiment, task, paths, callback)
            run_on_main(paths, lambda: save(experiment, ended, paths))
    return result


def several() -> bool:
    """Whether torchrun or `accelerate launch` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def run_on_main(paths: RunPaths, do: Callable[[], T]) -> T:
    """Let the main one of several processes do something while the others wait."""
    return _process_group(paths).run_on_main(do) if several() else do()


def check_same(paths: RunPaths, flag: bool, what: str) -> bool:
    """The flag, which all of several processes must find the same; `what` they do where it is true.

    Raises:
        RunError: they do not.
    """
    return _process_group(paths).check_same(flag, what) if several() else flag


def trained(
    experiment: Experiment, task: Task, paths: RunPaths, callback: Callback | None = None
) -> Result:
    """Train and score an experiment on its open task; checkpoints are written, no record.

    Raises:
        RunError: as `run` does.
    """
    from longspan.arena.meeting import meet
    from longspan.arena.model import make_model
    from longspan.arena.record import result_of
    from longspan.training import fit

    work = paths.run_dir(experiment)
    with (
        contextlib.ExitStack() as locks,
        _told(experiment, work),
        _process_group(paths).exit_on_local_error(),
    ):
        run_on_main(paths, lambda: _claimed(experiment, task, work, locks))
        met = run_on_main(paths, lambda: meet(experiment, task, work, paths.device))
        if callback is not None:
            callback.on_train_begin(met.experiment.train.steps)
        model = make_model(met.experiment, task)
        outcome = fit(
            model,
            task,
            met.experiment.train,
            seed=experiment.seed,
            folder=work,
            device=paths.device,
            parallel=paths.parallel,
            callback=callback,
            test=not paths.is_trial,
        )
        result = result_of(met.experiment, task, model, outcome)
        # The name is that of the experiment as it was asked for.
        return dataclasses.replace(result, config_hash=experiment.hash, budget=met.record)


def _process_group(paths: RunPaths) -> "ProcessGroup":
    from longspan.training.distributed.group import current_group

    return current_group(paths.device, paths.parallel)


def _begun(
    experiment: Experiment, task: Task, paths: RunPaths, locks: contextlib.ExitStack
) -> Result | None:
    """The record of a run that has ended; None, its lock held, for one that has not."""
    path, work = paths.record_file(experiment), paths.run_dir(experiment)
    if path.exists():
        result = checked(experiment, task.checksum, path)
        finish(work)
        return result
    locks.enter_context(hold_lock(work, "run"))
    # Another process may have ended it in the meantime.
    return checked(experiment, task.checksum, path) if path.exists() else None


def _claimed(experiment: Experiment, task: Task, work: Path, locks: contextlib.ExitStack) -> None:
    """Hold the work folder, and see that it is this experiment's."""
    locks.enter_context(hold_lock(work, "train", timeout=ENDING))
    claim(experiment, task, work)


def save(experiment: Experiment, result: Result, paths: RunPaths) -> None:
    """Write the record of a run; what it no longer needs, and a failure noted earlier, goes."""
    path, work = paths.record_file(experiment), paths.run_dir(experiment)
    sweep(path)
    write_record(result, path)
    paths.failure_file(experiment).unlink(missing_ok=True)
    # On another machine it has its checkpoints there.
    if (work / POINTER).exists():
        _keep_only_best(work)


def finish(work: Path) -> None:
    """Keep of a run that has its record the selected model alone.

    That is done when it ends; its process may have been killed between the two.
    """
    pointer = work / POINTER
    left = [*work.glob("step-*"), *work.glob(".*"), *list(work.glob("best-*"))[1:]]
    if not pointer.exists() or ('"last": null' in pointer.read_text("utf-8") and not left):
        return
    with contextlib.suppress(BusyError), hold_lock(work, "run"):
        _keep_only_best(work)


def _keep_only_best(work: Path) -> None:
    from longspan.training.checkpoint import Checkpoints

    Checkpoints(work).keep_only_best()


@contextlib.contextmanager
def _told(experiment: Experiment, work: Path) -> Iterator[None]:
    """Errors of a machine that has too little, in words."""
    try:
        yield
    except LongspanError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if _is_of_memory(error):
            raise NoMemoryError(
                f"{experiment.name} needs more memory than the device has; raise train.accumulate "
                "or set train.gradient_checkpointing=true"
            ) from error
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            reason = error.strerror or error
            raise RunError(f"cannot write below {work}: {reason}; {REMEDY}") from error
        raise


def _is_of_memory(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch.OutOfMemoryError is a RuntimeError
    said = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(words in said for words in NO_MEMORY)
    )
