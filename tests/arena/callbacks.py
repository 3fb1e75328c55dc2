"""Callbacks of grids, for tests; one of them kills."""

import collections
import dataclasses
import json
import os
import signal

import torch

import tiny

# long enough to be killed in the middle, with a checkpoint to continue from
LONGER = {"train.steps": 400, "train.evaluate_every": 50, "train.checkpoint_every": 20}


def longer():
    return [tiny.experiment(name, changes=LONGER) for name in ("full", "local", "linear")]


def metrics(results):
    """What two runs of one experiment have in common."""
    return {
        result.filename: (
            result.scores,
            result.answers,
            [dataclasses.replace(point, seconds=0.0) for point in result.curve],
        )
        for result in results
    }


class Quiet:
    """Does not watch."""

    def on_build(self, description, done, total): ...
    def on_run_begin(self, index, total, experiment): ...
    def on_run_end(self, result): ...
    def on_train_begin(self, steps): ...
    def on_step(self, step, loss, tokens, seconds): ...
    def on_evaluate(self, point): ...

    def on_alarm(self, alarm): ...


class Log(Quiet):
    """Notes what starts and what ends."""

    def __init__(self):
        self.lines = []

    def on_run_begin(self, index, total, experiment):
        self.lines.append(f"{number}/{total} {experiment.mechanism} {experiment.seed}")

    def on_run_end(self, result):
        self.lines.append(f"ended {result.mechanism} {result.seed}")


class Stopping(Quiet):
    """Notes steps, and presses Ctrl-C at one of them."""

    def __init__(self, last=None):
        self.last, self.steps = last, []

    def on_step(self, step, loss, tokens, seconds):
        self.steps.append(step)
        if step == self.last:
            raise KeyboardInterrupt


class Killer(Log):
    """Kills the process of a run when it hears of it, so many times."""

    def __init__(self, paths, experiments, kills, note="run.json"):
        super().__init__()
        self.paths, self.experiments, self.note = paths, experiments, note
        self.left, self.done = collections.Counter(kills), collections.Counter()
        self.killed = set()

    def for_run(self, index):
        return _Victim(self, self.experiments[number - 1])

    def close_run(self, index): ...


class _Victim:
    def __init__(self, killer, experiment):
        self.killer, self.experiment = killer, experiment

    def on_train_begin(self, steps): ...

    def on_step(self, step, loss, tokens, seconds):
        assert isinstance(loss, torch.Tensor)

    def on_evaluate(self, point):
        killer, name = self.killer, self.experiment.mechanism
        if killer.left[name] > 0:
            note = killer.paths.run_dir(self.experiment) / killer.note
            process = json.loads(note.read_text())["pid"]
            # News of a process may come after its death.
            if process in killer.killed:
                return
            os.kill(process, signal.SIGKILL)
            killer.killed.add(process)
            killer.left[name] -= 1
            killer.done[name] += 1

    def on_alarm(self, alarm): ...
