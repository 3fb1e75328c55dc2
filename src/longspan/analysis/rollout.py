"""Attention rollout: contribution of each input token to the output.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", 2020,
https://arxiv.org/abs/2005.00928, section 3. As in `longspan.analysis.span`, the share
a_ts = |w_ts| / sum_s |w_ts| replaces the weight.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attention.weights import Call
from longspan.shapes import Float


@torch.no_grad()
def attention_rollout(calls: Sequence[Call], start: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Return each token's share of the output: start^T prod_l (A_l + I) / 2, last layer first.

    A_l is the mean over heads of the a_ts. A query that attends to nothing keeps its state. The
    product is evaluated from the output backwards, so no matrix is formed.

    Args:
        calls: inputs of each layer's mechanism, first layer first.
        start: distribution over the output's states.
    """
    share = start.double()
    for call in reversed(calls):
        total = sum(weights.abs().sum(-1, dtype=torch.float64) for _, weights in call.columns())
        assert isinstance(total, Tensor)
        empty = (total == 0).double()
        scaled = share[:, None] * (1 - empty) / (total + empty)  # (B, H, T)
        passed = (share[:, None] * empty).mean(1)
        heads = scaled.shape[1]
        for columns, weights in call.columns():
            sizes = weights.abs().double()
            passed[:, columns] += torch.einsum("bht,bhts->bs", scaled, sizes) / heads
        share = (share + passed) / 2
    return share
