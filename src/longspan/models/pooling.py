"""Pooling: one state for an input, made of the states of its tokens.

Attention pooling is that of Yang et al. 2016, "Hierarchical Attention Networks for Document
Classification" (https://aclanthology.org/N16-1174), with one linear map as the scores.
"""

import torch
from torch import Tensor, nn

from longspan.attention.masking import apply_mask
from longspan.attention.ops.precision import at_least_float32
from longspan.models.config import LongspanConfig
from longspan.shapes import Bool, Float


class Pooling(nn.Module):
    """Pooling that a configuration names; "attention" has weights, the others have none."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        self.kind = config.pooling
        size = config.output_size
        self.scores = nn.Linear(size, 1, bias=False) if self.kind == "attention" else None

    def forward(
        self, x: Float[Tensor, "B T M"], mask: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B M"]:
        """Return one state for each row; of a row without tokens zero, or the state of a padding.

        Args:
            x: states of the tokens, zero at padded positions.
            mask: True at real tokens; None: all are.
        """
        if self.kind == "mean":
            return x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        if self.kind == "max":
            if mask is None:
                return x.amax(1)
            return apply_mask(_lower_padding(x, mask[..., None]).amax(1), mask.any(1, keepdim=True))
        if self.kind == "attention":
            return (self._attention(x, mask)[:, None].to(x.dtype) @ x)[:, 0]
        if mask is None:
            return x[:, -1 if self.kind == "last" else 0]
        return x[torch.arange(len(x), device=x.device), self._token(x, mask)]

    def shares(
        self, x: Float[Tensor, "B T M"], mask: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T"]:
        """Return the share of each token in the pooled state; of a row with tokens their sum is 1.

        Of a maximum it is the share of the features whose largest value the token has.
        """
        if self.kind == "attention":
            return self._attention(x, mask)
        if self.kind == "mean":
            real = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
            return real / real.sum(1, keepdim=True).clamp(min=1)
        if self.kind == "max":
            chosen = (x if mask is None else _lower_padding(x, mask[..., None])).argmax(1)
        else:
            chosen = self._token(x, mask)[:, None]
        counts = x.new_zeros(x.shape[:2]).scatter_add_(1, chosen, x.new_ones(chosen.shape))
        shares = counts / chosen.shape[1]
        return shares if mask is None else shares * mask

    def _attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the weights (B, T) of attention pooling, zero at padding."""
        assert self.scores is not None
        scores = at_least_float32(self.scores(x)[..., 0])
        if mask is None:
            return scores.softmax(1)
        return _lower_padding(scores, mask).softmax(1) * mask

    def _token(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the index (B,) of the token whose state is the pooled one."""
        is_last = self.kind == "last"
        if mask is None:
            return x.new_full((len(x),), x.shape[1] - 1 if is_last else 0, dtype=torch.long)
        numbers = torch.arange(x.shape[1], device=x.device)
        return torch.where(mask, numbers, 0).argmax(1) if is_last else mask.int().argmax(1)


def _lower_padding(x: Tensor, mask: Tensor) -> Tensor:
    """Replace padding by the lowest number of the dtype."""
    return x.masked_fill(~mask, torch.finfo(x.dtype).min)
