"""Executor for one process: one run after the other."""

from collections.abc import Generator, Sequence

from longspan.arena.callbacks import GridCallback, select_callback
from longspan.arena.executors.outcomes import RunOutcome
from longspan.arena.executors.runner import ExperimentRunner
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths


class SerialExecutor:
    """Runs experiments in this process, in their order."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, RunOutcome], None, None]:
        """Yield the position and outcome of each experiment; see `Executor`."""
        runner = ExperimentRunner(paths, callback.on_build)
        for index, experiment in enumerate(experiments):
            callback.on_run_begin(index + 1, len(experiments), experiment)
            yield index, runner.run(experiment, select_callback(callback, index + 1))
