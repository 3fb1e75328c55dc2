"""Grid callbacks that log, interrupt or kill runs."""

import collections
import dataclasses
import json
import os
import signal

import torch

import tiny
from longspan.arena.callbacks import GridCallback
from longspan.training import Callback

# A kill after the first evaluation leaves a checkpoint and remaining steps.
LONGER = {"training.steps": 120, "training.evaluate_every": 40, "training.checkpoint_every": 30}


def longer_experiments():
    return [tiny.experiment(name, changes=LONGER) for name in ("full", "local", "linear")]


def reproducible_fields(results):
    """Return the fields that are equal in two runs of one experiment."""
    return {
        result.filename: (
            result.scores,
            result.example_scores,
            [dataclasses.replace(point, seconds=0.0) for point in result.curve],
        )
        for result in results
    }


class LogRuns(GridCallback):
    """Callback that logs the starts and results of runs."""

    def __init__(self):
        self.lines = []

    def on_run_begin(self, index, total, experiment):
        self.lines.append(f"{index}/{total} {experiment.mechanism} {experiment.seed}")

    def on_run_end(self, result):
        self.lines.append(f"ended {result.mechanism} {result.seed}")


class StopAtStep(GridCallback):
    """Callback that logs steps and raises KeyboardInterrupt at one of them."""

    def __init__(self, last=None):
        self.last, self.steps = last, []

    def on_step(self, step, loss, tokens, seconds):
        self.steps.append(step)
        if step == self.last:
            raise KeyboardInterrupt


class KillRuns(LogRuns):
    """Callback that kills processes of runs after evaluations, `kills` times per mechanism."""

    def __init__(self, paths, experiments, kills, lock="run"):
        super().__init__()
        self.paths, self.experiments, self.lock = paths, experiments, lock
        self.left, self.done = collections.Counter(kills), collections.Counter()
        self.killed = set()

    def for_run(self, index):
        return _KillRun(self, self.experiments[index - 1])


class _KillRun(Callback):
    def __init__(self, killer, experiment):
        self.killer, self.experiment = killer, experiment

    def on_step(self, step, loss, tokens, seconds):
        assert isinstance(loss, torch.Tensor)

    def on_evaluate(self, point):
        killer, name = self.killer, self.experiment.mechanism
        if killer.left[name] > 0:
            holder = killer.paths.run_dir(self.experiment) / f"{killer.lock}.json"
            process = json.loads(holder.read_text())["pid"]
            # Events of a process may arrive after its death.
            if process in killer.killed:
                return
            os.kill(process, signal.SIGKILL)
            killer.killed.add(process)
            killer.left[name] -= 1
            killer.done[name] += 1
