"""Streams of the synthetic generators, by name."""

import functools

import numpy as np

from longspan.data.sampling import generate_chunks
from longspan.tasks.synthetic import (
    compression,
    context_recall,
    copying,
    duplication,
    memorization,
    recall,
)

GENERATORS = {
    "recall": recall.draw_chunk,
    "copying": copying.draw_chunk,
    "compression": compression.draw_chunk,
    "duplication": duplication.draw_chunk,
    "memorization": memorization.draw_chunk,
}


def chunks(name, shape, count, seed=0, stream="train"):
    """Return the tokens and the targets of the first examples of a stream, in chunks."""
    if name in GENERATORS:
        draw_chunk = functools.partial(GENERATORS[name], shape)
    else:
        draw_chunk = functools.partial(context_recall.draw_chunk, shape, stream)
    return generate_chunks(f"{name} {stream}", seed, count, draw_chunk)


def draw(name, shape, count, **options):
    """Return the tokens and the targets of the first examples of a stream."""
    parts = chunks(name, shape, count, **options)
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
