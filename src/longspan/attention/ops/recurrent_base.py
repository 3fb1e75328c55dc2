"""Base of mechanisms that are a recurrence of a matrix state; see `recurrence`.

A mechanism says what its queries and keys are, and computes decays and step sizes from the layer's
input, or from its keys, see `gate_input`.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Attention, Inputs, Traits
from longspan.attention.ops.gate_input import GatedAttention, gate_input
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.recurrence import CHUNK, mix, mix_both_ways
from longspan.errors import OptionError

_SMALLEST_NORM = 1e-6  # added to a sum of squares
SMALLEST_STEP, LARGEST_STEP = 1e-3, 0.1  # initial step sizes


def recurrent_traits(paper: str, **others: Any) -> Traits:
    """Return the traits that all recurrences have, and those of one of them."""
    return Traits(
        paper=paper,
        family="linear recurrence",
        cost="T",
        exact=False,
        row_sums="any",
        causal=True,
        ignores_gaps=True,
        carries_positions=True,
        state_size="1",
        **others,
    )


def gated_traits(paper: str, **others: Any) -> Traits:
    """Return the traits of a recurrence whose gates read the layer's input."""
    sizes = ("heads", "head_dim", "width")
    return recurrent_traits(paper, needs_layer_input=True, sizes=sizes, **others)


class RecurrentAttention(Attention):
    """Recurrence of a state (B, H, D, E) in both directions, or from the past.

    Attributes:
        delta: whether a key first removes what the state holds for it.
        channel_decay: whether each channel of the keys has a decay.
    """

    delta: ClassVar[bool] = False
    channel_decay: ClassVar[bool] = False
    loops_over_length = True

    def gates(self, x: Inputs) -> tuple[Tensor | None, Tensor | None]:
        """Return log decays (B or 1, H, T, 1 or D), at most 0, and step sizes (B, H, T).

        Either may be None, for no decay and for ones.
        """
        raise TypeError(f"{type(self).__name__} does not define gates")

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys of the recurrence: by default q / sqrt(D) and k."""
        return q * q.shape[3] ** -0.5, k

    def attend(self, x):
        """Run the recurrence in chunks."""
        arguments = self.arguments(x)
        if self.causal:
            return mix(*arguments, delta=self.delta)[0].to(x.v.dtype)
        return mix_both_ways(*arguments, delta=self.delta).to(x.v.dtype)

    def advance(self, x):
        """Continue the state, whose size is constant."""
        state = None if x.cache is None else x.cache.state["state"]
        out, state = mix(*self.arguments(x), delta=self.delta, state=state)
        return out.to(x.v.dtype), {"state": state}

    def reference(self, x):
        """Apply the formula to one token after another, in one direction or in both."""
        arguments = self.arguments(x)
        out = self._recurrence(*arguments)
        if self.causal:
            return out
        q, k, v, _, beta = arguments
        flipped = (None if y is None else y.flip(2) for y in arguments)
        both = out + self._recurrence(*flipped).flip(2)
        # Without the delta rule both directions read what a token wrote: it counts once.
        twice = (q * k).sum(-1, keepdim=True) * v * (1 if beta is None else beta[..., None])
        return both if self.delta else both - twice

    def _recurrence(self, q, k, v, log_decay, beta):
        state, rows = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), []
        for t in range(k.shape[2]):
            if log_decay is not None:
                state = state * log_decay[:, :, t, :, None].exp()
            old = torch.einsum("bhde,bhd->bhe", state, k[:, :, t]) if self.delta else 0
            step = 1 if beta is None else beta[:, :, t, None]
            state = state + torch.einsum("bhd,bhe->bhde", k[:, :, t], step * (v[:, :, t] - old))
            rows.append(torch.einsum("bhde,bhd->bhe", state, q[:, :, t]))
        return torch.stack(rows, 2)

    def arguments(self, x: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return q, k, v, log decays and step sizes, at least float32; padding decays nothing."""
        q, k = self.features(at_least_float32(x.q), at_least_float32(x.k))
        log_decay, beta = self.gates(x)
        if log_decay is not None and x.key_mask is not None:
            log_decay = log_decay.masked_fill(~x.key_mask[:, None, :, None], 0)
        return q, k, at_least_float32(x.v), log_decay, beta

    def flops(self, T, head_dim):
        """Count reads and writes of the state, products in chunks of 64, and the gates' maps."""
        chunk = min(CHUNK, T)
        inside = 4 * T * chunk * head_dim
        if self.delta:
            # Products of keys, the triangular system of two right sides, and reads by keys.
            inside += 4 * T * chunk * head_dim + 2 * T * head_dim**2
        once = 4 * T * head_dim**2 + inside
        maps = sum(p.numel() for p in self.parameters() if p.dim() == 2)
        heads = self.built_for.get("heads", 1)
        return once * (1 if self.causal else 2) + 2 * T * maps // heads


class DecayingAttention(GatedAttention):
    """Base of recurrences with a decay rate for each head, exp(log_rate)."""

    log_rate: nn.Parameter

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        width: int,
        decay_scale: float = 1.0,
        causal: bool = False,
    ):
        """Create the maps to the gates.

        Args:
            heads: number of heads.
            head_dim: size of a head.
            width: size of the layer's input.
            decay_scale: factor of the decay rates at first: smaller forgets more slowly.
            causal: attend to the past alone.
        """
        super().__init__(heads=heads, head_dim=head_dim, width=width, causal=causal)
        if not 0 < decay_scale < math.inf:
            expected = f"must be > 0 and finite, got {decay_scale}"
            raise OptionError(f"{self.name}: option decay_scale {expected}")
        with torch.no_grad():
            self.log_rate.add_(math.log(decay_scale))


def normalized(x: Tensor) -> Tensor:
    """Return rows of length one; rows of zeros stay zero."""
    return x * (x.square().sum(-1, keepdim=True) + _SMALLEST_NORM).rsqrt()


def per_head(map: nn.Module, x: Inputs) -> Tensor:
    """Return a linear map of the input of the gates, in at least float32, by head (B, H, T, N)."""
    states = map(gate_input(x).to(next(map.parameters()).dtype))
    return at_least_float32(states.unflatten(-1, (x.q.shape[1], -1))).transpose(1, 2)


def draw_rates(heads: int, least: float | int) -> nn.Parameter:
    """Return logarithms of decay rates, drawn uniformly from `least` to 16."""
    return nn.Parameter(torch.empty(heads).uniform_(least, 16).log())


def draw_step_bias(count: int) -> nn.Parameter:
    """Return numbers whose softplus are step sizes, drawn uniformly in their logarithm."""
    low, high = math.log(SMALLEST_STEP), math.log(LARGEST_STEP)
    step = torch.empty(count).uniform_(low, high).exp()
    return nn.Parameter(step + (-torch.expm1(-step)).log())


def softplus_decay(x: Tensor, bias: Tensor, log_rate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log decay -exp(log_rate) softplus(x + bias), and the softplus.

    Args:
        x: numbers (B, H, T, 1 or D).
        bias: (H, 1 or D).
        log_rate: (H,).
    """
    step = F.softplus(x + at_least_float32(bias)[:, None])
    return -at_least_float32(log_rate).exp()[:, None, None] * step, step
