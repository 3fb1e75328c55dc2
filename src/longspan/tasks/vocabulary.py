"""Comparison of the token ids of two tasks."""

import numpy as np

from longspan.tasks.base import Task


def describe_other_tokens(there: Task, here: Task) -> str | None:
    """Return how many ids of both tasks are different tokens, with an example; None: none.

    The tasks must be open. Ids that only one of them has are not compared.
    """
    ids = np.arange(1, min(there.vocab_size, here.vocab_size))  # without padding
    pairs = zip(ids, here.ids_to_tokens(ids), there.ids_to_tokens(ids), strict=True)
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    if not differing:
        return None
    i, one, other = differing[0]
    return (
        f"{len(differing)} ids of its vocabulary are other tokens than those of the model, such as "
        f"{i}: {one!r} here, {other!r} there"
    )
