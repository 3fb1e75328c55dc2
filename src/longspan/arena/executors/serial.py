"""One run after the other, in this process."""

from collections.abc import Generator, Sequence

from longspan.arena.executors.base import Bench, GridCallback, Outcome, view
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths


class SerialExecutor:
    """The executor of a laptop: needs nothing, isolates nothing."""

    def __call__(
        self, experiments: Sequence[Experiment], paths: RunPaths, callback: GridCallback
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Run them in their order."""
        bench = Bench(paths, callback.on_build)
        for number, experiment in enumerate(experiments):
            callback.on_run_begin(number + 1, len(experiments), experiment)
            yield number, bench.attempt(experiment, view(callback, number + 1))
