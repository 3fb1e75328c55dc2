"""Items come in their order, failures where they belong, and no thread is left behind."""

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
from longspan.training import fit, loop
from longspan.training.evaluate import answered
from longspan.training.prefetch import DEPTH, ahead, prefetched

CPU = torch.device("cpu")
SOON = 20  # seconds after which a test that waits for a thread has failed


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []


def threads():
    return [x for x in threading.enumerate() if x.name == "longspan-prefetch"]


class Source:
    """Counts what is taken from it; item `fails` is an exception instead."""

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
        """Whether so many items are taken before long."""
        with self.changed:
            return self.changed.wait_for(lambda: self.taken >= count, SOON)


def broken(number):
    raise DataError(f"item {number} is broken")


@pytest.mark.parametrize("count", [0, 1, DEPTH, DEPTH + 1, 100])
@pytest.mark.parametrize("depth", [1, DEPTH, 7])
def test_all_items_come_in_their_order(count, depth):
    assert list(prefetched(iter(range(count)), depth)) == list(range(count))


@pytest.mark.parametrize("taken", [0, 1, 2, 50])
def test_an_endless_source_is_left_at_any_point(taken):
    with contextlib.closing(prefetched(Source())) as items:
        assert list(itertools.islice(items, taken)) == list(range(taken))


def test_items_are_made_while_the_consumer_is_busy_and_not_too_many():
    source = Source()
    with contextlib.closing(prefetched(source)) as items:
        assert next(items) == 0
        # the queue is full and one more waits for room, though nobody asked for it
        assert source.reaches(DEPTH + 2)
        assert source.taken == DEPTH + 2
        assert next(items) == 1
        assert source.reaches(DEPTH + 3)
        assert source.taken == DEPTH + 3


def test_the_thread_is_another_one():
    (name,) = prefetched(threading.current_thread().name for _ in range(1))
    assert name == "longspan-prefetch"


@pytest.mark.parametrize("fails", [0, 1, DEPTH, 30])
def test_an_exception_comes_after_the_items_before_it_with_its_traceback(fails):
    items = prefetched(Source(fails=fails))
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

    items = prefetched(Failing())
    expected = StopIteration if error is StopIteration else error
    with pytest.raises(expected):
        next(items)


def test_an_exception_nobody_came_for_is_no_obstacle():
    source = Source(fails=1)
    with contextlib.closing(prefetched(source)) as items:
        assert next(items) == 0


def test_a_consumer_that_fails_ends_the_thread():
    def consume():
        with contextlib.closing(prefetched(Source())) as items:
            for item in items:
                if item == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()


def test_a_forgotten_consumer_ends_the_thread():
    items = prefetched(Source())
    assert next(items) == 0
    assert threads()
    del items
    assert not threads()


def test_nothing_starts_before_the_first_item_is_asked_for():
    source = Source()
    prefetched(source).close()
    assert source.taken == 0


def test_ctrl_c_while_waiting_ends_the_thread():
    def interrupting():
        yield 0
        signal.raise_signal(signal.SIGINT)  # python hands it to the main thread, which waits
        threading.Event().wait(0.1)
        yield 1

    def consume():
        with contextlib.closing(prefetched(interrupting())) as items:
            return list(items)

    with pytest.raises(KeyboardInterrupt):
        consume()


def test_ctrl_c_while_the_thread_starts_ends_it(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(prefetched(Source()))


FORGOTTEN = """
import itertools, sys
from longspan.training.prefetch import prefetched
items = prefetched(itertools.count())
sys.exit(f"item {next(items)}")
"""


def test_a_consumer_never_closed_does_not_keep_the_process():
    command = [sys.executable, "-c", FORGOTTEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (1, "item 0\n")


def test_batches_are_those_of_the_task(listops):
    plain = itertools.islice(listops.batches("train", batch=4, seed=3), 60)
    with contextlib.closing(ahead(listops.batches("train", batch=4, seed=3), CPU)) as batches:
        for batch, expected in zip(itertools.islice(batches, 60), plain, strict=True):
            assert batch.rows.equal(expected.rows)
            assert batch.inputs.equal(expected.inputs)


def test_batches_for_a_gpu_are_pinned_and_nothing_else_changes(listops, monkeypatch):
    """Pinning needs a driver; that every tensor is handed to it does not."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x.clone())
    plain = list(listops.batches("validation", batch=16))
    batches = list(ahead(listops.batches("validation", batch=16), torch.device("cuda")))
    assert len(pinned) == 4 * len(plain)
    for batch, expected in zip(batches, plain, strict=True):
        for name in ("inputs", "key_mask", "targets", "rows"):
            assert getattr(batch, name).equal(getattr(expected, name))
        assert batch.inputs_b is None
    pinned.clear()
    list(ahead(listops.batches("validation", batch=16), CPU))
    assert pinned == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_for_a_gpu_lie_in_pinned_memory(listops):
    device = torch.device("cuda")
    for batch in ahead(listops.batches("validation", batch=16), device):
        assert batch.inputs.is_pinned()
        assert batch.targets.is_pinned()


class Stop(Exception):
    """What ends a run in the middle."""


class Stopping:
    """A callback that ends the run after a step."""

    def __init__(self, step):
        self.step = step

    def on_train_begin(self, steps): ...

    def on_step(self, step, loss, tokens, seconds):
        if step == self.step:
            raise Stop

    def on_evaluate(self, point):
        pass

    def on_alarm(self, alarm):
        pass


def trained(task, folder, callback):
    made = tiny.experiment()
    model = make_model(made, task)
    return fit(model, task, made.train, seed=0, folder=folder, device="cpu", callback=callback)


def test_the_loop_and_the_evaluation_read_ahead_and_close(listops, tmp_path, monkeypatch):
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
    assert 0 < outcome.waiting < outcome.seconds
    one = {"longspan-prefetch"}
    assert makers == {"train": one, "validation": one, "test": one}


def test_a_broken_row_ends_an_evaluation_and_its_thread(listops, monkeypatch):
    monkeypatch.setattr(listops, "batches", lambda *_, **__: Source(fails=0))
    model = make_model(tiny.experiment(), listops)
    with pytest.raises(DataError, match="item 0 is broken"):
        answered(model, listops, "test", batch=4, device=CPU)


def test_waiting_is_counted_and_continued_after_a_stop(listops, tmp_path, monkeypatch):
    """By a clock that making a batch moves by 3 s and a step by 1 s, without a thread."""
    now, batches, hits = [0.0], listops.batches, listops.hits

    def takes(seconds, result):
        now[0] += seconds
        return result

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(loop, "ahead", lambda made, device: (takes(3.0, one) for one in made))
    monkeypatch.setattr(evaluation, "ahead", lambda made, device: batches("test", batch=44))
    monkeypatch.setattr(listops, "size", lambda split: 44)
    monkeypatch.setattr(listops, "hits", lambda *arguments: takes(1.0, hits(*arguments)))
    with pytest.raises(Stop):
        trained(listops, tmp_path, Stopping(9))
    outcome = trained(listops, tmp_path, None)
    assert (outcome.seconds, outcome.waiting) == (12 * 4.0, 12 * 3.0)
