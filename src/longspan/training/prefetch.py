"""Batches made ahead of their use, by one thread beside the model."""

import dataclasses
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

from longspan.tasks.base import Batch

T = TypeVar("T")

DEPTH = 2  # items that lie ready; memory holds one more in the making and one in use


@dataclasses.dataclass(frozen=True)
class _End:
    """What the thread hands over last: why there is nothing more."""

    error: BaseException | None = None


def prefetched(items: Iterator[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """Yield the items in their order while a thread makes the next ones.

    An exception of `items` is raised here with its traceback, after the items before it. The
    thread ends with the generator: at its end, when it is closed (`contextlib.closing`), or when
    an exception, Ctrl-C included, goes through the consumer. It then still finishes the item that
    it is making.
    """
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()
    # A daemon, lest a consumer that is never closed keep the process alive.
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
        # It puts at most once more, for which there is room now.
        while not ready.empty():
            ready.get_nowait()
        # Ctrl-C may have come before it started.
        if thread.is_alive():
            thread.join()


def _fill(items: Iterator[T], ready: "queue.Queue[T | _End]", stopped: threading.Event) -> None:
    end = _End()
    try:
        for item in items:
            ready.put(item)
            if stopped.is_set():
                return
    except BaseException as error:  # whatever it is, it belongs to the consumer
        end = _End(error)
    ready.put(end)


def ahead(batches: Iterator[Batch], device: torch.device) -> Generator[Batch, None, None]:
    """Batches made ahead, in pinned memory if they go to a GPU, so that copying waits for nothing.

    Close it when it is not read to its end.
    """
    return prefetched(map(_pinned, batches) if device.type == "cuda" else batches)


def _pinned(batch: Batch) -> Batch:
    parts = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    tensors = {name: x.pin_memory() for name, x in parts.items() if isinstance(x, torch.Tensor)}
    return dataclasses.replace(batch, **tensors)
