"""Prefetching: order of items, errors, interrupts and threads."""

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import traceback
import types

import pytest
import torch

import tiny
from longspan.arena import make_model
from longspan.errors import DataError
from longspan.training import evaluate as evaluation
from longspan.training import loop
from longspan.training.evaluate import evaluate
from longspan.training.prefetch import DEPTH, prefetch_batches, prefetch_items

CPU = torch.device("cpu")
TIMEOUT = 20  # seconds to wait for a thread


@pytest.fixture(autouse=True)
def no_remaining_threads():
    yield
    assert prefetch_threads() == []


@pytest.fixture
def default_sigint():
    """Install Python's SIGINT handler; background jobs of a shell start with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def prefetch_threads():
    return [x for x in threading.enumerate() if x.name == "longspan-prefetch"]


class Source:
    """Iterator that counts the taken items and raises an exception in place of item `fails`."""

    def __init__(self, count=None, fails=None):
        self.numbers = itertools.count() if count is None else iter(range(count))
        self.fails, self.taken, self.changed = fails, 0, threading.Condition()

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self.numbers)
        if number == self.fails:
            broken(number)
        with self.changed:
            self.taken += 1
            self.changed.notify_all()
        return number

    def reaches(self, count):
        """Wait until a number of items is taken; return False after a timeout."""
        with self.changed:
            return self.changed.wait_for(lambda: self.taken >= count, TIMEOUT)


def broken(number):
    raise DataError(f"item {number} is broken")


@pytest.mark.parametrize("count", [0, 1, DEPTH, DEPTH + 1, 100])
@pytest.mark.parametrize("depth", [1, DEPTH, 7])
def test_items_keep_their_order(count, depth):
    assert list(prefetch_items(iter(range(count)), depth)) == list(range(count))


@pytest.mark.parametrize("taken", [0, 1, 2, 50])
def test_endless_source_can_be_closed_at_any_item(taken):
    with contextlib.closing(prefetch_items(Source())) as items:
        assert list(itertools.islice(items, taken)) == list(range(taken))


def test_items_are_prefetched_up_to_depth():
    source = Source()
    with contextlib.closing(prefetch_items(source)) as items:
        assert next(items) == 0
        # The queue is full and one more item waits for room.
        assert source.reaches(DEPTH + 2)
        assert source.taken == DEPTH + 2
        assert next(items) == 1
        assert source.reaches(DEPTH + 3)
        assert source.taken == DEPTH + 3


def test_items_are_made_in_separate_thread():
    (name,) = prefetch_items(threading.current_thread().name for _ in range(1))
    assert name == "longspan-prefetch"


@pytest.mark.parametrize("fails", [0, 1, DEPTH, 30])
def test_exception_follows_earlier_items_with_traceback(fails):
    items = prefetch_items(Source(fails=fails))
    assert [next(items) for _ in range(fails)] == list(range(fails))
    with pytest.raises(DataError, match=f"item {fails} is broken") as caught:
        next(items)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["__next__", "broken"]
    with pytest.raises(StopIteration):
        next(items)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_every_exception_of_source_reaches_consumer(error):
    class Failing:
        def __iter__(self):
            return self

        def __next__(self):
            raise error

    items = prefetch_items(Failing())
    expected = StopIteration if error is StopIteration else error
    with pytest.raises(expected):
        next(items)


def test_deleting_generator_stops_thread():
    items = prefetch_items(Source())
    assert next(items) == 0
    assert prefetch_threads()
    del items
    assert not prefetch_threads()


@pytest.mark.usefixtures("default_sigint")
def test_sigint_while_waiting_stops_thread():
    def interrupting():
        yield 0
        signal.raise_signal(signal.SIGINT)  # handled by the main thread, which waits
        threading.Event().wait(0.1)
        yield 1

    def consume():
        with contextlib.closing(prefetch_items(interrupting())) as items:
            return list(items)

    with pytest.raises(KeyboardInterrupt):
        consume()


def test_sigint_during_thread_start_stops_thread(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(prefetch_items(Source()))


UNCLOSED = """
import itertools, sys
from longspan.training.prefetch import prefetch_items
items = prefetch_items(itertools.count())
sys.exit(f"item {next(items)}")
"""


def test_unclosed_generator_does_not_keep_process_alive():
    command = [sys.executable, "-c", UNCLOSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (1, "item 0\n")


def test_prefetched_batches_equal_batches_of_task(listops):
    plain = itertools.islice(listops.batches("train", batch_size=4, seed=3), 60)
    with contextlib.closing(
        prefetch_batches(listops.batches("train", batch_size=4, seed=3), CPU)
    ) as batches:
        for batch, expected in zip(itertools.islice(batches, 60), plain, strict=True):
            assert batch.rows.equal(expected.rows)
            assert batch.inputs["input_ids"].equal(expected.inputs["input_ids"])


def test_batches_for_gpu_are_pinned_and_unchanged(listops, monkeypatch):
    """Replace pinning, which needs a driver."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    plain = list(listops.batches("validation", batch_size=16))
    batches = list(
        prefetch_batches(listops.batches("validation", batch_size=16), torch.device("cuda"))
    )
    assert len(pinned) == 4 * len(plain)
    for batch, expected in zip(batches, plain, strict=True):
        assert batch.inputs.keys() == expected.inputs.keys()
        for name, x in expected.inputs.items():
            assert batch.inputs[name].equal(x)
        assert batch.targets.equal(expected.targets)
        assert batch.rows.equal(expected.rows)
    pinned.clear()
    list(prefetch_batches(listops.batches("validation", batch_size=16), CPU))
    assert pinned == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_gpu_are_in_pinned_memory(listops):
    device = torch.device("cuda")
    for batch in prefetch_batches(listops.batches("validation", batch_size=16), device):
        assert batch.inputs["input_ids"].is_pinned()
        assert batch.targets.is_pinned()


def train(task, folder, callback):
    return tiny.train(tiny.experiment(), task, folder, callback)


def test_training_and_evaluation_prefetch_and_stop_threads(listops, tmp_path, monkeypatch):
    threads_by_split, batches = {}, listops.batches

    def spy(split, **arguments):
        for batch in batches(split, **arguments):
            threads_by_split.setdefault(split, set()).add(threading.current_thread().name)
            yield batch

    monkeypatch.setattr(listops, "batches", spy)
    with pytest.raises(tiny.StopError):
        train(listops, tmp_path / "a", tiny.StopAtStep(5))
    assert not prefetch_threads()
    outcome = train(listops, tmp_path / "b", None)
    assert 0 < outcome.data_wait_seconds < outcome.seconds
    one = {"longspan-prefetch"}
    assert threads_by_split == {"train": one, "validation": one, "test": one}


def test_broken_row_ends_evaluation_and_its_thread(listops, monkeypatch):
    monkeypatch.setattr(listops, "batches", lambda *_, **__: Source(fails=0))
    model = make_model(tiny.experiment(), listops)
    with pytest.raises(DataError, match="item 0 is broken"):
        evaluate(model, listops, "test", batch_size=4, device=CPU)


def test_data_wait_accumulates_across_resumption(listops, tmp_path, monkeypatch):
    """Use a fake clock without threads: a batch takes 3 s and a step 1 s."""
    now, batches, arguments = [0.0], listops.batches, listops.label_arguments

    def takes(seconds, result):
        now[0] += seconds
        return result

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(
        loop, "prefetch_batches", lambda source, device: (takes(3.0, one) for one in source)
    )
    monkeypatch.setattr(
        evaluation, "prefetch_batches", lambda source, device: batches("test", batch_size=44)
    )
    monkeypatch.setattr(listops, "size", lambda split: 44)
    # A step asks for the labels twice: to count them, and for its one part.
    monkeypatch.setattr(listops, "label_arguments", lambda x: takes(0.5, arguments(x)))
    with pytest.raises(tiny.StopError):
        train(listops, tmp_path, tiny.StopAtStep(9))
    outcome = train(listops, tmp_path, None)
    assert (outcome.seconds, outcome.data_wait_seconds) == (12 * 4.0, 12 * 3.0)
