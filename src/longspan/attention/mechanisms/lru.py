"""Linear recurrent unit, Orvieto et al. 2023 (https://arxiv.org/abs/2303.06349): a baseline.

    x_t = lambda x_{t-1} + gamma v_t,   out_t = Re(c . x_t) + d v_t
    lambda = exp(-exp(nu) + i exp(theta)),   gamma = sqrt(1 - |lambda|^2) at first

Each head has N complex `states`, which run over each of its channels. |lambda| < 1 for any value of
the parameter nu, so the recurrence is stable. The ring r_min <= |lambda| <= r_max and the phases up
to 2 pi are where the N numbers are drawn. Without a causal mask a second recurrence runs backward,
with a c of its own; both include v_t. Queries and keys are not read, and padding counts as zeros:
time passes there.

The weight of v_s in out_t is a sum of N exponentials of t - s. Chunks of 64 tokens multiply the
matrix of these weights, and N sums carry the past from one chunk to the next.

Differences: the paper's B and C are dense and complex. Here the layer's projection of the values
is the real part of B, its output projection that of C, and N numbers c of each head are
complex. A dense LRU of n numbers is one of 2 n heads (a test shows it). c and d start as normal
numbers, c over sqrt(N).
"""

import math

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, Traits, register
from longspan.attention.ops.precision import at_least_float32
from longspan.attention.ops.recurrence import CHUNK
from longspan.attention.option_types import PositiveInt
from longspan.errors import OptionError


@register("lru", size_option="states")
class LinearRecurrentUnit(Attention):
    """Recurrence with a complex diagonal, which reads the values alone."""

    traits = Traits(
        paper="Orvieto et al. 2023, https://arxiv.org/abs/2303.06349",
        family="linear recurrence",
        cost="T",
        exact=False,
        row_sums="any",
        causal=True,
        inputs="v",
        carries_positions=True,
        state_size="1",
        sizes=("heads",),
    )
    small_options = {"states": 4, "r_min": 0.3, "r_max": 0.9}

    def __init__(
        self,
        *,
        heads: int,
        states: PositiveInt = 32,
        r_min: float = 0.9,
        r_max: float = 0.999,
        causal: bool = False,
    ):
        """Draw the parameters of each head.

        Args:
            states: complex numbers of a head, N.
            r_min: smallest |lambda| at first.
            r_max: largest |lambda| at first.
        """
        super().__init__()
        if not 0 <= r_min <= r_max <= 1 or r_min == 1 or r_max == 0:
            expected = f"0 <= r_min <= r_max <= 1, got r_min={r_min} and r_max={r_max}"
            raise OptionError(f"lru: options must be {expected}")
        self.causal, self.states, self.built_for = causal, states, {"heads": heads}
        self.loops_over_length = True
        # Uniform on the ring. The interval excludes 0 and 1, where nu and theta are infinite.
        radius, phase = torch.empty(2, heads, states).uniform_(1e-6, 1 - 1e-6).unbind()
        decay = -0.5 * torch.log(radius * (r_max**2 - r_min**2) + r_min**2)
        self.nu = nn.Parameter(decay.log())
        self.theta = nn.Parameter((2 * math.pi * phase).log())
        self.log_gamma = nn.Parameter(torch.log1p(-(-2 * decay).exp()) / 2)
        directions = 1 if causal else 2
        self.c = nn.Parameter(torch.randn(directions, 2, heads, states) / states**0.5)
        self.d = nn.Parameter(torch.randn(heads))

    def attend(self, x):
        """Run forward, and backward unless causal."""
        v = at_least_float32(x.v)
        out = self._run(v, 0, None)[0]
        if not self.causal:
            out = out + self._run(v.flip(2), 1, None)[0].flip(2)
        return (out + self._skip(v)).to(x.v.dtype)

    def advance(self, x):
        """Continue from the states, whose number is constant."""
        v = at_least_float32(x.v)
        out, states = self._run(v, 0, None if x.cache is None else x.cache.state["states"])
        return (out + self._skip(v)).to(x.v.dtype), {"states": states}

    def _skip(self, v: Tensor) -> Tensor:
        return self.d.to(v.dtype)[:, None, None] * v

    def _powers(self, count: int) -> tuple[Tensor, Tensor]:
        """Return real and imaginary parts of lambda^0 ... lambda^(count - 1), (H, N, count).

        In float64: phases of high powers exceed the precision of float32.
        """
        nu, theta = self.nu.double()[..., None], self.theta.double()[..., None]
        time = torch.arange(count, device=nu.device, dtype=nu.dtype)
        size, phase = (-time * nu.exp()).exp(), time * theta.exp()
        return size * phase.cos(), size * phase.sin()

    def _run(self, v: Tensor, direction: int, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run one direction over values (B, H, T, E), float32 or wider, without the term d v.

        Returns:
            Rows (B, H, T, E), and real and imaginary parts of x after the last token
            (B, H, 2 N, E), of which `states` are those before the first, or None.
        """
        (B, H, T, E), chunk = v.shape, min(CHUNK, v.shape[2])
        if T % chunk:  # tokens beyond whole chunks are a shorter one
            whole, rest = v.split([T - T % chunk, T % chunk], 2)
            out, states = self._run(whole, direction, states)
            last, states = self._run(rest, direction, states)
            return torch.cat([out, last], 2), states
        within, entering, leaving, step = self._matrices(chunk, direction, v.dtype)
        rows = v.unflatten(2, (-1, chunk)).permute(1, 3, 0, 2, 4).flatten(2)  # H chunk (B n E)
        out, added = (torch.cat([within, leaving], 1) @ rows).split([chunk, 2 * self.states], 1)
        if states is None:
            states = v.new_zeros(B, H, 2 * self.states, E)
        x, before = states.permute(1, 2, 0, 3), []
        for more in added.unflatten(2, (B, -1, E)).unbind(3):
            before.append(x)
            x = _rotate(x, step) + more
        out = out + entering @ torch.stack(before, 3).flatten(2)
        out = out.unflatten(2, (B, -1, E)).permute(2, 0, 3, 1, 4).flatten(2, 3)
        return out, x.permute(2, 0, 1, 3).contiguous()

    def _matrices(self, chunk: int, direction: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the maps of a chunk.

        Returns:
            Values to rows (H, chunk, chunk), states before the chunk to rows (H, chunk, 2 N),
            values to the states after it (H, 2 N, chunk), and lambda^chunk (2, H, N).
        """
        real, imaginary = self._powers(chunk + 1)
        gamma, (a, b) = (
            self.log_gamma.double().exp()[..., None],
            self.c[direction].double()[..., None],
        )
        # Re(c lambda^n) for n = 0 ... chunk, and the same of the imaginary part of x.
        of_real, of_imaginary = a * real - b * imaginary, -(a * imaginary + b * real)
        weights = (gamma * of_real).sum(1)  # of t - s
        i = torch.arange(chunk, device=weights.device)
        gap = i[:, None] - i
        within = weights[:, gap.clamp(min=0)] * (gap >= 0)
        entering = torch.cat([of_real, of_imaginary], 1)[..., 1:].mT
        leaving = torch.cat([gamma * real, gamma * imaginary], 1)[..., :-1].flip(-1)
        step = torch.stack([real[..., -1], imaginary[..., -1]])
        return within.to(dtype), entering.to(dtype), leaving.to(dtype), step.to(dtype)

    def reference(self, x):
        """Run the recurrence token by token, in complex numbers."""
        size = torch.exp(-self.nu.exp())
        lam = torch.polar(size, self.theta.exp())
        total = self.d[:, None, None] * x.v
        for direction in range(len(self.c)):
            v = x.v.flip(2) if direction else x.v
            c = torch.complex(*self.c[direction])
            state, rows = torch.zeros_like(lam), []
            state = state[:, :, None] * v[:, :, :1]
            for t in range(v.shape[2]):
                state = lam[..., None] * state + self.log_gamma.exp()[..., None] * v[:, :, t, None]
                rows.append((c[..., None] * state).sum(2).real)
            out = torch.stack(rows, 2)
            total = total + (out.flip(2) if direction else out)
        return total

    def flops(self, T, head_dim):
        """Count the products of a chunk with the matrices of each direction."""
        chunk, directions = min(CHUNK, T), len(self.c)
        return directions * 2 * T * head_dim * (chunk + 4 * self.states) + 2 * T * head_dim


def _rotate(states: Tensor, factor: Tensor) -> Tensor:
    """Multiply states (H, 2 N, B, E) by complex numbers (2, H, N)."""
    real, imaginary = states.chunk(2, 1)
    a, b = factor[..., None, None]
    return torch.cat([a * real - b * imaginary, a * imaginary + b * real], 1)
