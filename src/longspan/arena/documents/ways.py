"""Ways to read a long document: whole, in chunks that are encoded apart, in part, or as words."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from longspan.arena.one_run import RunChoices
from longspan.errors import OptionError
from longspan.tasks.documents.coverage import CHUNK, CHUNKED

# Mechanism of a way, None for that of the run, and fields to override, by dotted name.
Way = tuple[str | None, Mapping[str, Any]]


def _chunks(pooling: str) -> Way:
    """Return chunks with a pooling; the first token, that of checkpoints, reads one chunk alone."""
    name, options = CHUNKED
    fields = {f"mechanism.{option}": x for option, x in options.items()}
    return name, {**fields, "model.pooling": pooling}


WAYS: dict[str, Way] = {
    "whole": (None, {}),
    "chunks, mean": _chunks("mean"),
    "chunks, max": _chunks("max"),
    "chunks, attention": _chunks("attention"),
    "head": (None, {"task.length": CHUNK}),
    "head and tail": (None, {"task.length": CHUNK, "task.truncation": "head_tail"}),
    "words": (None, {"model.num_hidden_layers": 0}),  # a control: the mean of embeddings
}
_REPLACED = ("task.length", "model.num_hidden_layers")  # of the run, where a way has its own


def compare_ways(choices: RunChoices, length: int, *, is_new: bool) -> list[RunChoices]:
    """Return the choices of a run for each way to read its documents.

    Args:
        choices: choices of the run that reads them whole.
        length: tokens that it reads.
        is_new: whether the model is new; the layers of a checkpoint are not left out.

    Raises:
        OptionError: that is no more than one chunk, so that every way reads the same, or the
            choices have a field that the ways differ in.
    """
    fields = dict.fromkeys(field for _, changes in WAYS.values() for field in changes)
    given = [x for x in fields if x in choices.changes and x not in _REPLACED]
    if given:
        raise OptionError(
            f"--compare sets {', '.join(given)} in some of its rows; omit it, or --compare"
        )
    if length <= CHUNK:
        raise OptionError(
            f"--compare reads documents whole, in chunks of {CHUNK} tokens, and cut to {CHUNK}, "
            f"the same for runs on {length} tokens; omit it, or pass --set task.length=N"
        )
    return [
        dataclasses.replace(
            choices,
            mechanism=mechanism or choices.mechanism,
            changes={**choices.changes, **changes},
        )
        for mechanism, changes in WAYS.values()
        if is_new or "model.num_hidden_layers" not in changes
    ]
