"""Stages of a run as the training loop takes them: task, recipe and model of each."""

import dataclasses
from pathlib import Path

from longspan.arena.experiment import Experiment
from longspan.arena.given_checkpoint import GivenCheckpoint
from longspan.arena.model import make_model
from longspan.arena.paths import RunPaths
from longspan.arena.run import run_on_main
from longspan.arena.stage_tasks import stage_task
from longspan.arena.start import record_start, start_model
from longspan.models import LongspanPreTrainedModel
from longspan.results import StartRecord
from longspan.tasks import Task
from longspan.training import Stage


class StagePlan:
    """Stages of an experiment, of which the first loads the start."""

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        paths: RunPaths,
        run_dir: Path,
        found: GivenCheckpoint | StartRecord | None,
    ):
        """Plan the stages.

        Args:
            experiment: experiment as it runs under its budget.
            task: its open task.
            paths: paths of the run.
            run_dir: its folder.
            found: checkpoint that the first stage starts from, or the record of an earlier start.
        """
        self.experiment, self.task, self.found = experiment, task, found
        self.paths, self.run_dir = paths, run_dir
        self.started = found if isinstance(found, StartRecord) else None

    def stages(self) -> list[Stage]:
        """Return the stages; one for a run that has none of its own."""
        config = self.experiment.config
        keeps = [stage.keep_optimizer for stage in config.training.stages] or [True]
        experiments = [dataclasses.replace(self.experiment, config=x) for x in config.stages()]
        return [
            self._stage(number, *parts)
            for number, parts in enumerate(zip(experiments, keeps, strict=True))
        ]

    def _stage(self, number: int, experiment: Experiment, keep_optimizer: bool) -> Stage:
        task = stage_task(experiment.config, self.task)

        def make() -> LongspanPreTrainedModel:
            model = make_model(experiment, task)
            if number == 0:
                self._start(model)
            return model

        return Stage(
            task=task,
            config=experiment.config.training,
            make_model=make,
            keep_optimizer=keep_optimizer,
            mechanism=experiment.mechanism,
            evaluation_changes=experiment.config.evaluation_changes,
        )

    def _start(self, model: LongspanPreTrainedModel) -> None:
        """Load the start into the model of the first stage, and record it."""
        started = start_model(model, self.found, self.experiment.config.start)
        run_on_main(self.paths, lambda: record_start(self.run_dir, started))
        self.started = started
