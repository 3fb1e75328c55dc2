"""Callbacks of a grid of runs."""

from longspan.arena.experiment import Experiment
from longspan.results import Result
from longspan.training import Callback


class GridCallback(Callback):
    """Base class of grid callbacks; every method does nothing by default."""

    def on_build(self, description: str, done: int, total: int) -> None:
        """Handle progress in building a data set.

        Args:
            description: name of the data set or of its part.
            done: number of examples built so far.
            total: number of examples to build.
        """

    def on_run_begin(self, index: int, total: int, experiment: Experiment) -> None:
        """Handle the start of a run.

        Args:
            index: position of the run in the grid, from 1.
            total: number of runs in the grid.
            experiment: the experiment to run.
        """

    def on_run_end(self, result: Result) -> None:
        """Handle the result of a finished run."""

    def for_run(self, index: int) -> Callback:
        """Return the callback for the training events of run `index`, from 1; by default this."""
        return self

    def close_run(self, index: int) -> None:
        """Release what belongs to run `index`, which has finished, failed or been skipped."""
