"""Global tokens of texts: an option of the task says which tokens attend to all others."""

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field

from longspan.bounds import LONGEST
from longspan.shapes import Bool
from longspan.tasks.batching import Batch, find_mask, mask_name, text_names

PassageLength = Annotated[int, Field(ge=1, lt=LONGEST)]
GlobalTokens = Literal["none", "first"] | PassageLength


def global_positions(option: GlobalTokens, length: int) -> Bool[torch.Tensor, " T"]:
    """Return which positions of a text are global.

    Args:
        option: "none"; "first"; or the length of a passage, whose first token is global.
        length: number of positions.
    """
    positions = torch.arange(length)
    if option == "none":
        return torch.zeros(length, dtype=torch.bool)
    return positions == 0 if option == "first" else positions % option == 0


def mark_global_tokens(batch: Batch, option: GlobalTokens) -> Batch:
    """Return a batch with the global tokens of its texts marked; padding is never global."""
    if option == "none":
        return batch
    inputs = dict(batch.inputs)
    for name in text_names(batch.inputs):
        mask = find_mask(batch.inputs, name)
        is_global = mask & global_positions(option, mask.shape[1])
        inputs[mask_name(name, "global_attention_mask")] = is_global
    return dataclasses.replace(batch, inputs=inputs)
