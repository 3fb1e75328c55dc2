"""Random draws of generated datasets: a seed for each chunk, sampling without replacement."""

from collections.abc import Callable, Iterator

import numpy as np

from longspan.errors import OptionError

MAX_IDS = 1 << 16  # tokens are stored as uint16
CHUNK_SIZE = 256  # examples drawn from one seed

TokensAndTargets = tuple[np.ndarray, np.ndarray]  # both (rows, length)


def random_stream(*words: int) -> np.random.Generator:
    """Return the random numbers of a stream; those of other words are independent."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def check_vocab_size(size: int, largest: str) -> None:
    """Check that token ids fit into uint16.

    Args:
        size: number of token ids.
        largest: the option to lower, for the message.

    Raises:
        OptionError: they do not fit.
    """
    if size > MAX_IDS:
        raise OptionError(f"{size} token ids; expected at most {MAX_IDS}, lower {largest}")


def generate_chunks(
    purpose: str, seed: int, count: int, draw: Callable[[np.random.Generator], TokensAndTargets]
) -> Iterator[TokensAndTargets]:
    """Yield `count` examples in chunks of up to `CHUNK_SIZE`.

    Example n depends only on `draw`, the purpose, the seed and n. The target of a token is 0 if it
    is not scored and c + 1 if its class is c.

    Args:
        purpose: name of the stream, the task and the split; two streams share no draws.
        seed: seed of the data.
        count: number of examples.
        draw: returns the tokens and targets of a whole chunk.
    """
    for number in range(-(-count // CHUNK_SIZE)):
        tokens, targets = draw(random_stream(seed, number, *purpose.encode()))
        left = count - number * CHUNK_SIZE
        yield tokens[:left], targets[:left]


def sample_distinct(generator: np.random.Generator, rows: int, size: int, count: int) -> np.ndarray:
    """Sample `count` distinct numbers below `size` for each row, in random order: (rows, count).

    Robert Floyd's method: the work grows with `count`, not with `size` (Bentley and Floyd,
    "Programming Pearls: a sample of brilliance", CACM 30(9), 1987).
    """
    numbers = np.empty((rows, count), np.int64)
    for column in range(count):
        last = size - count + column
        draws = generator.integers(0, last + 1, rows)
        is_taken = (numbers[:, :column] == draws[:, None]).any(1)
        numbers[:, column] = np.where(is_taken, last, draws)
    return generator.permuted(numbers, axis=1)
