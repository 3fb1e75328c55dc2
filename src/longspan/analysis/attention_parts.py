"""Attention of language models to their memories and to the segment of the query, by layer.

Rae et al. 2020 (https://arxiv.org/abs/1911.05507) ask how much attention falls on the
compressed memory, the memory and the sequence, each in six buckets.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longspan.analysis.layers import TOKENS_PER_BATCH
from longspan.attention import Inputs
from longspan.attention.ops.segments import SegmentAttention
from longspan.attention.weights import Call
from longspan.models import LongspanPreTrainedModel
from longspan.models.attention_layer import SelfAttention
from longspan.tasks.language.segments import Segments

BUCKETS = 6  # of each part
Shares = dict[str, float]
BucketShares = dict[str, list[float]]  # the oldest keys first


def memory_layers(model: nn.Module) -> list[SegmentAttention]:
    """Return the mechanisms of the layers that divide sequences into segments with a memory."""
    mechanisms = (layer.mechanism for layer in _attention_layers(model))
    return [each for each in mechanisms if isinstance(each, SegmentAttention)]


def memory_reach(layers: Sequence[SegmentAttention]) -> int:
    """Return how many tokens a segment and the memories of all layers reach back in all.

    Memories of the layers follow each other: a token in a memory has read that of the layer below.
    """
    return max((x.segment for x in layers), default=0) + sum(x.memory_tokens for x in layers)


def first_full(layers: Sequence[SegmentAttention]) -> int:
    """Return the first token from which on the memories of all layers are full."""
    return max(x.first_full for x in layers)


def window_with_memory(layers: Sequence[SegmentAttention]) -> int:
    """Return the tokens of a sequence whose last segment has full memories."""
    return first_full(layers) + max(x.segment for x in layers)


def shares_by_part(buckets: Sequence[BucketShares]) -> list[Shares]:
    """Return the share of the attention weight on each part of the keys, for each layer."""
    return [{name: math.fsum(shares) for name, shares in layer.items()} for layer in buckets]


@torch.no_grad()
def shares_by_bucket(
    model: LongspanPreTrainedModel, windows: Segments, rows: np.ndarray
) -> list[BucketShares]:
    """Return the share of the attention weight on the buckets of each part of the keys, by layer.

    It is averaged over heads and over the tokens behind the first full memory; a layer whose
    mechanism has no memory has no parts.

    Args:
        model: model in evaluation mode.
        windows: windows of held-out documents.
        rows: windows to read, all equally long.
    """
    windows.check(rows)
    layers, first = _attention_layers(model), first_full(memory_layers(model))
    sums: list[dict[str, Tensor]] = [{} for _ in layers]
    tokens = np.stack([windows.tokens(row)[:-1] for row in rows]).astype(np.int64)

    def add(module: nn.Module, args: tuple, kwargs: dict[str, Any], out: Tensor) -> None:
        call = Call.of_arguments(module, args, kwargs)
        if not isinstance(call.attention, SegmentAttention):
            return  # without memory
        x = Inputs(*call.x[:3], call.real_keys, layer_input=call.x.layer_input)
        for name, weights in call.attention.bucket_weights(x, BUCKETS).items():
            layer_sums = sums[places[call.attention]]
            total = weights[:, :, first:].double().mean((1, 2)).sum(0).cpu()
            layer_sums[name] = layer_sums[name] + total if name in layer_sums else total

    places = {layer.mechanism: number for number, layer in enumerate(layers)}
    size = max(1, TOKENS_PER_BATCH // tokens.shape[1])
    with contextlib.ExitStack() as hooks:
        for mechanism in places:
            handle = mechanism.register_forward_hook(add, with_kwargs=True)
            hooks.callback(handle.remove)
        for part in torch.from_numpy(tokens).split(size):
            model.base_model(input_ids=part.to(model.device), use_cache=False)
    return [{name: (x / len(rows)).tolist() for name, x in layer.items()} for layer in sums]


def _attention_layers(model: nn.Module) -> list[SelfAttention]:
    return [module for module in model.modules() if isinstance(module, SelfAttention)]
