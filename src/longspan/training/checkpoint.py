"""Checkpoints that survive a kill at any moment, without pickle.

A checkpoint is a folder `step-000500/` (model files, `optimizer.safetensors`, `state.json`) that
counts only once `last.json` names it; `last.json` is replaced atomically, and what it no longer
names is removed afterwards. The best model so far is a folder `best-000400/` of the same kind.

Every folder holds the checksums of its files, which are compared before anything is loaded. The
checkpoint before the last one is kept, and a run whose last one is damaged resumes from it.

Files are the same whether one process trains or several: those put their tensors together and the
main process writes, so a run may resume with another number of processes.
"""

import dataclasses
import functools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from longspan.errors import DataError, RunError
from longspan.files import WRITE_REMEDY, check_file, flush_to_disk, read_json, write_json
from longspan.temporaries import remove_temporaries
from longspan.training.checkpoint_files import (
    CHECKSUMS,
    is_intact,
    verify_checksums,
    write_checksums,
)
from longspan.training.checkpoint_pointer import (
    POINTER,
    Pointer,
    SavedNames,
    read_pointer,
    write_pointer,
)
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup
from longspan.training.distributed.random_state import gather_random_state, restore_random_state
from longspan.training.distributed.sharding import (
    flatten_optimizer_state,
    gather_tensors,
    gather_weights,
    load_optimizer_state,
    load_weights,
)
from longspan.training.progress import Progress

logger = logging.getLogger(__name__)

STATE, OPTIMIZER, WEIGHTS = "state.json", "optimizer.safetensors", "model.safetensors"
# Errors of malformed files. ValueError: a file of longspan (DataError), or names that are not
# numbers. The rest: content of other types than expected.
UNREADABLE = (
    *(OSError, SafetensorError, RuntimeError, ValueError),
    *(LookupError, AttributeError, TypeError),
)
Tensors = dict[str, torch.Tensor]


class Checkpoints:
    """Checkpoints of one run, in one folder that all its processes share."""

    def __init__(self, folder: Path, group: ProcessGroup = SINGLE_PROCESS):
        """Use a folder, which the first save creates."""
        self.folder, self.group = folder, group
        self._resumable: SavedNames | None = None  # that this object has saved or found

    def exists(self) -> bool:
        """Return whether there is a checkpoint to resume from.

        Raises:
            RunError: the pointer is damaged, or not all processes see it.
        """
        path = self.folder / POINTER
        seen = self.group.check_same(path.exists(), f"see {path}; share the folder of runs")
        return seen and self._pointer().last is not None

    def best(self) -> Path | None:
        """Return the folder of the best model so far, or None.

        Raises:
            DataError: the pointer or the model is damaged.
        """
        return self.group.run_on_main(self._intact_best)

    def load_best(self, model: PreTrainedModel) -> Path:
        """Load the weights of the best model so far into `model`; return their folder.

        Raises:
            RunError: there is none, or it is damaged.
        """
        folder = self.group.run_on_main(self._required_best)
        _load_weights(model, folder, self.folder)
        return folder

    def save_best(self, model: PreTrainedModel, step: int) -> str:
        """Save the best model so far and return its name; the next `save` points to it."""
        name, weights = _best_name(step), gather_weights(model, self.group)
        write = functools.partial(_save_model, model, weights)
        self.group.run_on_main(lambda: self._write(name, write))
        return name

    def save(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        best: str | None,
        extra_tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Save everything that exact resumption needs, then remove older checkpoints but one.

        `extra_tensors` are those that the caller needs, equal in all processes.
        """
        saved = SavedNames(last=f"step-{progress.step:06d}", best=best)
        weights = gather_weights(model, self.group)
        tensors = gather_tensors(flatten_optimizer_state(optimizer), self.group)
        tensors |= gather_random_state(self.group) | (extra_tensors or {})

        def write(folder: Path) -> None:
            _save_model(model, weights, folder)
            save_file(tensors, folder / OPTIMIZER)
            write_json(folder / STATE, dataclasses.asdict(progress))

        def replace() -> None:
            try:
                self._write(str(saved.last), write)
                write_pointer(self.folder, Pointer(saved, self._resumable))
            finally:
                self._tidy()

        self.group.run_on_main(replace)
        self._resumable = saved

    def load(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        restore_further: Callable[[Tensors], None] | None = None,
    ) -> tuple[Progress, str | None]:
        """Restore model, optimizer and random state in place.

        Where the last checkpoint or the best model is damaged, those before them are loaded.

        Args:
            model: model to change.
            optimizer: its optimizer.
            restore_further: removes the further tensors of `save` from those that it is given.

        Raises:
            RunError: both checkpoints are damaged; the message says how to start over.
        """
        _load_weights(model, self.last(), self.folder)
        return self.load_state(optimizer, restore_further)

    def load_state(
        self,
        optimizer: torch.optim.Optimizer,
        restore_further: Callable[[Tensors], None] | None = None,
    ) -> tuple[Progress, str | None]:
        """Restore the optimizer and the random state in place; see `load`."""
        folder = self.last()
        try:
            tensors = load_file(check_file(folder / OPTIMIZER))
            restore_random_state(tensors, self.group)
            if restore_further is not None:
                restore_further(tensors)
            load_optimizer_state(optimizer, tensors)
        except UNREADABLE as error:
            raise _damaged(folder, self.folder, error) from error
        return self._read_progress(folder), self._find_resumable().best

    def last(self) -> Path:
        """Return the folder of the checkpoint that `load` would restore, which must exist.

        Raises:
            RunError: it is damaged.
        """
        return self.folder / str(self._find_resumable().last)

    def peek(self) -> Progress:
        """Return the progress of the checkpoint that `load` would restore, which must exist.

        Raises:
            RunError: it is damaged.
        """
        return self._read_progress(self.last())

    def _find_resumable(self) -> SavedNames:
        """Return the checkpoint that was saved or loaded last, or else the newest intact one."""
        if self._resumable is None:
            self._resumable = self.group.run_on_main(self._newest_intact)
        return self._resumable

    def _read_progress(self, folder: Path) -> Progress:
        try:
            state = read_json(folder / STATE)
            names = {field.name for field in dataclasses.fields(Progress)}
            if state.keys() != names:
                raise ValueError(f"{STATE} has unexpected fields")
            return Progress(**state)
        except UNREADABLE as error:
            raise _damaged(folder, self.folder, error) from error

    def adopt(self, other: "Checkpoints") -> None:
        """Copy the best model of another folder and remove all own checkpoints.

        Raises:
            DataError: the other model is damaged.
            RunError: the other folder has none, or this one cannot be written.
        """
        best = other.best()
        if best is None:
            raise RunError(f"{other.folder} holds no saved model")
        self._write(best.name, lambda part: shutil.copytree(best, part, dirs_exist_ok=True))
        write_pointer(self.folder, Pointer(SavedNames(last=None, best=best.name)))
        self.tidy()

    def keep_only_best(self) -> None:
        """Remove everything but the selected model, as a finished run needs no resumption."""
        if self.exists():
            finished = SavedNames(last=None, best=self._pointer().best)
            write_pointer(self.folder, Pointer(finished))
        self.tidy()

    def tidy(self) -> None:
        """Remove what the pointer does not name: older checkpoints and parts of a killed save.

        Where the pointer is missing and a checkpoint is intact, the pointer is written again first.
        """
        self.group.run_on_main(self._tidy)

    def _tidy(self) -> None:
        path = self.folder / POINTER
        remove_temporaries(path)
        names = self._read().names if path.exists() or self._is_resumable() else set()
        if not all((self.folder / name).is_dir() for name in names):
            return  # the files may be all that is left of the run
        for pattern in ("step-*", "best-*", ".*.part"):
            for folder in self.folder.glob(pattern):
                if folder.name not in names:
                    shutil.rmtree(folder, ignore_errors=True)

    def _pointer(self) -> Pointer:
        """Return the names of the current checkpoints, equal in all processes."""
        return self.group.run_on_main(self._read)

    def _read(self) -> Pointer:
        """Read the pointer; write a damaged or missing one again.

        Raises:
            RunError: it is damaged, and the folders do not determine it.
        """
        try:
            return read_pointer(self.folder)
        except DataError as error:
            if (recovered := self._recover()) is None:
                raise _damaged(self.folder / POINTER, self.folder, error) from error
            logger.warning("%s; written again from the folders beside it", error)
            write_pointer(self.folder, recovered)
            return recovered

    def _recover(self) -> Pointer | None:
        """Return the pointer that the intact folders determine, or None."""
        best = {path.name for path in self.folder.glob("best-*") if is_intact(path)}
        if not any(self.folder.glob("step-*")) and len(best) == 1:
            return Pointer(SavedNames(last=None, best=best.pop()))
        steps = [path for path in self.folder.glob("step-*") if is_intact(path)]
        saved = map(_names_of, sorted(steps, key=_step_of, reverse=True))
        complete = [one for one in saved if one.names <= best | {one.last}]
        if not complete:
            return None
        return Pointer(complete[0], complete[1] if len(complete) > 1 else None)

    def _is_resumable(self) -> bool:
        """Return whether a checkpoint is intact, whatever the pointer says."""
        recovered = self._recover()
        return recovered is not None and recovered.last is not None

    def _intact_best(self) -> Path | None:
        if not (self.folder / POINTER).exists():
            return None
        try:
            pointer = read_pointer(self.folder)
        except DataError:
            if (recovered := self._recover()) is None:
                raise
            pointer = recovered
        folder = self.folder / str(pointer.best)
        if not folder.is_dir():
            return None
        verify_checksums(folder)
        return folder

    def _required_best(self) -> Path:
        try:
            folder = self._intact_best()
        except DataError as error:
            raise _damaged(self.folder, self.folder, error) from error
        if folder is None:
            raise RunError(f"{self.folder} holds no saved model; remove it to start the run over")
        return folder

    def _newest_intact(self) -> SavedNames:
        """Return the last checkpoint, or the one before it if the last one is damaged.

        Raises:
            RunError: both are damaged.
        """
        pointer, errors = self._read(), []
        for saved in filter(None, (pointer.current, pointer.previous)):
            try:
                for name in sorted(saved.names):
                    verify_checksums(self.folder / name)
            except DataError as error:
                errors.append(error)
                continue
            for damage in errors:
                logger.warning("%s; resuming from %s", damage, self.folder / str(saved.last))
            return saved
        raise _damaged(self.folder / str(pointer.last), self.folder, errors[0])

    def _write(self, name: str, write) -> None:
        """Write a folder atomically; a failure leaves nothing behind."""
        temporary, final = self.folder / f".{name}.part", self.folder / name
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            write(temporary)
            if not (temporary / CHECKSUMS).exists():  # a copy has those of its original
                write_checksums(temporary)
            for file in temporary.iterdir():
                flush_to_disk(file)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"cannot write the checkpoint {final} ({error}); {WRITE_REMEDY}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _names_of(folder: Path) -> SavedNames:
    """Return the names of an intact checkpoint and of the best model at its time."""
    step = read_json(folder / STATE)["best_step"]
    return SavedNames(last=folder.name, best=None if step is None else _best_name(step))


def _best_name(step: int) -> str:
    return f"best-{step:06d}"


def _damaged(folder: Path, run: Path, error: Exception) -> RunError:
    reason = f"the checkpoint {folder} cannot be read ({error})"
    return RunError(f"{reason}; remove {run} to start the run over")


def _save_model(model: PreTrainedModel, weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Write the files of `save_pretrained` for one shard, without its progress bar."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _load_weights(model: PreTrainedModel, folder: Path, run: Path) -> None:
    try:
        load_weights(model, load_file(check_file(folder / WEIGHTS)))
    except UNREADABLE as error:
        raise _damaged(folder, run, error) from error
