"""BigBird, Zaheer et al. 2020 (https://arxiv.org/abs/2007.14062), section 2.

    out_t = sum_{s in A(t)} softmax_s(q_t . k_s / sqrt(D)) v_s
    A(t) = the tokens of blocks I-1, I, I+1 and R(I), and the global ones;  t in block I of 0..N-1

form "itc": the tokens of the first and the last block are global (`globals="first"`: of the first
alone; an option cannot be called `global`, the word is Python's); R(I) are `random` (3) others.
form "etc": tokens that the caller put before the text are global, the first `global_tokens` or
those of `global_mask`; blocks are counted behind the former, none is global, `random` is 0.
Global tokens attend to all. Causal (ITC alone): no key after t, the first block alone is global,
and R(I) is drawn from the past. `sampling`: "uniform"; "original", the published plan (function
`published_parts`); "given", the buffer `draws` (heads, blocks, random) holds blocks, -1 for none.

What differs from the public code: A(t) is a set, no block counts twice (there R(I) may repeat the
window or a global block, and in evaluation is block 0, r times); R is drawn once, from seed and
layer, for training and evaluation; N counts the real blocks of each row, so padding moves nothing.
"""

from typing import Literal

import torch
import torch.nn.functional as F

from longspan.attention._block_rule import SAMPLINGS, BlockRule
from longspan.attention._globals import GlobalTokens, with_global_rows
from longspan.attention._listed import listed_attention
from longspan.attention._softmax import softmax_reference
from longspan.attention.base import Attention, Traits, joined, register
from longspan.attention.patterns.random import BITS
from longspan.errors import OptionError


@register("bigbird", knob="block")
class BigBirdAttention(Attention):
    """A window of three blocks, global tokens, and random blocks."""

    traits = Traits(
        paper="Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        sizes=("heads", "max_length", "layer"),
    )
    small = {"block": 4, "random": 2}
    draws: torch.Tensor

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        form: Literal["itc", "etc"] = "itc",
        block: int = 64,
        random: int | None = None,
        globals: Literal["ends", "first"] = "ends",
        global_tokens: int = 0,
        sampling: Literal["uniform", "original", "given"] = "uniform",
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw from (seed, layer), once; `random=None` is 3 in ITC and 0 in ETC."""
        super().__init__()
        itc, ends = form == "itc", globals == "ends"
        known = itc or form == "etc", ends or globals == "first", sampling in SAMPLINGS
        reasons = {
            f"it knows no {form=}, {globals=} or {sampling=}": not all(known),
            f"it needs random >= 0, got {random}": random is not None and random < 0,
            "ETC has no causal form: its global tokens see all; use form='itc'": causal and not itc,
            "ETC has no global blocks for globals='first'; use form='itc'": not (itc or ends),
            f"global_tokens={global_tokens} needs form='etc'": itc and global_tokens > 0,
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            raise OptionError(f"bigbird cannot be built: {wrong}")
        self.causal, self.max_length = causal, max_length
        at_ends = int(itc), int(itc and ends and not causal)
        self.rule = BlockRule(block, global_tokens, *at_ends, causal, sampling)
        count = 3 * itc if random is None else random
        generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
        draws = torch.randint(2**BITS, (-(-max_length // block), heads, count), generator=generator)
        draws = torch.full_like(draws, -1) if sampling == "given" else draws
        self.register_buffer("draws", draws.transpose(0, 1).int().contiguous())

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add: blocks are drawn for these heads, up to this length."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if q.shape[1] != len(self.draws):
            reasons.append(f"it was built for {len(self.draws)} heads, got {q.shape[1]}")
        return reasons + self._too_long(k.shape[2])

    def _step_refusals(self, q, k, v, cache):
        before = 0 if cache is None else cache.length
        return super()._step_refusals(q, k, v, cache) + self._too_long(before + k.shape[2])

    def _too_long(self, length):
        limit = f"S={length} is beyond max_length={self.max_length}; build it longer"
        return [limit] if length > self.max_length else []

    def attend(self, q, k, v, key_mask, global_mask):
        """Gather the blocks of each block of queries; the rows of global tokens apart."""
        out, shared = self._rows(q, k, v, key_mask, global_mask)
        if shared is None or (self.causal and global_mask is None):
            return out
        return with_global_rows(out, q, k, v, shared, key_mask, self.causal)

    def _rows(self, q, k, v, key_mask, global_mask):
        """The last T queries over blocks and global tokens, (B, H, T, E), and these tokens."""
        rule, length, g = self.rule, k.shape[2], self.rule.prefix
        blocks = rule.count(length, key_mask, q.device)
        spread = rule.spread(length, blocks).expand(len(q), -1)
        spread = spread if global_mask is None else spread | global_mask
        spread = spread if key_mask is None else spread & key_mask
        local = ~spread if key_mask is None else key_mask & ~spread
        # Without ragged tokens the count is known, and the device need not be asked for it.
        count = rule.most_spread(length) if global_mask is None else int(spread.sum(1).max())
        shared = GlobalTokens(spread, count, k, v) if count else None
        if length <= g:
            return torch.zeros_like(v), shared
        start, end = (length - q.shape[2]) // rule.block, -(-(length - g) // rule.block)
        lists = rule.lists(self.draws[:, start:end], blocks, start)
        q, k, v = (x[:, :, g:] for x in (q, k, v))
        out = listed_attention(q, k, v, lists, rule.block, local[:, g:], shared, self.causal)
        return F.pad(out, (0, 0, g, 0)), shared

    def reference(self, q, k, v, key_mask, global_mask):
        """Full softmax under the mask of each row, set by set."""
        none = torch.zeros(len(q), q.shape[2], dtype=torch.bool)
        real = ~none if key_mask is None else key_mask.cpu()
        spread = none if global_mask is None else global_mask.cpu()
        rows, draws = zip(real, spread, strict=True), self.draws.tolist()
        mask = [self.rule.mask(draws, *row) for row in rows]
        return softmax_reference(q, k, v, torch.stack(mask).to(q.device))

    def advance(self, q, k, v, key_mask, cache):
        """Keep all keys: a later block may have drawn any of them."""
        state = joined(cache, {"k": k, "v": v}, key_mask)
        return self._rows(q, state["k"], state["v"], state.get("real"), None)[0], state

    def flops(self, T, head_dim):
        """Two products over listed and global keys, and over all keys for the global tokens."""
        block, spread = self.rule.block, self.rule.most_spread(T)
        length = max(0, -(-(T - self.rule.prefix) // block)) * block
        listed = min(length, block * (3 - self.causal + self.draws.shape[2]))
        rows = 0 if self.causal else spread * T
        return 4 * head_dim * (length * (listed + spread) + rows)

    def pairs(self, T):
        """Counted from the lists."""
        return self.rule.pairs(self.draws, T)
