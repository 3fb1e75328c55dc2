"""Batches prepared by a background thread while the model works on earlier ones."""

import dataclasses
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

from longspan.tasks.base import Batch

T = TypeVar("T")

DEPTH = 2  # prepared items; one more is being made and one is in use


@dataclasses.dataclass(frozen=True)
class _End:
    """The last item that the thread puts into the queue, with its error if it failed."""

    error: BaseException | None = None


def prefetch_items(items: Iterator[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """Yield items in order while a thread makes the next ones.

    An exception of `items` is raised here, with its traceback, after the items before it. The
    thread stops with the generator: when the items are exhausted, when the generator is closed
    (`contextlib.closing`), or when the consumer raises, Ctrl-C included. It finishes the item that
    it is making first.
    """
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    # A daemon thread does not keep the process alive if the generator is never closed.
    thread = threading.Thread(
        target=_fill, args=(items, ready, stopped), name="longspan-prefetch", daemon=True
    )
    try:
        thread.start()
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        # The thread puts one more item at most; emptying the queue makes room for it.
        while not ready.empty():
            ready.get_nowait()
        # Ctrl-C may have arrived before the thread started.
        if thread.is_alive():
            thread.join()


def _fill(items: Iterator[T], ready: "queue.Queue[T | _End]", stopped: threading.Event) -> None:
    end = _End()
    try:
        for item in items:
            ready.put(item)
            if stopped.is_set():
                return
    except BaseException as error:  # every error is raised in the consumer
        end = _End(error)
    ready.put(end)


def prefetch_batches(
    batches: Iterator[Batch], device: torch.device
) -> Generator[Batch, None, None]:
    """Yield prefetched batches, in pinned memory if they are copied to a GPU.

    Close the generator unless it is read to its end.
    """
    if device.type != "cuda":
        return prefetch_items(batches)
    # Copies from pinned memory to the GPU are asynchronous.
    return prefetch_items(batch.map(torch.Tensor.pin_memory) for batch in batches)
