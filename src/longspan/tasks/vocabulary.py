"""Comparison of the token ids of two tasks, or of a tokenizer and a task."""

from collections.abc import Sequence

import numpy as np

from longspan.tasks.base import Task


def describe_other_tokens(there: Task, here: Task) -> str | None:
    """Return how many ids of both tasks are different tokens, with an example; None: none.

    The tasks must be open. Ids that only one of them has are not compared.
    """
    ids = np.arange(1, min(there.vocab_size, here.vocab_size))  # without padding
    return describe_other_symbols(there.ids_to_tokens(ids), here)


def describe_other_symbols(there: Sequence[str], here: Task) -> str | None:
    """Return how many ids of a task are other tokens than those of a model; see above.

    Args:
        there: token of each id of the model, from 1 on.
        here: open task.
    """
    ids = np.arange(1, min(len(there) + 1, here.vocab_size))
    pairs = zip(ids, here.ids_to_tokens(ids), there[: len(ids)], strict=True)
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    if not differing:
        return None
    i, one, other = differing[0]
    return (
        f"{len(differing)} ids of its vocabulary are other tokens than those of the model, such as "
        f"{i}: {one!r} here, {other!r} there"
    )
