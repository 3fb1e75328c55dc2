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
from longspan.attention.ops.global_tokens import (
    GlobalTokens,
    count_slots,
    gather_global_tokens,
    replace_global_rows,
)
from longspan.attention.ops.softmax import softmax_attention, softmax_reference
from longspan.attention.patterns import BlockWindow, Pattern, RandomBlocks
from longspan.attention.patterns.published_blocks import (
    draw_transformers_blocks,
    draws_early,
    published_parts,
    published_ranges,
)
from longspan.attention.patterns.random import draw_distinct, keep_valid, pick_blocks
from longspan.errors import OptionError

SAMPLINGS = ("uniform", "original", "given", "transformers")


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
    keeps_tokens = True
    draws: torch.Tensor
    early_draws: torch.Tensor

    def __init__(
        self,
        *,
        heads: int,
        max_length: int,
        layer: int = 0,
        form: Literal["itc", "etc"] = "itc",
        block: int = 64,
        num_random_blocks: int | None = None,
        global_blocks: Literal["ends", "first"] = "ends",
        global_tokens: int = 0,
        sampling: Literal["uniform", "original", "given", "transformers"] = "uniform",
        repeats: bool = False,
        padded_blocks: bool = False,
        full_up_to: int = 0,
        seed: int = 0,
        causal: bool = False,
    ):
        """Draw the random blocks from (seed, layer).

        Args:
            heads: number of heads.
            max_length: longest input.
            layer: index of the layer.
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
            seed: seed of the random draws.
            causal: whether keys after the query are excluded.
        """
        super().__init__()
        itc, ends = form == "itc", global_blocks == "ends"
        at_ends = int(itc), int(itc and ends and not causal)
        count = 3 * itc if num_random_blocks is None else num_random_blocks
        known = itc or form == "etc", ends or global_blocks == "first", sampling in SAMPLINGS
        reasons = {
            f"invalid {form=}, {global_blocks=} or {sampling=}": not all(known),
            f"num_random_blocks must be >= 0, got {num_random_blocks}": count < 0,
            f"full_up_to must be >= 0, got {full_up_to}": full_up_to < 0,
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

    def _register_draws(self, heads: int, count: int, layer: int, seed: int) -> None:
        """Register the draws; those of transformers follow from the options and are not saved."""
        block, sampling, max_length = self.rule.block, self.rule.sampling, self.max_length
        if sampling == "transformers":
            made = draw_transformers_blocks(seed + layer, heads, max_length, block, count)
            self.register_buffer("draws", made.usual.int(), persistent=False)
            self.register_buffer("early_draws", made.early.int(), persistent=False)
            return
        generator = torch.Generator().manual_seed(seed * 1_000_003 + layer)
        draws = draw_integers((-(-max_length // block), heads, count), generator).transpose(0, 1)
        draws = torch.full_like(draws, -1) if sampling == "given" else draws
        self.register_buffer("draws", to_defaults(draws, torch.int).contiguous())

    def refusals(self, q, k, v, key_mask=None, query_mask=None, global_mask=None):
        """Add reasons: blocks are drawn for a fixed number of heads and a maximum length."""
        reasons = super().refusals(q, k, v, key_mask, query_mask, global_mask)
        if q.shape[1] != len(self.draws):
            reasons.append(f"heads must be {len(self.draws)}, as built; got {q.shape[1]}")
        return reasons + self._too_long(k.shape[2])

    def step_refusals(self, q, k, v, cache, layer_input):
        """Add a reason: blocks are drawn for a maximum length."""
        length = k.shape[2] + (0 if cache is None else cache.length)
        return super().step_refusals(q, k, v, cache, layer_input) + self._too_long(length)

    def _too_long(self, length):
        limit = f"S={length} exceeds max_length={self.max_length}; build with a larger max_length"
        return [limit] if length > self.max_length else []

    def attend(self, q, k, v, key_mask, global_mask):
        """Gather the blocks of each block of queries; compute rows of global tokens separately."""
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
        is_global = rule.global_mask(length, blocks).expand(len(q), -1)
        is_global = is_global if global_mask is None else is_global | global_mask
        is_global = is_global if key_mask is None else is_global & key_mask
        most = self.max_global_tokens
        count = count_slots(is_global, rule.max_globals(length), global_mask, most)
        extra = shared = GlobalTokens(is_global, count, k, v) if count else None
        if rule.repeats:
            # The global blocks are in the lists, where they may count again.
            extra = gather_global_tokens((), k, v, key_mask, global_mask, most)
            is_global = torch.zeros_like(is_global) if extra is None else extra.is_global
        local = ~is_global if key_mask is None else key_mask & ~is_global
        if length <= g:
            return torch.zeros_like(v), shared
        start, end = (length - q.shape[2]) // rule.block, -(-(length - g) // rule.block)
        lists = rule.lists(self.blocks_for(length)[:, start:end], blocks, start)
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

    def reference(self, q, k, v, key_mask, global_mask):
        """Compute full softmax under the mask of each row, built from sets."""
        none = torch.zeros(len(q), q.shape[2], dtype=torch.bool)
        real = ~none if key_mask is None else key_mask.cpu()
        is_global = none if global_mask is None else global_mask.cpu()
        rows, draws = zip(real, is_global, strict=True), self.blocks_for(k.shape[2]).tolist()
        if k.shape[2] <= self.full_up_to:
            counts = [x.expand(len(draws), len(x), -1).int() for x in real]
        else:
            counts = [self.rule.counts(draws, *row) for row in rows]
        count = torch.stack(counts).to(q.device)
        return softmax_reference(q, k, v, count > 0, count.clamp(min=1).to(q.dtype).log())

    def advance(self, q, k, v, key_mask, cache):
        """Keep all keys, which later blocks may draw; without draws, those of three blocks.

        The rule then reads only which block is the first and which are adjacent, so that the kept
        blocks are processed as a text of their own.
        """
        state = append_tokens(cache, {"k": k, "v": v}, key_mask)
        out = self._rows(q, state["k"], state["v"], state.get("real"), None)[0]
        if self.draws.shape[2] > 0:
            return out, state
        length, block = state["k"].shape[2], self.rule.block
        near = max(1, length // block - 1) * block
        kept = [*range(min(block, length)), *range(near, length)]
        return out, select_tokens(state, kept)

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


@dataclasses.dataclass(frozen=True)
class BlockRule:
    """Rule for global tokens, and for the blocks of keys of each block of queries.

    The rule is implemented twice: `mask` builds sets of Python numbers, one block of queries after
    another, and `lists` computes all rows of a batch at once. The draws are fixed; the blocks that
    they select depend on the number of real blocks of a row.

    Attributes:
        block: length of a block.
        prefix: global tokens before the first block.
        first: number of global blocks at the beginning, 0 or 1.
        last: number of global blocks at the end of the real tokens, 0 or 1.
        causal: whether random blocks are before the window, and keys after a query are excluded.
        sampling: "uniform"; "original": see `published_parts`; "given" and "transformers": draws
            are blocks.
        repeats: whether such blocks may repeat each other, the window and global blocks.
        padded_blocks: whether blocks of padding count.
    """

    block: int
    prefix: int
    first: int
    last: int
    causal: bool
    sampling: Literal["uniform", "original", "given", "transformers"]
    repeats: bool = False
    padded_blocks: bool = False

    def __post_init__(self) -> None:
        """Raise OptionError for invalid values and combinations."""
        one_end = not (self.first and self.last)
        reasons = {
            f"block must be >= 1, got {self.block}": self.block < 1,
            f"global_tokens must be >= 0, got {self.prefix}": self.prefix < 0,
            f"sampling={self.sampling!r} requires global_blocks='ends' and causal=False": (
                self.sampling in ("original", "transformers") and one_end
            ),
            "repeats=True requires global_blocks='ends' and causal=False": self.repeats and one_end,
        }
        if wrong := "; ".join(reason for reason, holds in reasons.items() if holds):
            raise OptionError(f"bigbird cannot be built: {wrong}")

    @property
    def draws_are_blocks(self) -> bool:
        """True if draws are numbers of blocks, not random integers."""
        return self.sampling in ("given", "transformers")

    def counts(self, draws: list[list[list[int]]], real: Tensor, is_global: Tensor) -> Tensor:
        """Return how often the pairs of one row count, (H, T, T); see `mask` for the arguments."""
        if not self.repeats:
            return self.mask(draws, real, is_global).int()
        none: list[list[list[int]]] = [[[] for _ in rows] for rows in draws]
        counts, b = self.mask(none, real, is_global).int(), self.block
        again = (~is_global[:, None] & ~is_global & real).int()
        blocks = int(self.num_blocks(len(real), real[None], real.device))
        for own, rows in zip(counts, draws, strict=True):
            for row in range(1, blocks - 1):
                for J in self._chosen(rows[row], row, blocks):
                    pairs = slice(row * b, row * b + b), slice(J * b, J * b + b)
                    own[pairs] += again[pairs]
        return counts

    def mask(self, draws: list[list[list[int]]], real: Tensor, is_global: Tensor) -> Tensor:
        """Return the allowed pairs of one row of the batch, (H, T, T).

        Args:
            draws: draws of each head and block of queries.
            real: True at real tokens (T,).
            is_global: True at tokens that the caller made global (T,).
        """
        T, g = len(real), min(self.prefix, len(real))
        place = [(t - g) // self.block for t in range(T)]
        counted = [place[t] for t in range(g, T) if real[t] or self.padded_blocks]
        blocks = max(counted, default=-1) + 1
        mask = torch.zeros(len(draws), T, T, dtype=torch.bool)
        for own, rows in zip(mask, draws, strict=True):
            own[g:, g:] = self.pattern(rows[: -(-(T - g) // self.block)], blocks).dense(T - g)[0]
        ends = {0} if self.first else set()
        ends |= {blocks - 1} if self.last else set()
        inside = torch.tensor([t < g or place[t] in ends for t in range(T)])
        is_global = (inside | is_global) & real
        mask = (mask | is_global | is_global[:, None]) & real
        return mask.tril() if self.causal else mask

    def pattern(self, draws: list[list[int]], blocks: int) -> Pattern:
        """Return window and random blocks of one head, for a text of `blocks` blocks."""
        chosen = tuple(self._chosen(own, row, blocks) for row, own in enumerate(draws))
        return BlockWindow(self.block, self.block) | RandomBlocks(self.block, chosen)

    def _chosen(self, draws: list[int], row: int, blocks: int) -> tuple[int, ...]:
        """Return the random blocks of one block of queries, R(I)."""
        end = row - 1 if self.causal else blocks - self.last
        choices = [J for J in range(self.first, end) if J not in (row - 1, row, row + 1)]
        if self.draws_are_blocks and self.repeats:
            return tuple(J for J in draws if 0 <= J < blocks)
        if self.draws_are_blocks:
            return tuple(J for J in dict.fromkeys(draws) if J in choices)
        if self.sampling == "uniform":
            return draw_distinct(draws, choices)
        chosen: tuple[int, ...] = ()
        for count, choices in published_parts(row, blocks, self.block, len(draws)):
            chosen, draws = chosen + draw_distinct(draws[:count], choices), draws[count:]
        return chosen

    def num_blocks(self, T: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Return the number of blocks up to the last real one per row, (B or 1, 1, 1, 1)."""
        if real is None or self.padded_blocks:
            blocks = max(0, -(-(T - self.prefix) // self.block))
            return torch.full((1, 1, 1, 1), blocks, device=device)
        length = (real * torch.arange(1, T + 1, device=device)).amax(1) - self.prefix
        return ((length + self.block - 1) // self.block).clamp(min=0)[:, None, None, None]

    def global_mask(self, T: int, blocks: Tensor) -> Tensor:
        """Return which of T positions are global, (B or 1, T)."""
        place = torch.arange(T, device=blocks.device) - self.prefix
        place = place.div(self.block, rounding_mode="floor")
        return (place < self.first) | ((place == blocks.flatten(1) - 1) & bool(self.last))

    def max_globals(self, T: int) -> int:
        """Return the maximum number of global tokens among T positions."""
        return min(T, self.prefix + self.block * (self.first + self.last))

    def pairs(self, draws: Tensor, T: int) -> tuple[int, ...]:
        """Return the number of pairs of each head, without padding."""
        blocks = self.num_blocks(T, None, draws.device)
        inside = ~self.global_mask(T, blocks)[0, self.prefix :]
        size = F.pad(inside, (0, -len(inside) % self.block)).view(-1, self.block).sum(1)
        is_global = T - int(size.sum())
        lists = self.lists(draws[:, : len(size)], blocks)[0]
        keys = size[lists.clamp(min=0)] * (lists >= 0)
        total = (size * (keys.sum(-1) + is_global)).sum(-1)
        if self.causal:
            # Within a block, only pairs with an earlier or equal key count.
            total -= (size * (size - 1) // 2).sum()
            total += is_global * (is_global + 1) // 2
        else:
            total += is_global * T
        return tuple(total.tolist())

    def lists(self, draws: Tensor, blocks: Tensor, start: int = 0) -> Tensor:
        """Return the blocks of window and draws.

        Each is listed once, and global blocks are not. With `repeats` global blocks are listed, and
        draws as often as they come.

        Args:
            draws: draws of each head and block of queries (H, rows, r).
            blocks: real blocks of each row of the batch (B or 1, 1, 1, 1).
            start: first block of queries.

        Returns:
            Block numbers (B or 1, H, rows, slots), starting with the queries' own; -1 for none.
        """
        rows, draws = draws.shape[1], draws.long()
        row = torch.arange(start, start + rows, device=draws.device).view(1, 1, -1, 1)
        low, high = torch.full_like(row, self.first), blocks - self.last
        high = row - 1 if self.causal else high
        if self.draws_are_blocks and self.repeats:
            random = torch.where((draws >= 0) & (draws < blocks), draws, -1)
        elif self.draws_are_blocks:
            random = keep_valid(draws, row, low, high)
        else:
            left = torch.arange(draws.shape[2], 0, -1, device=draws.device)
            if self.sampling == "original":
                low, high, left = published_ranges(row, blocks, self.block, left)
            random = pick_blocks(draws, row, low, high, left)
        near = [row, row - 1] + [torch.where(row + 1 < blocks, row + 1, -1)] * (not self.causal)
        if self.repeats:
            near += [torch.where(row > 1, 0, -1), torch.where(row < blocks - 2, blocks - 1, -1)]
        lists = torch.cat([x.expand(*random.shape[:3], -1) for x in (*near, random)], 3)
        if start + rows < lists.shape[3] and not self.repeats:
            # There are fewer blocks than slots: drop empty slots.
            others = lists[..., 1:].sort(descending=True).values[..., : start + rows - 1]
            lists = torch.cat([lists[..., :1], others], 3)
        return lists
