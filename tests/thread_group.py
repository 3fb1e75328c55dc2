"""Processes of a run as threads of one process."""

import threading

import torch

from longspan.training.distributed.group import ProcessGroup


class SharedGroup(ProcessGroup):
    """Rank of a group of threads."""

    def __init__(self, rank, barrier, slots):
        super().__init__(len(slots), rank, "ddp")
        object.__setattr__(self, "barrier", barrier)
        object.__setattr__(self, "slots", slots)

    def all_gather(self, x):
        self.slots[self.rank] = x.clone()
        self.barrier.wait()
        found = [y.clone() for y in self.slots]
        self.barrier.wait()
        return found

    def all_reduce_sum(self, x):
        return x.copy_(torch.stack(self.all_gather(x)).sum(0))


def run_in_threads(count, function):
    """Call a function with the group of each rank, in threads; return the results by rank."""
    barrier, slots, found = threading.Barrier(count, timeout=20), [None] * count, [None] * count

    def run(rank):
        try:
            found[rank] = function(SharedGroup(rank, barrier, slots))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
