"""Attention span: mean distance between a query and the keys it attends to.

Definition: Tay et al., "Long Range Arena", 2021, section 3.4. Weights can be implicit and negative,
so the share a_ts = |w_ts| / sum_s |w_ts| replaces the weight.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.weights import Call
from longspan.shapes import Float


class Spans(NamedTuple):
    """Attention spans of one layer, for each sample of a batch."""

    span: Float[Tensor, "B H"]  # tokens; NaN if the sample attends to nothing
    negative: Float[Tensor, "B H"]  # share of the absolute weights that is negative


@torch.no_grad()
def compute_spans(call: Call, num_summary: int = 0) -> Spans:
    """Return the span of each head: the mean over real queries t of sum_s a_ts |t - s|.

    Args:
        call: inputs of the mechanism.
        num_summary: number of leading summary tokens, which count neither as queries nor as keys.
    """
    B, H, T, _ = call.x.q.shape
    device = call.x.q.device
    distance, total, negative = torch.zeros(3, B, H, T, dtype=torch.float64, device=device)
    queries = torch.arange(T, device=device)[:, None] + call.x.k.shape[2] - T
    for columns, weights in call.columns():
        keys = torch.arange(columns.start, columns.stop, device=device)
        sizes = weights.abs()
        sizes[..., keys < num_summary] = 0
        distance += (sizes * (queries - keys).abs()).sum(-1)
        total += sizes.sum(-1)
        negative += sizes.where(weights < 0, 0).sum(-1)
    counted = call.real[:, None] & (total > 0)
    counted[..., :num_summary] = False
    span = (distance / total).where(counted, 0).sum(-1) / counted.sum(-1)
    share = negative.where(counted, 0).sum(-1) / total.where(counted, 0).sum(-1)
    return Spans(span, share)


def uniform_span(lengths: Sequence[int], causal: bool = False) -> float:
    """Return the span of uniform attention, averaged over inputs of these lengths.

    Args:
        lengths: tokens of each input.
        causal: whether a query attends to the keys up to its own alone.
    """
    spans = ((n - 1) / 4 if causal else (n * n - 1) / (3 * n) for n in lengths)
    return sum(spans) / len(lengths)
