"""Prefetching keeps the order of items and errors and leaves no thread behind."""

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
from longspan.training import Callback, fit, loop
from longspan.training import evaluate as evaluation
from longspan.training.evaluate import evaluate
from longspan.training.prefetch import DEPTH, prefetch_batches, prefetch_items

CPU = torch.device("cpu")
TIMEOUT = 20  # seconds to wait for a thread


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


@pytest.fixture
def default_sigint():
    """Install Python's handler of SIGINT: a shell's background job starts with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def threads():
    return [x for x in threading.enumerate() if x.name == "longspan-prefetch"]


class Source:
    """Counts the items taken from it; raises an exception instead of item `fails`."""

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
        """Wait until a number of items are taken; return whether they were."""
        with self.changed:
            return self.changed.wait_for(lambda: self.taken >= count, TIMEOUT)


def broken(number):
    raise DataError(f"item {number} is broken")


@pytest.mark.parametrize("count", [0, 1, DEPTH, DEPTH + 1, 100])
@pytest.mark.parametrize("depth", [1, DEPTH, 7])
def test_items_keep_their_order(count, depth):
    assert list(prefetch_items(iter(range(count)), depth)) == list(range(count))


@pytest.mark.parametrize("taken", [0, 1, 2, 50])
def test_an_endless_source_can_be_closed_at_any_point(taken):
    with contextlib.closing(prefetch_items(Source())) as items:
        assert list(itertools.islice(items, taken)) == list(range(taken))


def test_items_are_made_while_the_consumer_is_busy_up_to_the_depth():
    source = Source()
    with contextlib.closing(prefetch_items(source)) as items:
        assert next(items) == 0
        # The queue is full and one more item waits for room.
        assert source.reaches(DEPTH + 2)
        assert source.taken == DEPTH + 2
        assert next(items) == 1
        assert source.reaches(DEPTH + 3)
        assert source.taken == DEPTH + 3


def test_items_are_made_in_another_thread():
    (name,) = prefetch_items(threading.current_thread().name for _ in range(1))
    assert name == "longspan-prefetch"


@pytest.mark.parametrize("fails", [0, 1, DEPTH, 30])
def test_an_exception_comes_after_the_items_before_it_with_its_traceback(fails):
    items = prefetch_items(Source(fails=fails))
    assert [next(items) for _ in range(fails)] == list(range(fails))
    with pytest.raises(DataError, match=f"item {fails} is broken") as caught:
        next(items)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["__next__", "broken"]
    with pytest.raises(StopIteration):
        next(items)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_any_exception_of_the_source_reaches_the_consumer(error):
    class Failing:
        def __iter__(self):
            return self

        def __next__(self):
            raise error

    items = prefetch_items(Failing())
    expected = StopIteration if error is StopIteration else error
    with pytest.raises(expected):
        next(items)


def test_an_exception_behind_the_last_item_read_is_ignored():
    source = Source(fails=1)
    with contextlib.closing(prefetch_items(source)) as items:
        assert next(items) == 0


def test_a_failing_consumer_stops_the_thread():
    def consume():
        with contextlib.closing(prefetch_items(Source())) as items:
            for item in items:
                if item == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()


def test_deleting_the_generator_stops_the_thread():
    items = prefetch_items(Source())
    assert next(items) == 0
    assert threads()
    del items
    assert not threads()


def test_nothing_starts_before_the_first_item_is_requested():
    source = Source()
    prefetch_items(source).close()
    assert source.taken == 0


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_while_waiting_stops_the_thread():
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


def test_ctrl_c_while_the_thread_starts_stops_it(monkeypatch):
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


def test_an_unclosed_generator_does_not_keep_the_process_alive():
    command = [sys.executable, "-c", UNCLOSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (1, "item 0\n")


def test_batches_are_those_of_the_task(listops):
    plain = itertools.islice(listops.batches("train", batch_size=4, seed=3), 60)
    with contextlib.closing(
        prefetch_batches(listops.batches("train", batch_size=4, seed=3), CPU)
    ) as batches:
        for batch, expected in zip(itertools.islice(batches, 60), plain, strict=True):
            assert batch.rows.equal(expected.rows)
            assert batch.inputs.equal(expected.inputs)


def test_batches_for_a_gpu_are_pinned_and_unchanged(listops, monkeypatch):
    """Pinning itself needs a driver, so it is replaced."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    plain = list(listops.batches("validation", batch_size=16))
    batches = list(
        prefetch_batches(listops.batches("validation", batch_size=16), torch.device("cuda"))
    )
    assert len(pinned) == 4 * len(plain)
    for batch, expected in zip(batches, plain, strict=True):
        for name in ("inputs", "key_mask", "targets", "rows"):
            assert getattr(batch, name).equal(getattr(expected, name))
        assert batch.inputs_b is None
    pinned.clear()
    list(prefetch_batches(listops.batches("validation", batch_size=16), CPU))
    assert pinned == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_a_gpu_are_in_pinned_memory(listops):
    device = torch.device("cuda")
    for batch in prefetch_batches(listops.batches("validation", batch_size=16), device):
        assert batch.inputs.is_pinned()
        assert batch.targets.is_pinned()


class Stop(Exception):
    """Ends a run in the middle."""


class Stopping(Callback):
    """Ends the run after a step."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            raise Stop


def trained(task, folder, callback):
    made = tiny.experiment()
    model = make_model(made, task)
    return fit(
        model, task, made.config.training, seed=0, folder=folder, device="cpu", callback=callback
    )


def test_training_and_evaluation_prefetch_and_close(listops, tmp_path, monkeypatch):
    makers, batches = {}, listops.batches

    def spy(split, **arguments):
        for batch in batches(split, **arguments):
            makers.setdefault(split, set()).add(threading.current_thread().name)
            yield batch

    monkeypatch.setattr(listops, "batches", spy)
    with pytest.raises(Stop):
        trained(listops, tmp_path / "a", Stopping(5))
    assert not threads()
    outcome = trained(listops, tmp_path / "b", None)
    assert 0 < outcome.data_wait_seconds < outcome.seconds
    one = {"longspan-prefetch"}
    assert makers == {"train": one, "validation": one, "test": one}


def test_a_broken_row_ends_the_evaluation_and_its_thread(listops, monkeypatch):
    monkeypatch.setattr(listops, "batches", lambda *_, **__: Source(fails=0))
    model = make_model(tiny.experiment(), listops)
    with pytest.raises(DataError, match="item 0 is broken"):
        evaluate(model, listops, "test", batch_size=4, device=CPU)


def test_data_wait_time_is_counted_across_resumption(listops, tmp_path, monkeypatch):
    """Making a batch moves the clock by 3 s and a step by 1 s; there is no thread."""
    now, batches, losses = [0.0], listops.batches, listops.losses

    def takes(seconds, result):
        now[0] += seconds
        return result

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(
        loop, "prefetch_batches", lambda made, device: (takes(3.0, one) for one in made)
    )
    monkeypatch.setattr(
        evaluation, "prefetch_batches", lambda made, device: batches("test", batch_size=44)
    )
    monkeypatch.setattr(listops, "size", lambda split: 44)
    monkeypatch.setattr(listops, "losses", lambda *arguments: takes(1.0, losses(*arguments)))
    with pytest.raises(Stop):
        trained(listops, tmp_path, Stopping(9))
    outcome = trained(listops, tmp_path, None)
    assert (outcome.seconds, outcome.data_wait_seconds) == (12 * 4.0, 12 * 3.0)
