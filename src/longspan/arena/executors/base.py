"""The interface of executors."""

from collections.abc import Generator, Sequence
from typing import Protocol, runtime_checkable

from longspan.arena.callbacks import GridCallback
from longspan.arena.executors.outcomes import RunOutcome
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths


@runtime_checkable
class Executor(Protocol):
    """Runs experiments, in this process or elsewhere."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, RunOutcome], None, None]:
        """Yield the position of each experiment, from 0, and its outcome, as runs end.

        Closing the generator, like Ctrl-C, stops the runs that have not ended.

        Raises:
            RunError: the processes or the cluster cannot be reached; earlier outcomes are valid.
        """
