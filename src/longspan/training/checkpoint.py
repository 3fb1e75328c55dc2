"""Checkpoints that survive a kill at any moment, without pickle.

A checkpoint is a folder `step-000500/` (model files, `optimizer.safetensors`, `state.json`), the
best model so far a folder `best-000400/`, whose step the state names. A folder gets such a name
once it is complete, and loses it before it is removed. A finished run has its best model alone.

Every folder holds the checksums of its files, which are compared before anything is loaded. The
checkpoint before the last one is kept, and a run whose last one is damaged resumes from it.

Files are the same whether one process trains or several: those put their tensors together and the
main process writes, so a run may resume with another number of processes.
"""

import dataclasses
import functools
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from longspan.errors import DataError, RunError
from longspan.files import WRITE_REMEDY, check_file, flush_to_disk, read_json, write_json
from longspan.training.checkpoint_files import CHECKSUMS, verify_checksums, write_checksums
from longspan.training.checkpoint_names import (
    best_name,
    find_best,
    find_steps,
    saved_step,
    step_name,
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
        # Names of the checkpoint that this object has saved or found, and of its best model.
        self._resumable: list[str] | None = None

    def exists(self) -> bool:
        """Return whether there is a checkpoint to resume from.

        Raises:
            RunError: not all processes see it.
        """
        action = f"see the checkpoints in {self.folder}; share the folder of runs"
        return self.group.check_same(saved_step(self.folder) is not None, action)

    def best(self) -> Path | None:
        """Return the folder of the best model so far, or None.

        Raises:
            DataError: the model is damaged.
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

    def save_best(self, model: PreTrainedModel, step: int) -> None:
        """Save the best model so far; the progress of the next `save` has its step."""
        write = functools.partial(_save_model, model, gather_weights(model, self.group))
        self.group.run_on_main(lambda: self._write(best_name(step), write))

    def save(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        extra_tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Save everything that exact resumption needs, then remove older checkpoints but one.

        `extra_tensors` are those that the caller needs, equal in all processes.
        """
        saved = _names(step_name(progress.step), progress.best_step)
        weights = gather_weights(model, self.group)
        tensors = gather_tensors(flatten_optimizer_state(optimizer), self.group)
        tensors |= gather_random_state(self.group) | (extra_tensors or {})

        def write(folder: Path) -> None:
            _save_model(model, weights, folder)
            save_file(tensors, folder / OPTIMIZER)
            write_json(folder / STATE, dataclasses.asdict(progress))

        def replace() -> None:
            self._write(saved[0], write)
            self._keep({*saved, *(self._resumable or ())})

        self.group.run_on_main(replace)
        self._resumable = saved

    def load(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        restore_further: Callable[[Tensors], None] | None = None,
    ) -> Progress:
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
    ) -> Progress:
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
        return self._read_progress(folder)

    def last(self) -> Path:
        """Return the folder of the checkpoint that `load` would restore, which must exist.

        Raises:
            RunError: it is damaged.
        """
        if self._resumable is None:
            self._resumable = self.group.run_on_main(self._newest_intact)
        return self.folder / self._resumable[0]

    def peek(self) -> Progress:
        """Return the progress of the checkpoint that `load` would restore, which must exist.

        Raises:
            RunError: it is damaged.
        """
        return self._read_progress(self.last())

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
        self._keep([best.name])

    def keep_only_best(self) -> None:
        """Remove everything but the selected model, as a finished run needs no resumption."""
        if (best := find_best(self.folder)) is not None:
            self._keep([best.name])

    def tidy(self) -> None:
        """Remove the parts of a killed save or removal."""
        self.group.run_on_main(self._remove_parts)

    def _keep(self, names: Collection[str]) -> None:
        """Remove all checkpoints and best models but these, the last checkpoint at the end."""
        for folder in (*self.folder.glob("best-*"), *find_steps(self.folder)):
            if folder.name not in names:
                self._remove(folder)
        self._remove_parts()

    def _remove(self, folder: Path) -> None:
        """Remove a folder, which does not keep its name until its last file is removed."""
        if folder.exists():
            hidden = folder.rename(folder.with_name(f".{folder.name}.removed.part"))
            shutil.rmtree(hidden, ignore_errors=True)

    def _remove_parts(self) -> None:
        for part in self.folder.glob(".*.part"):
            shutil.rmtree(part, ignore_errors=True)

    def _intact_best(self) -> Path | None:
        if (folder := find_best(self.folder)) is not None:
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

    def _newest_intact(self) -> list[str]:
        """Return the names of the last checkpoint, or of one before it if the last is damaged.

        Raises:
            RunError: all are damaged.
        """
        errors: list[DataError] = []
        steps = find_steps(self.folder)
        for folder in reversed(steps):
            try:
                verify_checksums(folder)
                names = _names(folder.name, read_json(folder / STATE)["best_step"])
                for best in names[1:]:
                    verify_checksums(self.folder / best)
            except DataError as error:
                errors.append(error)
                continue
            for damage in errors:
                logger.warning("%s; resuming from %s", damage, folder)
            return names
        raise _damaged(steps[-1], self.folder, errors[0])

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
            self._remove(final)
            temporary.rename(final)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"cannot write the checkpoint {final} ({error}); {WRITE_REMEDY}"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _names(name: str, best_step: int | None) -> list[str]:
    """Return the names of a checkpoint and of the best model at its time, if there is one."""
    return [name] if best_step is None else [name, best_name(best_step)]


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
