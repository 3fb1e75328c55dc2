"""Peak memory: on a CPU measured in a process that only does that.

The process that measures times keeps freed memory, so what a workload needs goes into holes that
earlier ones left, or beside them: peaks of equal passes differ by up to 1.4 there. Here every large
block is mapped on its own and returned when it is freed, and the peak is that of the live tensors
and of the scratch memory of operators.
"""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from longspan.arena.plugins import Plugin, loaded_plugins, restore_plugins
from longspan.bench.memory import release_memory
from longspan.bench.timing import Call, measure_peak
from longspan.errors import RunError
from longspan.files import cache_folder
from longspan.memory import map_large_blocks_always, release_freed_memory
from longspan.processes import exit_with_parent

CPU = torch.device("cpu")


class PeakMeter:
    """Measures peak memory: on a CPU in another process, on a GPU here, where tensors are counted.

    The process starts with the first measurement. Use the meter as a context manager: the process
    ends with the context.
    """

    def __init__(self, device: torch.device) -> None:
        """Start nothing yet.

        Args:
            device: device that computes.
        """
        self.device = device
        self.executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "PeakMeter":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process; the next measurement starts another."""
        if self.executor is not None:
            self.executor.shutdown()
            self.executor = None

    def measure(self, make: Callable[[], Call]) -> int | None:
        """Return the bytes that the second call of a callable needs above what is held before it.

        Args:
            make: builder of the callable, which can be pickled.

        Raises:
            MemoryError: the system ended the process.
            RunError: the process did not start.
        """
        if self.device.type != "cpu":
            return measure_peak(make(), self.device)
        release_freed_memory()  # the other process needs it
        executor = self.executor or self._start()
        try:
            return executor.submit(_measure, make).result()
        except BrokenProcessPool as error:
            self.close()
            raise MemoryError("the system ended the process that measures memory") from error

    def _start(self) -> ProcessPoolExecutor:
        arguments = torch.get_num_threads(), loaded_plugins()
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(1, context, _prepare, arguments)
        try:
            self.executor.submit(os.getpid).result()
        except BrokenProcessPool as error:
            self.close()
            raise RunError(
                "the process that measures memory did not start; a script that calls longspan must "
                'do so under `if __name__ == "__main__":`'
            ) from error
        return self.executor


def _prepare(threads: int, plugins: tuple[Plugin, ...]) -> None:
    # Ctrl-C reaches every process of a terminal, and ends this one at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    exit_with_parent()
    map_large_blocks_always()
    torch.set_num_threads(threads)
    restore_plugins(plugins, cache_folder())
    gc.collect()
    gc.freeze()  # what stays is not looked at again


def _measure(make: Callable[[], Call]) -> int | None:
    try:
        return measure_peak(make(), CPU)
    finally:
        release_memory(CPU)  # the parent needs it
