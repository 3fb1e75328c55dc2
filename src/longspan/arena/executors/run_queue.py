"""Queue of runs: a run waits until the one that it starts from has ended."""

from collections.abc import Sequence

from longspan.arena.experiment import Experiment
from longspan.arena.ordering import source_numbers


class RunQueue:
    """Positions of experiments that have not begun, in their order."""

    def __init__(self, experiments: Sequence[Experiment]):
        """Queue all experiments."""
        self.sources = source_numbers(experiments)
        self.pending = list(range(len(experiments)))
        self.ended: set[int] = set()

    def __len__(self) -> int:
        """Return the number of positions in the queue."""
        return len(self.pending)

    def take(self) -> int | None:
        """Remove and return the first position whose source has ended; None: all wait for one.

        A run whose source has failed is returned too: it says why it cannot start.
        """
        for place, number in enumerate(self.pending):
            source = self.sources[number]
            if source is None or source in self.ended:
                return self.pending.pop(place)
        return None

    def put_back(self, number: int) -> None:
        """Return a position to the front of the queue, as its process died."""
        self.pending.insert(0, number)

    def end(self, number: int) -> None:
        """Let the runs begin that start from this one."""
        self.ended.add(number)
