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
from longspan.arena.lock import held
from longspan.arena.places import Places
from longspan.arena.resume import checked, claim
from longspan.errors import BusyError, LongspanError, NoMemoryError, RunError
from longspan.files import WRITE_REMEDY, remove_temporaries
from longspan.results import Result, write_record
from longspan.tasks import Task
from longspan.training import Watcher
from longspan.training.config import POINTER

if TYPE_CHECKING:
    from longspan.training.processes import Processes

__all__ = ["Places", "alike", "finish", "on_main", "run", "save", "several", "trained"]

# What torch says, in errors without a class of their own, when there is no memory left.
NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED")
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
T = TypeVar("T")
ENDING = 30.0  # seconds that a process may take to let go of a run that was taken from it


def run(
    experiment: Experiment, task: Task, places: Places, watcher: Watcher | None = None
) -> Result:
    """Run an experiment on its open task, or load its result if it has already ended.

    A run that was interrupted continues from its last checkpoint. Several processes, when a
    launcher has started them, all call it; the main one alone writes. A trial of a grid
    (`places.of_trials()`) is scored on validation alone.

    Raises:
        BusyError: another process is at it.
        DivergedError: the loss is not finite.
        NoMemoryError: the run needs more memory than there is.
        RunError: the folder belongs to another configuration, or the run cannot go on.
    """
    with contextlib.ExitStack() as locks:
        result = on_main(places, lambda: _begun(experiment, task, places, locks))
        if result is None:
            ended = result = trained(experiment, task, places, watcher)
            on_main(places, lambda: save(experiment, ended, places))
    return result


def several() -> bool:
    """Whether torchrun or `accelerate launch` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def on_main(places: Places, do: Callable[[], T]) -> T:
    """Let the main one of several processes do something while the others wait."""
    return _processes(places).on_main(do) if several() else do()


def alike(places: Places, flag: bool, what: str) -> bool:
    """The flag, which all of several processes must find the same; `what` they do where it is true.

    Raises:
        RunError: they do not.
    """
    return _processes(places).alike(flag, what) if several() else flag


def trained(
    experiment: Experiment, task: Task, places: Places, watcher: Watcher | None = None
) -> Result:
    """Train and score an experiment on its open task; checkpoints are written, no record.

    Raises:
        RunError: as `run` does.
    """
    from longspan.arena.meeting import meet
    from longspan.arena.model import make_model
    from longspan.arena.record import result_of
    from longspan.training import fit

    work = places.work(experiment)
    with contextlib.ExitStack() as locks, _told(experiment, work), _processes(places).bound():
        on_main(places, lambda: _claimed(experiment, task, work, locks))
        met = on_main(places, lambda: meet(experiment, task, work, places.device))
        if watcher is not None:
            watcher.begins(met.experiment.train.steps)
        model = make_model(met.experiment, task)
        outcome = fit(
            model,
            task,
            met.experiment.train,
            seed=experiment.seed,
            folder=work,
            device=places.device,
            parallel=places.parallel,
            watcher=watcher,
            test=not places.trials,
        )
        result = result_of(met.experiment, task, model, outcome)
        # The name is that of the experiment as it was asked for.
        return dataclasses.replace(result, config_hash=experiment.hash, budget=met.record)


def _processes(places: Places) -> "Processes":
    from longspan.training.processes import joined

    return joined(places.device, places.parallel)


def _begun(
    experiment: Experiment, task: Task, places: Places, locks: contextlib.ExitStack
) -> Result | None:
    """The record of a run that has ended; None, its lock held, for one that has not."""
    path, work = places.record(experiment), places.work(experiment)
    if path.exists():
        result = checked(experiment, task.checksum, path)
        finish(work)
        return result
    locks.enter_context(held(work, "run"))
    # Another process may have ended it in the meantime.
    return checked(experiment, task.checksum, path) if path.exists() else None


def _claimed(experiment: Experiment, task: Task, work: Path, locks: contextlib.ExitStack) -> None:
    """Hold the work folder, and see that it is this experiment's."""
    locks.enter_context(held(work, "train", patience=ENDING))
    claim(experiment, task, work)


def save(experiment: Experiment, result: Result, places: Places) -> None:
    """Write the record of a run; what it no longer needs, and a failure noted earlier, goes."""
    path, work = places.record(experiment), places.work(experiment)
    remove_temporaries(path)
    write_record(result, path)
    places.failure(experiment).unlink(missing_ok=True)
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
    with contextlib.suppress(BusyError), held(work, "run"):
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
            raise RunError(f"cannot write below {work}: {reason}; {WRITE_REMEDY}") from error
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
