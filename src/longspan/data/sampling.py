"""Random numbers for generated sets: chunks with seeds of their own, and draws without return."""

from collections.abc import Callable, Iterator

import numpy as np

from longspan.errors import OptionError

MOST_IDS = 1 << 16  # tokens are stored as uint16
CHUNK = 256  # examples drawn from one seed

Drawn = tuple[np.ndarray, np.ndarray]  # tokens and targets, (rows, length)


def check_vocabulary(size: int, largest: str) -> None:
    """Check that ids fit into uint16.

    Args:
        size: token ids.
        largest: the option to be lowered.

    Raises:
        OptionError: they do not.
    """
    if size > MOST_IDS:
        raise OptionError(f"{size} token ids, the most are {MOST_IDS}; lower {largest}")


def chunk(purpose: str, seed: int, number: int) -> np.random.Generator:
    """The generator of chunk `number` of a stream, unrelated to every other chunk's.

    Args:
        purpose: names the stream, e.g. the task and the split; streams of two purposes share
            no draws.
        seed: of the data.
        number: of the chunk, from 0.
    """
    name = np.frombuffer(purpose.encode(), np.uint8)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, number, *name])))


def chunks(
    purpose: str, seed: int, count: int, make: Callable[[np.random.Generator], Drawn]
) -> Iterator[Drawn]:
    """Yield `count` examples in all, a chunk at a time: what `make` draws, tokens and targets.

    Example n depends on `make`, the purpose, the seed and n alone.
    """
    for number in range(-(-count // CHUNK)):
        tokens, targets = make(chunk(purpose, seed, number))
        left = count - number * CHUNK
        yield tokens[:left], targets[:left]


def distinct(draws: np.random.Generator, rows: int, size: int, count: int) -> np.ndarray:
    """In each row `count` different numbers below `size`, in random order: (rows, count) int64.

    Robert Floyd's method: work grows with count, not with size (Bentley and Floyd, "Programming
    Pearls: a sample of brilliance", CACM 30(9), 1987).
    """
    chosen = np.empty((rows, count), np.int64)
    for place in range(count):
        last = size - count + place
        drawn = draws.integers(0, last + 1, rows)
        taken = (chosen[:, :place] == drawn[:, None]).any(1)
        chosen[:, place] = np.where(taken, last, drawn)
    return draws.permuted(chosen, axis=1)
