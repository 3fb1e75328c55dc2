"""Comparison of the token ids of two tasks, or of a tokenizer and a task."""

from collections.abc import Sequence

import numpy as np

from longspan.tasks.base import Task


def describe_other_tokens(model_task: Task, task: Task) -> str | None:
    """Return how many ids of both tasks are different tokens, with an example; None: none.

    The tasks must be open. Ids that only one of them has are not compared.
    """
    ids = np.arange(1, min(model_task.vocab_size, task.vocab_size))  # without padding
    return describe_other_symbols(model_task.ids_to_tokens(ids), task)


def describe_other_symbols(symbols: Sequence[str], task: Task) -> str | None:
    """Return how many ids of a task are other tokens than those of a model; see above.

    Args:
        symbols: token of each id of the model, from 1 on.
        task: open task.
    """
    ids = np.arange(1, min(len(symbols) + 1, task.vocab_size))
    pairs = zip(ids, task.ids_to_tokens(ids), symbols[: len(ids)], strict=True)
    differences = [pair for pair in pairs if pair[1] != pair[2]]
    if not differences:
        return None
    i, one, other = differences[0]
    return (
        f"{len(differences)} ids of its vocabulary are other tokens than those of the model, such "
        f"as {i}: {one!r} here, {other!r} there"
    )
