"""How far a mechanism looks: the mean distance of what it attends to, and attention rollout.

Span: Tay et al., "Long Range Arena", 2021, section 3.4. Rollout: Abnar and Zuidema, "Quantifying
Attention Flow in Transformers", 2020, https://arxiv.org/abs/2005.00928, section 3.

Weights may be implicit and negative, so a_ts = |w_ts| / sum_s |w_ts| stands for them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.analysis.weights import Call
from longspan.shapes import Float


class Spans(NamedTuple):
    """Of one layer, for each sample of a batch."""

    span: Float[Tensor, "B H"]  # tokens; NaN for a sample without any attended token
    negative: Float[Tensor, "B H"]  # share of the absolute weights


def spans(call: Call, special: int = 0) -> Spans:
    """The span of each head: the mean over its real queries t of sum_s a_ts |t - s|.

    Args:
        call: what the mechanism was given.
        special: so many states before the input are neither queries nor keys.
    """
    B, H, T, _ = call.q.shape
    device = call.q.device
    far, total, negative = torch.zeros(3, B, H, T, dtype=torch.float64, device=device)
    own = torch.arange(T, device=device)[:, None] + call.k.shape[2] - T
    for some, weights in call.columns():
        place = torch.arange(some.start, some.stop, device=device)
        sizes = weights.abs()
        sizes[..., place < special] = 0
        far += (sizes * (own - place).abs()).sum(-1)
        total += sizes.sum(-1)
        negative += sizes.where(weights < 0, 0).sum(-1)
    counts = call.real[:, None] & (total > 0)
    counts[..., :special] = False
    distance = (far / total).where(counts, 0).sum(-1) / counts.sum(-1)
    share = negative.where(counts, 0).sum(-1) / total.where(counts, 0).sum(-1)
    return Spans(distance, share)


def uniform_span(lengths: Sequence[int]) -> float:
    """The span of attention that is the same everywhere, mean over inputs of these lengths."""
    return sum((n * n - 1) / (3 * n) for n in lengths) / len(lengths)


def rollout(calls: Sequence[Call], start: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """How much of each token reaches the output: start^T prod_l (A_l + I) / 2, last layer first.

    A_l is the mean over heads of the a_ts; a query that attends to nothing keeps what it has. No
    matrix is held: the product is followed back from the output.

    Args:
        calls: what each layer's mechanism was given, first layer first.
        start: the shares of the output's states that are followed back, summing to one.
    """
    share = start.double()
    for call in reversed(calls):
        total = sum(weights.abs().sum(-1, dtype=torch.float64) for _, weights in call.columns())
        assert isinstance(total, Tensor)
        lost = (total == 0).double()
        each = share[:, None] * (1 - lost) / (total + lost)  # (B, H, T)
        passed = (share[:, None] * lost).mean(1)
        for some, weights in call.columns():
            passed[:, some] += (
                torch.einsum("bht,bhts->bs", each, weights.abs().double()) / (each.shape[1])
            )
        share = (share + passed) / 2
    return share
