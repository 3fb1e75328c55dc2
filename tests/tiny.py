"""Tiny experiments, and processes to run and kill them in."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from longspan.arena import RunPaths, get, make_model, override
from longspan.tasks import build
from longspan.training import Callback, fit

# Modules that the command line imports lazily.
PRELOADED = (
    "longspan.arena.budget_resolution",
    "longspan.arena.console",
    "longspan.arena.record",
    "longspan.arena.finished_run",
    "longspan.cli",
    "longspan.report.output.page",
    "longspan.report.output.text",
    "longspan.training.loop",
    "torch.utils.tensorboard",
    "typer._adapters",
)
TASK = {
    "train": 200,
    "validation": 40,
    "test": 44,
    "min_length": 4,
    "max_length": 24,
    "max_depth": 3,
    "max_args": 4,
}
MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "classifier_hidden_size": 16,
}
TRAIN = {
    "steps": 12,
    "batch_size": 4,
    "warmup_steps": 2,
    "learning_rate": 0.01,
    "evaluate_every": 4,
    "checkpoint_every": 2,
    "eval_batch_size": 16,
}
# Changes of `train` that make a run on imported texts short.
SHORT_RUN = {
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.num_hidden_layers": 1,
    "training.steps": 4,
    "training.evaluate_every": 4,
    "training.warmup_steps": 0,
}
DIVERGING = {
    "training.learning_rate": 1e30,
    "training.max_grad_norm": None,
    "training.warmup_steps": 0,
}
# Environment of one of two processes.
LAUNCH = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
CHANGES = {
    f"{part}.{name}": value
    for part, values in (("task", TASK), ("model", MODEL), ("training", TRAIN))
    for name, value in values.items()
}


def experiment(mechanism="local", seed=0, changes=None):
    """Return a reduced ListOps experiment of the smoke protocol with further changes."""
    full_experiment = get("smoke").experiment("listops", mechanism, seed)
    return override(full_experiment, {**CHANGES, **(changes or {})})


def listops(cache):
    """Return the opened ListOps task."""
    task = build("listops", TASK)
    task.open(cache)
    return task


def paths(runs, cache):
    return RunPaths(runs=Path(runs), cache=Path(cache), device="cpu")


def train(experiment, task, folder, callback=None, *, device="cpu", model=None):
    """Train the model of an experiment in a folder, without a record; return the outcome."""
    model = model or make_model(experiment, task)
    where = {"folder": folder, "device": device, "callback": callback}
    return fit(model, task, experiment.config.training, seed=experiment.seed, **where)


class StopError(Exception):
    """Exception that ends a run inside this process."""


class StopAtStep(Callback):
    """Callback that ends the run at a step, before its checkpoint is saved."""

    def __init__(self, step, error=StopError):
        self.step, self.error = step, error

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            raise self.error


def rescore(record, split, paths):
    """Return the score of the selected model of a run on a split."""
    from longspan.arena.finished_run import evaluate_run

    return evaluate_run(record, split, paths)[0].score


def set_flags(part, values):
    """Return values of a part of the configuration as command line arguments."""
    return short_flags({f"{part}.{name}": value for name, value in values.items()})


def short_flags(changes):
    """Return changes as command line arguments, texts without quotes."""
    return [x for name, value in changes.items() for x in ("--set", f"{name}={value}")]


def run_commands(commands):
    """Run commands in this process, each to its end."""
    import longspan.cli

    with pytest.MonkeyPatch.context() as patch:
        for command in commands:
            patch.setattr(sys, "argv", ["longspan", *map(str, command)])
            with contextlib.suppress(SystemExit):
                longspan.cli.main()


def flags(changes=None):
    """Return the changes as command line arguments."""
    pairs = {**CHANGES, **(changes or {})}.items()
    return [part for name, x in pairs for part in ("--set", f"{name}={json.dumps(x)}")]


def place_flags(runs, cache):
    """Return the folders and the processor as command line arguments."""
    return ["--runs", str(runs), "--cache", str(cache), "--device", "cpu"]


def command(runs, cache, *more, changes=None):
    """Return command line arguments that train the tiny experiment."""
    train_flags = ["train", "local", "listops", "--protocol", "smoke"]
    return [*train_flags, *flags(changes), *place_flags(runs, cache), *more]


def arena_command(runs, cache, *more, mechanisms="local", changes=None):
    """Return command line arguments that train tiny experiments."""
    grid_flags = ["arena", "--protocol", "smoke", "--tasks", "listops", "--mechanisms", mechanisms]
    return [*grid_flags, *flags(changes), *place_flags(runs, cache), *more]


def restore_sigint():
    """Restore the default handler of SIGINT in a child process, for `preexec_fn`.

    A shell starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def server():
    """Return a multiprocessing context whose processes have preloaded all modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "tiny"])
    return context


def call_elsewhere(function, *arguments):
    """Return the result of a function in another process, which checks no shapes of calls."""
    with ProcessPoolExecutor(1, mp_context=server()) as pool:
        return pool.submit(function, *arguments).result()


def main(arguments, log, kill_at):
    """Run the command line in a started process; SIGKILL it before its n-th file operation."""
    import torch

    import longspan.cli

    torch.set_num_threads(1)
    with Path(log).open("a") as stream:
        sys.stdout = sys.stderr = stream
        if kill_at:
            sys.addaudithook(
                _KillBeforeFileOperation(arguments[arguments.index("--runs") + 1], kill_at)
            )
        sys.argv = ["longspan", *arguments]
        longspan.cli.main()


class _KillBeforeFileOperation:
    """Audit hook that kills the process before the n-th operation on a file below a folder."""

    EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")

    def __init__(self, folder, number):
        self.folder, self.left = folder, number

    def __call__(self, event, arguments):
        if event in self.EVENTS and str(arguments[0]).startswith(self.folder):
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
