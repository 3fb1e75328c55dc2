"""Streams of the synthetic generators, by name."""

import functools

import numpy as np

from longspan.data.sampling import generate_chunks
from longspan.tasks import TASKS


def chunks(name, shape, count, seed=0, stream="train"):
    """Return the tokens and the targets of the first examples of a stream, in chunks."""
    draw_chunk = functools.partial(TASKS[name](shape).draw_chunk, stream)
    return generate_chunks(f"{name} {stream}", seed, count, draw_chunk)


def draw(name, shape, count, **options):
    """Return the tokens and the targets of the first examples of a stream."""
    parts = chunks(name, shape, count, **options)
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
