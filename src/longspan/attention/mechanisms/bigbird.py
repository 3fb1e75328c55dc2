"""BigBird, Zaheer et al. 2020 (https://arxiv.org/abs/2007.14062), section 2.

    out_t = sum_{s in A(t)} softmax_s(q_t . k_s / sqrt(D)) v_s
    A(t) = the tokens of blocks I-1, I, I+1 and R(I), and the global ones;  t in block I of 0..N-1

form "itc": the tokens of the first and the last block are global; R(I) are `num_random_blocks`
others. form "etc": tokens that the caller put before the text are global, the first `global_tokens`
or those of `global_mask`; blocks are counted after the former, and none is global. Global tokens
attend to all. Causal (ITC only): no key after t, only the first block is global, and R(I) is drawn
from the past.

Differences from the public code: A(t) is a set, no block counts twice (there R(I) may repeat the
window or a global block, and in evaluation is block 0, r times); R is drawn once, from seed and
layer, for training and evaluation; N counts real blocks, so padding after a row moves nothing. The
options sampling="transformers", repeats, padded_blocks and full_up_to give the public behavior.
"""

import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from longspan.attention.base import Attention, Traits, append_tokens, register
from longspan.attention.cache import select_tokens
from longspan.attention.ops.block_lists import block_list_attention
from longspan.attention.ops.draws import draw_integers, to_defaults
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    count_slots,
    gather_global_tokens,
    replace_global_rows,
)
from longspan.attention.ops.open_sizes import count_blocks, resize
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.option_types import NonNegativeInt, PositiveInt
from longspan.attention.patterns.block_rule import BlockRule
from longspan.attention.patterns.published_blocks import draw_transformers_blocks, draws_early
from longspan.errors import OptionError


@register("bigbird", size_option="block")
class BigBirdAttention(Attention):
    """Attention to a window of three blocks, global tokens, and random blocks."""

    traits = Traits(
        paper="Zaheer et al. 2020, https://arxiv.org/abs/2007.14062",
        family="fixed pattern",
        cost="T",
        exact=True,
        causal=True,
        global_tokens=True,
        scale=True,
        sizes=("heads", "max_length", "layer"),
        anchored=True,
    )
    small_options = {"block": 4, "num_random_blocks": 2}
    draws: torch.Tensor
    early_draws: torch.Tensor

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        form: Literal["itc", "etc"] = "itc",
        block: PositiveInt = 64,
        num_random_blocks: NonNegativeInt | None = None,
        global_blocks: Literal["ends", "first"] = "ends",
        global_tokens: NonNegativeInt = 0,
        sampling: Literal["uniform", "original", "given", "transformers"] = "uniform",
        repeats: bool = False,
        padded_blocks: bool = False,
        full_up_to: NonNegativeInt = 0,
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw the random blocks from (seed, layer).

        Args:
            form: "itc" (internal tokens are global) or "etc" (extra tokens are global).
            block: tokens per block.
            num_random_blocks: random blocks per block of queries; None: 3 in ITC, 0 in ETC.
            global_blocks: "ends": first and last block; "first": only the first (ITC only).
            global_tokens: global tokens before the text (ETC only).
            sampling: "uniform"; "original": as the published code, see `published_parts`; "given":
                the buffer `draws` (heads, blocks, R) holds block numbers, -1 for none;
                "transformers": in training the draws of transformers, see
                `draw_transformers_blocks`, in evaluation block 0, r times.
            repeats: whether blocks of "given" and "transformers" that repeat each other, the window
                or a global block count again.
            padded_blocks: whether N counts blocks of padding, so that the last global block is that
                of the batch.
            full_up_to: number of tokens up to which an input has full attention.
        """
        super().__init__()
        itc, ends = form == "itc", global_blocks == "ends"
        at_ends = int(itc), int(itc and ends and not causal)
        count = 3 * itc if num_random_blocks is None else num_random_blocks
        reasons = {
            "full_up_to requires causal=False": full_up_to > 0 and causal,
            "causal=True requires form='itc': global tokens of ETC see all": causal and not itc,
            "global_blocks='first' requires form='itc'": not (itc or ends),
            f"global_tokens={global_tokens} requires form='etc'": itc and global_tokens > 0,
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            raise OptionError(f"bigbird cannot be built: {wrong}")
        self.causal, self.max_length, self.full_up_to = causal, max_length, full_up_to
        sizes = block, global_tokens, *at_ends
        self.rule = BlockRule(*sizes, causal, sampling, repeats, padded_blocks)
        self._register_draws(heads, count, layer, seed)
        if count == 0:
            self.traits = dataclasses.replace(type(self).traits, state_size="1")

    def _register_draws(self, heads: int, count: int, layer: int, seed: int) -> None:
        """Register the draws; those of transformers follow from the options and are not saved."""
        block, sampling, max_length = self.rule.block, self.rule.sampling, self.max_length
        self.built_for = {"heads": heads, "max_length": max_length}
        if sampling == "transformers":
            random = draw_transformers_blocks(seed + layer, heads, max_length, block, count)
            self.register_buffer("draws", random.usual.int(), persistent=False)
            self.register_buffer("early_draws", random.early.int(), persistent=False)
            return
        generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
        draws = draw_integers((-(-max_length // block), heads, count), generator).transpose(0, 1)
        draws = torch.full_like(draws, -1) if sampling == "given" else draws
        self.register_buffer("draws", to_defaults(draws, torch.int).contiguous())

    def attend(self, x):
        """Gather the blocks of each block of queries; compute rows of global tokens separately."""
        (q, k, v, key_mask), global_mask = x[:4], x.global_mask
        if k.shape[2] <= self.full_up_to:
            return softmax_attention(q, k, v, None if key_mask is None else key_mask[:, None, None])
        out, shared = self._rows(q, k, v, key_mask, global_mask)
        if shared is None or (self.causal and global_mask is None):
            return out
        return replace_global_rows(out, q, k, v, shared, key_mask, self.causal)

    def _rows(self, q, k, v, key_mask, global_mask):
        """Return the last T rows over blocks and global tokens, (B, H, T, E), and these tokens."""
        rule, length, g = self.rule, k.shape[2], self.rule.prefix
        blocks = rule.num_blocks(length, key_mask, q.device)
        is_global = rule.global_mask(length, blocks).expand(q.shape[0], -1)
        if global_mask is not None:
            is_global = is_global | (global_mask if key_mask is None else global_mask & key_mask)
        most = self.max_global_tokens
        count = count_slots(is_global, rule.max_globals(length), global_mask, most)
        extra = shared = GlobalTokens(is_global, count, k, v, key_mask) if count else None
        if rule.repeats:
            # The global blocks are in the lists, where they may count again.
            extra = gather_global_tokens((), k, v, key_mask, global_mask, most)
            is_global = torch.zeros_like(is_global) if extra is None else extra.is_global
        local = ~is_global if key_mask is None else key_mask & ~is_global
        if length <= g:
            return torch.zeros_like(v), shared
        start, end = (length - q.shape[2]) // rule.block, count_blocks(length - g, rule.block)
        draws = resize(self.blocks_for(length)[:, start:], end - start, 1)
        lists = rule.lists(draws, blocks, start)
        q, k, v = (x[:, :, g:] for x in (q, k, v))
        out = block_list_attention(q, k, v, lists, rule.block, local[:, g:], extra, self.causal)
        return F.pad(out, (0, 0, g, 0)), shared

    def blocks_for(self, length: int) -> Tensor:
        """Return the draws for an input of so many tokens, padding included, (H, blocks, r)."""
        if self.rule.sampling != "transformers":
            return self.draws
        if not self.training:
            return torch.zeros_like(self.draws)
        return self.early_draws if draws_early(length, self.rule.block) else self.draws

    def reference(self, x):
        """Compute full softmax under the mask of each row, built from sets."""
        (q, k, v), real = x[:3], x.real.expand(len(x.q), -1).cpu()
        is_global = torch.zeros_like(real) if x.global_mask is None else x.global_mask.cpu()
        rows, draws = zip(real, is_global, strict=True), self.blocks_for(k.shape[2]).tolist()
        if k.shape[2] <= self.full_up_to:
            counts = [row.expand(len(draws), len(row), -1).int() for row in real]
        else:
            counts = [self.rule.counts(draws, *row) for row in rows]
        count = torch.stack(counts).to(q.device)
        return softmax_reference(q, k, v, count > 0, count.clamp(min=1).to(q.dtype).log())

    def state_of(self, x):
        """Return all keys and values."""
        return append_tokens(None, {"k": x.k, "v": x.v}, x.key_mask)

    def advance(self, x):
        """Keep all keys, which later blocks may draw; without draws, those of three blocks.

        The rule then reads only which block is the first and which are adjacent, so that the kept
        blocks are processed as a text of their own.
        """
        draws, block, (q, k, v) = self.draws.shape[2], self.rule.block, x[:3]
        T, state = q.shape[2], append_tokens(x.cache, {"k": k, "v": v}, x.key_mask, grows=draws > 0)
        length = state["k"].shape[2]
        if x.cache is not None and T * block * (3 + draws) < length:
            keys = self.rule.causal_keys(self.blocks_for(length), length - T, length - 1)
            out = gathered_softmax(q, state["k"], state["v"], *keys, state.get("real"))
        else:
            out = self._rows(q, state["k"], state["v"], state.get("real"), None)[0]
        if draws > 0:
            return out, state
        near = max(1, length // block - 1) * block
        reachable = [*range(min(block, length)), *range(near, length)]
        return out, select_tokens(state, reachable)

    def flops(self, T, head_dim):
        """Count products over listed and global keys, all keys for global tokens; at most T x T."""
        if self.full_up_to >= T:
            return 4 * head_dim * T * T
        block, count = self.rule.block, self.rule.max_globals(T)
        length = max(0, -(-(T - self.rule.prefix) // block)) * block
        listed = min(length, block * (3 - self.causal + self.draws.shape[2]))
        rows = 0 if self.causal else count * T
        return 4 * head_dim * min(length * (listed + count) + rows, T * T)

    def pairs(self, T):
        """Count from the lists; a repeated block is one."""
        if self.full_up_to >= T:
            return (T * T,) * len(self.draws)
        return dataclasses.replace(self.rule, repeats=False).pairs(self.blocks_for(T), T)
