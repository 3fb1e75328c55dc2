"""Long-Short attention, Zhu et al. 2021 (https://arxiv.org/abs/2107.02192), section 3.

    out_t = softmax([q_t Kc^T ; q_t K_near(t)^T] / sqrt(D)) [Vc ; V_near(t)]
    K = LN_near(k),  V = LN_near(v);  Kc = LN_far(P K),  Vc = LN_far(P V)
    P = softmax over the real positions of W_p k       (`rank` landmarks for each head)

LN normalises the heads of a position together; keys and values share it ("DualLN"). near(t) is the
block of `window` positions and half a block on either side; window=0: t alone; rank=0: no landmark.
`variant="xiong"` (Xiong et al. 2022, https://arxiv.org/abs/2112.07210) compresses k and v as they
are: Kc = LN_far(P k). `first_global` makes the first token global; `convolution` is the size of a
depthwise convolution of V that is added to the output, zero at first.

Causal: near(t) is t - window + 1 .. t, and each `segment` of positions is compressed alone to
`segment_rank` landmarks, for queries of later segments; the cost is T^2 segment_rank / segment.

What differs: W_p reads k of all heads, a linear map of the layer's input as in the paper, but
through W_k. Values of another width than `head_dim` have no scale and shift in the shared LN. A
global token attends to all real keys, to no padding and no landmark (in public code to padding, or
to outputs). The public causal code adds relative positions and compresses as "xiong" does.
"""

import dataclasses
from typing import Any, Literal, cast

import torch

from longspan.attention._blocks import pattern_attention
from longspan.attention._convolution import convolved, depthwise
from longspan.attention._landmarks import DualKeys
from longspan.attention._pattern import PatternAttention
from longspan.attention._softmax import softmax_attention, softmax_reference
from longspan.attention.base import Traits, register
from longspan.attention.patterns import BlockWindow, Global, Pattern, Window
from longspan.errors import OptionError


@register("long_short", knob="window")
class LongShortAttention(PatternAttention):
    """One softmax over the keys nearby and a few learned summaries of all keys."""

    traits = Traits(
        paper="Zhu et al. 2021, https://arxiv.org/abs/2107.02192",
        cost="T",
        exact=False,
        causal=True,
        global_tokens=True,
        sizes=("heads", "head_dim"),
    )
    advance = PatternAttention.by_pieces  # from the first token on
    small = {"window": 6, "rank": 3, "segment": 4, "segment_rank": 2}

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        window: int = 96,
        rank: int = 32,
        variant: Literal["ls", "xiong"] = "ls",
        first_global: bool = False,
        convolution: int = 0,
        segment: int = 16,
        segment_rank: int = 1,
        causal: bool = False,
    ):
        """Take the sizes of the window and the landmarks, of all tokens or of each segment."""
        if min(window, rank, segment_rank, segment - 1) < 0:
            got = f"{window}, {rank}, {segment_rank}, {segment}"
            need = "window, rank, segment_rank >= 0 and segment >= 1"
            raise OptionError(f"long_short needs {need}, got {got}")
        if variant not in ("ls", "xiong"):
            raise OptionError(f"long_short has the variants ls and xiong, got {variant!r}")
        if convolution and (convolution < 0 or convolution % 2 == 0 or causal):
            raise OptionError(
                f"long_short needs an odd convolution or 0 (causal: 0), got {convolution}"
            )
        if causal and window < segment:
            lost = f"window >= segment when causal, or tokens are lost, got {window} and {segment}"
            raise OptionError(f"long_short needs {lost}")
        near: Pattern = BlockWindow(window, max(window // 2, 1)) if window else Window(0)
        near = Window(window - 1, 0) if causal else near
        super().__init__(near | Global((0,)) if first_global else near, causal)
        self.heads, self.head_dim, self.first_global = heads, head_dim, first_global
        rank, run = (segment_rank, segment) if causal else (rank, None)
        self.keys = DualKeys(heads, head_dim, rank, run, plain=variant == "xiong")
        self.conv = depthwise(heads, convolution, zero=True) if convolution else None
        if causal and segment_rank:
            self.traits = dataclasses.replace(type(self).traits, cost="T^2")

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: the norms and the projection belong to these heads and this width."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        expected, got = (self.heads, self.head_dim), (q.shape[1], q.shape[3])
        if got != expected:
            reasons.append(f"it was built for (heads, head_dim) = {expected}, got {got}")
        return reasons

    def attend(self, q, k, v, key_mask, global_mask):
        """The gathered-block kernel, with the landmarks beside the keys of each block."""
        keys, values, beside = self.keys(k, v, key_mask)
        out = pattern_attention(q, keys, values, self.pattern, key_mask, global_mask, beside)
        return out if self.conv is None else out + convolved(self.conv, values, key_mask)

    def _piece(self, q, k, v, key_mask, cache):
        """Keep what the window reaches, and the landmarks of the segments that are complete."""
        held, mask, kept = self._held(k, v, key_mask, cache)
        keys, values, mask, far = self.keys.grown(held, mask, cache, q.shape[2])
        return softmax_attention(q, keys, values, mask), kept | far

    def reference(self, q, k, v, key_mask, global_mask):
        """A dense mask over all tokens, and the landmarks of one run of tokens after another."""
        (B, _, T, _), far = q.shape, cast("Any", self.keys.far)
        mask = self._dense(q, key_mask, global_mask).expand(B, 1, T, T)
        real = torch.ones_like(mask[:, 0, 0]) if key_mask is None else key_mask
        t, merged = torch.arange(T, device=q.device), k.transpose(1, 2).flatten(2)[:, None]
        common = t > 0 if self.first_global else t >= 0
        common = common if global_mask is None else common & ~global_mask
        near = [_normal(self.keys.near, x) for x in (k, v)]
        keys, values, masks = [near[0]], [near[1]], [mask]
        run = T + 1 if far is None else far.segment or T
        for part in [slice(end - run, end) for end in range(run, T + 1, run)]:
            W = far.logits.weight.view(self.heads, far.rank, -1) * merged.shape[-1] ** 0.5
            for x, found in zip((k, v) if self.keys.plain else near, (keys, values), strict=True):
                own = (merged[:, :, part], x[:, :, part], real[:, None, None, part])
                found.append(_normal(far.norm, softmax_reference(W, *own)))
            later = t >= part.stop if self.causal else t >= 0
            seen = common & later & real[:, part].any(1, keepdim=True)
            masks.append(seen[:, None, :, None].expand(-1, -1, -1, far.rank))
        out = softmax_reference(q, torch.cat(keys, 2), torch.cat(values, 2), torch.cat(masks, 3))
        return out if self.conv is None else out + convolved(self.conv, near[1], real)

    def pairs(self, T):
        """None: landmarks are no keys."""
        return

    def flops(self, T, head_dim):
        """The window, the landmarks, the convolution."""
        near = 4 * T * min(self.pattern.layout.span, T) * head_dim
        kernel = 0 if self.conv is None else self.conv.kernel_size[0]
        return near + self.keys.flops(T, head_dim) + 2 * T * kernel * head_dim


def _normal(norm, x):
    """(x - mean) / deviation over heads and width, then scale and shift where they fit."""
    x = x - x.mean((1, 3), keepdim=True)
    x = x / (x.square().mean((1, 3), keepdim=True) + norm.eps).sqrt()
    if norm.weight.numel() != x.shape[1] * x.shape[3]:
        return x
    scale, shift = (y.view(1, x.shape[1], 1, -1) for y in (norm.weight, norm.bias))
    return x * scale + shift
