"""Short convolution of queries, keys and values over the tokens, before positions are added.

    y_t = activation(sum_j w_j * x_{t - before + j})        j = 0 .. taps - 1

x is the output of one projection, zero at padding and beyond both ends; each channel has its own
weights w. A causal layer reads the token and those before it (before = taps - 1), any other layer
both sides (before = taps // 2). So et al. 2021, "Primer" (https://arxiv.org/abs/2109.08668), and
the delta rules of Qwen3-Next and Kimi Linear, which apply SiLU after it.

Weights start uniform within 1 / sqrt(taps), as those of torch's convolution (compared in
docs/development/decisions.md). Positions and global tokens that a mechanism projects itself are not
convolved.

On CPU the sum of shifted products takes 0.4 to 1.2 of the time of torch's convolution, forward and
backward, and has exact gradients; those of torch's kernel have errors, see
`longspan.attention.ops.convolution`.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from longspan.attention import Attention, Cache
from longspan.attention.cache import extend_tensor
from longspan.models.config import LongspanConfig
from longspan.models.row_groups import GroupedCache
from longspan.shapes import Float


class ShortConvolution(nn.Module):
    """Convolution of the outputs of one projection, each channel on its own."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        taps = config.short_convolution
        self.before = taps - 1 if config.is_decoder else taps // 2
        self.after = taps - 1 - self.before
        self.has_activation = config.short_convolution_activation == "silu"
        self.weight = nn.Parameter(torch.empty(config.all_head_size, 1, taps))
        self.initialize()

    def initialize(self) -> None:
        """Draw the weights as torch's convolution draws them."""
        bound = self.weight.shape[2] ** -0.5
        initialization.uniform_(self.weight, -bound, bound)

    def forward(
        self, x: Float[Tensor, "B T C"], past: Float[Tensor, "B N C"] | None = None
    ) -> Float[Tensor, "B T C"]:
        """Convolve the tokens.

        Args:
            x: tokens, zero at padding.
            past: the `before` tokens before them; None: there are none.
        """
        length = x.shape[1]
        x = F.pad(x, (0, 0, self.before, self.after)) if past is None else torch.cat((past, x), 1)
        first, *rest = self.weight[:, 0].to(x.dtype).unbind(-1)
        out = x[:, :length] * first
        for shift, tap in enumerate(rest, start=1):
            out = torch.addcmul(out, x[:, shift : shift + length], tap)
        return F.silu(out) if self.has_activation else out


@dataclasses.dataclass(frozen=True)
class ConvolvedCache:
    """Cache of a layer with short convolutions, with the interface of one cache of its mechanism.

    Attributes:
        mechanism: cache of the mechanism.
        tokens: outputs of each projection for the last tokens (B, N, C), zero before the first one.
            While steps are recorded, their tokens are added.
        reach: number of tokens that the next one reads, N of a cache without record.
    """

    mechanism: Cache | GroupedCache
    tokens: tuple[Tensor, ...]
    reach: int

    @property
    def length(self) -> int:
        """Number of tokens seen, padding included."""
        return self.mechanism.length

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the mechanism's cache, the number of rows first."""
        return self.mechanism.shape

    @property
    def device(self) -> torch.device:
        """Device of the state."""
        return self.tokens[0].device

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors of the mechanism and of the convolutions."""
        tokens = {f"convolution.{i}": x for i, x in enumerate(self.tokens)}
        return tokens | self.mechanism.state

    @property
    def read_next(self) -> list[Tensor]:
        """Tokens that the next one reads."""
        return [x[:, x.shape[1] - self.reach :] for x in self.tokens]

    def detach(self) -> "ConvolvedCache":
        """Return the cache without autograd history."""
        return self._map(self.mechanism.detach(), torch.Tensor.detach)

    def to(self, device: torch.device | str) -> "ConvolvedCache":
        """Return the cache on a device."""
        return self._map(self.mechanism.to(device), lambda x: x.to(device))

    def select_rows(self, rows: Tensor) -> "ConvolvedCache":
        """Return the cache of some rows, in any order, possibly repeated."""
        mechanism = self.mechanism.select_rows(rows)
        return self._map(mechanism, lambda x: x.index_select(0, rows.to(x.device).long()))

    def rollback(self, tokens: int) -> "ConvolvedCache | None":
        """Return the cache without the last tokens; see `Cache.rollback`."""
        mechanism = self.mechanism.rollback(tokens)
        if mechanism is None:
            return None
        return self._map(mechanism, lambda x: x[:, : x.shape[1] - tokens])

    def reset(self, attention: Attention, rows: Tensor) -> "ConvolvedCache":
        """Clear the cached tokens of some rows; see `Attention.reset`."""
        old = self.mechanism
        new = attention.reset(old, rows) if isinstance(old, Cache) else old.reset(attention, rows)
        return self._map(new, lambda x: x.masked_fill(rows[:, None, None], 0))

    def _map(
        self, mechanism: Cache | GroupedCache, change: Callable[[Tensor], Tensor]
    ) -> "ConvolvedCache":
        """Return another cache of the mechanism, which no recorded step made, and its tokens."""
        changed = ConvolvedCache(mechanism, tuple(map(change, self.tokens)), self.reach)
        return dataclasses.replace(changed, tokens=tuple(changed.read_next))


LayerCache = Cache | GroupedCache | ConvolvedCache


def extend_cache(
    past: ConvolvedCache | None,
    mechanism: Cache | GroupedCache,
    new: Sequence[Tensor],
    reach: int,
    *,
    record: bool,
) -> ConvolvedCache:
    """Return the cache of a layer after new tokens.

    Args:
        past: cache before them, or None.
        mechanism: cache of the mechanism after them.
        new: outputs of each projection for them, zero at padding.
        reach: number of tokens that the next one reads.
        record: whether all of the new tokens are held, so that `rollback` can remove them.
    """
    old = [x.new_zeros(len(x), reach, x.shape[2]) for x in new] if past is None else past.tokens
    if record:
        tokens = [extend_tensor(x, y, 1) for x, y in zip(old, new, strict=True)]
    else:
        joined = (torch.cat((x, y[:, -reach:]), 1) for x, y in zip(old, new, strict=True))
        # A view would hold the memory of all tokens.
        tokens = [x[:, -reach:].clone() for x in joined]
    return ConvolvedCache(mechanism, tuple(tokens), reach)
