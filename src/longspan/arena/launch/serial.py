"""One run after the other, in this process."""

from collections.abc import Generator, Sequence

from longspan.arena.experiment import Experiment
from longspan.arena.launch.base import Bench, GridWatcher, Outcome, view
from longspan.arena.places import Places


class Serial:
    """The launcher of a laptop: needs nothing, isolates nothing."""

    def __call__(
        self, experiments: Sequence[Experiment], places: Places, watcher: GridWatcher
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Run them in their order."""
        bench = Bench(places, watcher.building)
        for number, experiment in enumerate(experiments):
            watcher.starts(number + 1, len(experiments), experiment)
            yield number, bench.attempt(experiment, view(watcher, number + 1))
