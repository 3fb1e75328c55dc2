"""Long-Short attention, Zhu et al. 2021 (https://arxiv.org/abs/2107.02192), section 3.

    out_t = softmax([q_t Kc^T ; q_t K_near(t)^T] / sqrt(D)) [Vc ; V_near(t)]
    K = LN_near(k),  V = LN_near(v);  Kc = LN_far(P K),  Vc = LN_far(P V)
    P = softmax over the real positions of W_p k       (`rank` landmarks for each head)

LN normalizes the heads of a position together; keys and values share it ("DualLN"). near(t) is the
block of `window` positions and half a block on either side; window=0: t alone; rank=0: no landmark.
`variant="xiong"` (Xiong et al. 2022, https://arxiv.org/abs/2112.07210) compresses the unnormalized
k and v: Kc = LN_far(P k).

Causal: near(t) is t - window + 1 .. t, and each `segment` of positions is compressed separately to
`segment_rank` landmarks, for queries of later segments; the cost is T^2 segment_rank / segment.

Differences: W_p uses k of all heads, a linear map of the layer's input as in the paper, but
through W_k. Values of another width than `head_dim` have no scale and shift in the shared LN. A
global token attends to all real keys, not to padding or landmarks (in public code to padding, or to
outputs). The public causal code adds relative positions and compresses like "xiong".
"""

import dataclasses
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.base import Cache, Traits, register
from longspan.attention.derivatives import LinearFunction, apply_function
from longspan.attention.masking import masked_softmax
from longspan.attention.ops.blocks import SharedKeys, pattern_attention
from longspan.attention.ops.convolution import convolve_values, make_depthwise_conv
from longspan.attention.ops.linear_maps import apply_map, is_plain, linear_part
from longspan.attention.ops.open_sizes import resize
from longspan.attention.ops.pattern_base import PatternAttention
from longspan.attention.ops.precision import as_operands, at_least_float32, dot_products
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns import BlockWindow, Global, Pattern, Window
from longspan.attention.value_norms import ValueNorm
from longspan.errors import OptionError


@register("long_short", size_option="window")
class LongShortAttention(PatternAttention):
    """One softmax over nearby keys and a few learned summaries of all keys."""

    traits = Traits(
        paper="Zhu et al. 2021, https://arxiv.org/abs/2107.02192",
        family="hybrid",
        cost="T",
        exact=False,
        causal=True,
        global_tokens=True,
        scale=True,
        sizes=("heads", "head_dim"),
        anchored=True,
    )
    advance = PatternAttention.by_pieces  # also for the first step
    small_options = {"window": 6, "rank": 3, "segment": 4, "segment_rank": 2}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        window: NonNegativeInt = 96,
        rank: NonNegativeInt = 32,
        variant: Literal["ls", "xiong"] = "ls",
        first_global: bool = False,
        conv_kernel_size: NonNegativeInt = 0,
        segment: PositiveInt = 16,
        segment_rank: NonNegativeInt = 1,
        causal: bool = False,
    ):
        """Create the pattern, the landmarks and the convolution.

        Args:
            window: nearby positions, see the module; causal: at least `segment`.
            rank: landmarks per head of the bidirectional form.
            variant: "ls" compresses normalized keys and values, "xiong" unnormalized ones.
            first_global: whether the first token is global.
            conv_kernel_size: size of a depthwise convolution of V, added to the output and zero at
                first; odd, 0: none (causal: 0).
            segment: positions per segment of the causal form.
            segment_rank: landmarks per segment and head of the causal form.
        """
        if conv_kernel_size and (conv_kernel_size % 2 == 0 or causal):
            raise OptionError(
                "long_short: option conv_kernel_size must be odd, or 0 (causal: 0); "
                f"got {conv_kernel_size}"
            )
        if causal and window < segment:
            got = f"got {window} and {segment}"
            raise OptionError(f"long_short: causal=True requires window >= segment, {got}")
        near: Pattern = BlockWindow(window, window // 2) if window else Window(0)
        near = Window(window - 1, 0) if causal else near
        super().__init__(near | Global((0,)) if first_global else near, causal)
        self.first_global, self.built_for = first_global, {"heads": heads, "head_dim": head_dim}
        rank, run = (segment_rank, segment) if causal else (rank, None)
        self.keys = DualKeys(heads, head_dim, rank, run, unnormalized=variant == "xiong")
        self.conv = None
        if conv_kernel_size:
            self.conv = make_depthwise_conv(heads, conv_kernel_size, zero=True)
            self.traits = dataclasses.replace(type(self).traits, row_sums="any")
        if causal:
            if segment_rank:  # landmarks add up over the segments
                self.traits = dataclasses.replace(self.traits, cost="T^2")
            else:
                self.traits = dataclasses.replace(self.traits, state_size="1")

    def attend(self, x):
        """Run gathered-block attention, with the landmarks as shared keys of all blocks."""
        key_mask, most = x.key_mask, self.max_global_tokens
        keys, values, shared = self.keys(x.k, x.v, key_mask)
        out = pattern_attention(x._replace(k=keys, v=values), self.pattern, shared, most)
        return out if self.conv is None else out + convolve_values(self.conv, values, key_mask)

    def state_of(self, x):
        """Return None: the summaries of far segments are part of the state."""
        return None

    def attend_cached(self, x):
        """Keep the keys within the window, and the landmarks of complete segments."""
        held, mask, window_state = self.hold_keys(x)
        keys, values, mask, far = self.keys.grown(held, mask, x.cache, x.q.shape[2])
        return softmax_attention(x.q, keys, values, mask), window_state | far

    def reference(self, x):
        """Apply a dense mask over all tokens, and the landmarks of one run after another."""
        (q, k, v, key_mask), global_mask = x[:4], x.global_mask
        (B, _, T, _), far = q.shape, cast("Any", self.keys.far)
        mask = self.dense_mask(x).expand(B, 1, T, T)
        real = torch.ones_like(mask[:, 0, 0]) if key_mask is None else key_mask
        t, merged = torch.arange(T, device=q.device), k.transpose(1, 2).flatten(2)[:, None]
        common = t > 0 if self.first_global else t >= 0
        # Padded tokens are not global.
        common = common if global_mask is None else common & ~(global_mask & real)
        near = [_normal(self.keys.near, y) for y in (k, v)]
        keys, values, masks = [near[0]], [near[1]], [mask]
        run = T + 1 if far is None else far.segment or T
        for part in [slice(end - run, end) for end in range(run, T + 1, run)]:
            unit = torch.eye(merged.shape[-1], dtype=k.dtype, device=k.device)
            W = linear_part(far.logits, unit).mT.unflatten(0, (far.heads, far.rank))
            W = W * merged.shape[-1] ** 0.5
            inputs = (k, v) if self.keys.unnormalized else near
            for y, rows in zip(inputs, (keys, values), strict=True):
                run_inputs = (merged[:, :, part], y[:, :, part], real[:, None, None, part])
                rows.append(_normal(far.norm, softmax_reference(W, *run_inputs)))
            later = t >= part.stop if self.causal else t >= 0
            seen = common & later & real[:, part].any(1, keepdim=True)
            masks.append(seen[:, None, :, None].expand(-1, -1, -1, far.rank))
        out = softmax_reference(q, torch.cat(keys, 2), torch.cat(values, 2), torch.cat(masks, 3))
        return out if self.conv is None else out + convolve_values(self.conv, near[1], real)

    def pairs(self, T):
        """Return None: landmarks are not keys."""
        return

    def is_dense(self, T):
        """Return whether the nearby keys are all keys."""
        return self.pattern.pairs(T) >= (T * (T + 1) // 2 if self.causal else T * T)

    def flops(self, T, head_dim):
        """Count the window, the landmarks, the convolution."""
        near = 4 * T * min(self.pattern.layout.span, T) * head_dim
        kernel = 0 if self.conv is None else self.conv.kernel_size[0]
        return near + self.keys.flops(T, head_dim) + 2 * T * kernel * head_dim


def _normal(norm, x):
    """Compute (x - mean) / deviation over heads and width, then scale and shift where they fit."""
    x = x - x.mean((1, 3), keepdim=True)
    x = x / (x.square().mean((1, 3), keepdim=True) + norm.eps).sqrt()
    if norm.weight.numel() != x.shape[1] * x.shape[3]:
        return x
    scale, shift = (y.view(1, x.shape[1], 1, -1) for y in (norm.weight, norm.bias))
    return x * scale + shift


class _InOrder(LinearFunction):
    """Identity whose gradient is contiguous, as the compiled layer norm requires."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad.contiguous()


class MergedNorm(nn.LayerNorm, ValueNorm):
    """LayerNorm over all heads of a position; other head dimensions have no scale and shift."""

    def __init__(self, heads: int, head_dim: int):
        """Create a norm of the width of all heads."""
        super().__init__(heads * head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (B, H, S, D) over H and D together."""
        merged = x.transpose(1, 2).flatten(2)
        same_width = merged.shape[2:] == self.weight.shape
        scale, shift = (y.to(x.dtype) if same_width else None for y in (self.weight, self.bias))
        out = apply_function(
            _InOrder, F.layer_norm(merged, merged.shape[2:], scale, shift, self.eps)
        )
        return out.unflatten(2, x.shape[1::2]).transpose(1, 2)


class Landmarks(nn.Module):
    """`rank` weighted means per head: of all positions, or of each complete segment."""

    def __init__(self, heads: int, head_dim: int, rank: int, segment: int | None):
        """Create one logit per head and landmark from all heads; a bias would cancel."""
        super().__init__()
        self.heads, self.rank, self.segment = heads, rank, segment
        self.logits = nn.Linear(heads * head_dim, heads * rank, bias=False)
        self.norm = MergedNorm(heads, head_dim)

    def forward(
        self, k: Tensor, pair: tuple[Tensor, Tensor], key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compress keys and values.

        Args:
            k: input of the weights (B, H, S, D).
            pair: keys and values to compress.
            key_mask: True at real positions (B, S), or None; others weigh exactly zero.

        Returns:
            Normalized keys and values of the R landmarks (B, H, R, D), and whether each has a real
            position (1 or B, R).
        """
        weights, live = self.weights(k, key_mask)
        keys, values = (_means(weights, x) for x in as_operands(*pair))
        return self.norm(keys), self.norm.normalize_values(values), live

    def weights(self, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute softmax over each run, (B, H, runs, rank, run), and the live landmarks."""
        run = self.segment or k.shape[2]
        count = k.shape[2] // run
        merged = resize(k, count * run).transpose(1, 2).flatten(2)
        logits = self._logits(merged)
        logits = logits.unflatten(1, (self.heads, self.rank)).unflatten(3, (count, run))
        logits = logits.transpose(2, 3)
        if key_mask is None:
            live = torch.ones(1, count * self.rank, dtype=torch.bool, device=k.device)
            return logits.softmax(-1).to(k.dtype), live
        real = resize(key_mask, count * run, 1).unflatten(1, (count, run))
        weights = masked_softmax(logits, real[:, None, :, None, :])
        return weights.to(k.dtype), real.any(-1).repeat_interleave(self.rank, 1)

    def _logits(self, merged: Tensor) -> Tensor:
        """Return the logits (B, H x rank, S) of positions (B, S, H x D), in at least float32."""
        if is_plain(self.logits):
            return dot_products(self.logits.weight.to(merged.dtype), merged)
        return at_least_float32(apply_map(self.logits, merged)).mT

    def seen(self, live: Tensor, position: Tensor) -> Tensor:
        """Return which landmarks queries at the positions may attend, (1 or B, 1, 1 or T, R).

        Landmarks of segments are visible to later segments only.
        """
        live = live[:, None, None, :]
        if self.segment is None:
            return live
        segment_index = torch.arange(live.shape[-1], device=live.device) // self.rank
        return live & (segment_index < position[:, None] // self.segment)


class DualKeys(nn.Module):
    """Keys and values near a query, and landmarks far from it, each with its own norm."""

    def __init__(
        self, heads: int, head_dim: int, rank: int, segment: int | None, unnormalized: bool
    ):
        """Create norm and landmarks (rank 0: none); `unnormalized`: means of unnormalized keys."""
        super().__init__()
        self.near, self.unnormalized = MergedNorm(heads, head_dim), unnormalized
        self.far = Landmarks(heads, head_dim, rank, segment) if rank else None

    def forward(
        self, k: Tensor, v: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, SharedKeys | None]:
        """Return nearby keys and values, and the landmarks of all positions for all queries."""
        near = self.near(k), self.near.normalize_values(v)
        if self.far is None:
            return *near, None
        *far, live = self.far(k, (k, v) if self.unnormalized else near, key_mask)
        position = torch.arange(k.shape[2], device=k.device)
        return *near, SharedKeys(far[0], far[1], self.far.seen(live, position))

    def grown(
        self, held: dict[str, Tensor], mask: Tensor, cache: Cache | None, T: int
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Return keys and values, their mask, and the landmarks to cache, for T new queries.

        Args:
            held: last keys `k` and values `v`, and `real` if any was masked, from the start of the
                unfinished segment or earlier.
            mask: mask of the held keys for the queries.
            cache: cache of the previous step.
            T: new tokens, the last of those held.
        """
        keys, values = self.near(held["k"]), self.near(held["v"])
        if self.far is None:
            return keys, values, mask, {}
        before = 0 if cache is None else cache.length
        tail = slice(keys.shape[2] - T - before % (self.far.segment or 1), None)
        plain = held["k"][:, :, tail], held["v"][:, :, tail]
        pair = plain if self.unnormalized else (keys[:, :, tail], values[:, :, tail])
        real = held["real"][:, tail] if "real" in held else None
        *far, live = self.far(plain[0], pair, real)
        new = {"far_k": far[0], "far_v": far[1], "live": live.expand(len(keys), -1)}
        if cache is not None:
            new = {
                n: torch.cat([cache.state[n], x], 1 if n == "live" else 2) for n, x in new.items()
            }
        position = torch.arange(before, before + T, device=keys.device)
        seen = self.far.seen(new["live"], position)
        mask = torch.cat([seen, mask.expand(len(seen), -1, -1, -1)], 3)
        return torch.cat([new["far_k"], keys], 2), torch.cat([new["far_v"], values], 2), mask, new

    def flops(self, T: int, D: int) -> int:
        """Count, for one head, the weights, the means, and attention to the landmarks."""
        if self.far is None:
            return 0
        rank, width = self.far.rank, self.near.weight.numel()
        landmarks = rank * (T // (self.far.segment or T))
        return 2 * T * width * rank + 4 * T * rank * D + 4 * T * landmarks * D


def _means(weights: Tensor, x: Tensor) -> Tensor:
    """Compute means (B, H, runs * rank, E) of x (B, H, S, E), weights (B, H, runs, rank, run)."""
    count, run = weights.shape[2], weights.shape[4]
    runs = resize(x, count * run).unflatten(2, (count, run))
    return (weights @ runs).flatten(2, 3)
