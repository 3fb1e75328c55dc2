"""Global tokens, possibly a different number per row: they attend to all and are attended by all.

A mechanism removes them from its own keys (`local keys = real & ~is_global`), adds the k and v of
`GlobalTokens` to the keys of every query, and replaces the rows of the tokens themselves, so that
no key counts twice. Xiong et al. 2022, section 3.
"""

import torch
from torch import Tensor

from longspan.attention.derivatives import apply_function, values_of
from longspan.attention.ops.open_sizes import fit_block
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.relative_bias import RelativeBias
from longspan.errors import InputError


def combine_global_masks(
    fixed: tuple[int, ...], key_mask: Tensor | None, global_mask: Tensor | None, q: Tensor
) -> Tensor | None:
    """Return the mask of global tokens: those at fixed positions, and real ones of the caller.

    A token at a fixed position attends to all even if the key mask hides it as a key.
    """
    B, _, T, _ = q.shape
    inside = [p for p in fixed if p < T]
    if global_mask is None and not inside:
        return None
    joined = torch.zeros(B, T, dtype=torch.bool, device=q.device)
    joined[:, inside] = True
    if global_mask is None:
        return joined
    return joined | (global_mask if key_mask is None else global_mask & key_mask)


class _Take(torch.autograd.Function):
    """Rows of x (B, H, T, D) at distinct positions (B, G), (B, H, G, D).

    Torch's own gather copies single numbers, or x itself where it is the view of a projection, and
    its gradient adds where a copy suffices.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, index: Tensor) -> Tensor:
        return x.transpose(1, 2)[_batch(index), index].transpose(1, 2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.length = inputs[0].shape[2]
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx, grad: Tensor):
        (index,), (B, H, _, D) = ctx.saved_tensors, grad.shape
        out = grad.new_zeros(B, ctx.length, H, D)
        out[_batch(index), index] = grad.transpose(1, 2)
        return out.transpose(1, 2), None

    @staticmethod
    def tangents(ctx, tangent: Tensor, *_):
        return apply_function(_Take, tangent, ctx.saved_tensors[0])


class _Put(torch.autograd.Function):
    """x (B, H, T, D) with rows (B, H, G, D) at distinct positions (B, G), where `real` is True."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rows: Tensor, index: Tensor, real: Tensor) -> Tensor:
        tokens, at = x.transpose(1, 2), (_batch(index), index)
        rows = torch.where(real[..., None, None], rows.transpose(1, 2), tokens[at])
        return tokens.index_put(at, rows).transpose(1, 2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])

    @staticmethod
    def backward(ctx, grad: Tensor):
        index, real = ctx.saved_tensors
        rows = apply_function(_Take, grad, index)
        zeros = torch.zeros_like(rows)
        by_x = apply_function(_Put, grad, zeros, index, real)
        return by_x, torch.where(real[:, None, :, None], rows, zeros), None, None

    @staticmethod
    def tangents(ctx, x: Tensor, rows: Tensor, *_):
        return apply_function(_Put, x, rows, *ctx.saved_tensors)


def _batch(index: Tensor) -> Tensor:
    """Return the row of the batch of each index (B, G), to look both up."""
    return torch.arange(index.shape[0], device=index.device)[:, None]


class GlobalTokens:
    """Global tokens of a batch, packed to `count`, at least the maximum number per row."""

    def __init__(
        self, is_global: Tensor, count: int, k: Tensor, v: Tensor, key_mask: Tensor | None
    ):
        self.is_global = is_global
        # A stable sort moves the global positions to the front and keeps their order.
        self.index = torch.argsort(is_global.byte(), dim=1, descending=True, stable=True)[:, :count]
        self.real = is_global.gather(1, self.index)
        keys = is_global if key_mask is None else is_global & key_mask
        self.real_keys = keys.gather(1, self.index)
        self.k, self.v = self.gather(k), self.gather(v)

    def gather(self, x: Tensor) -> Tensor:
        """Gather the rows of x (B, H, T, D) at the global tokens, (B, H, G, D)."""
        return apply_function(_Take, x, self.index)

    def gather_bias(self, bias: Tensor | RelativeBias, dim: int) -> Tensor:
        """Gather the rows (dim 2) or columns (dim 3) of a bias (B or 1, H or 1, T, T)."""
        if isinstance(bias, RelativeBias):
            at = bias.rows if dim == 2 else bias.columns
            return at(self.index, self.is_global.shape[1])
        bias = bias.expand(self.index.shape[0], -1, -1, -1)
        index = self.index[:, None, :, None] if dim == 2 else self.index[:, None, None, :]
        shape = list(bias.shape)
        shape[dim] = self.index.shape[1]
        return bias.gather(dim, index.expand(shape))

    def local_keys(self, key_mask: Tensor | None) -> Tensor:
        """Return the mask (B, T) of keys left to the mechanism: real and not global."""
        return ~self.is_global if key_mask is None else key_mask & ~self.is_global

    def row_mask(self, key_mask: Tensor | None, causal: bool) -> Tensor | None:
        """Return the keys that the tokens attend to, (B or 1, 1, G or 1, T); None: all."""
        mask = None if key_mask is None else key_mask[:, None, None, :]
        if not causal:
            return mask
        position = torch.arange(self.is_global.shape[1], device=self.index.device)
        past = position <= self.index[:, None, :, None]
        return past if mask is None else mask & past

    def slot_mask(self, T: int, causal: bool) -> Tensor:
        """Return the tokens that each of T queries may attend, (B, 1, T or 1, G)."""
        real = self.real_keys[:, None, None]
        if not causal:
            return real
        position = torch.arange(T, device=self.index.device)[:, None]
        return real & (self.index[:, None, None] <= position)

    def scatter_rows(self, rows: Tensor, out: Tensor) -> Tensor:
        """Put `rows` (B, H, G, E) of the tokens into their positions in `out` (B, H, T, E)."""
        # Unused slots keep the row they point to.
        return apply_function(_Put, out, rows, self.index, self.real)


def gather_global_tokens(
    fixed: tuple[int, ...],
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    global_mask: Tensor | None,
    most: int | None,
) -> GlobalTokens | None:
    """Gather the global tokens at fixed positions and from the caller; None if there are none.

    `most` is the maximum number of the caller's tokens per row, or None.
    """
    is_global = combine_global_masks(fixed, key_mask, global_mask, k)
    if is_global is None:
        return None
    count = count_slots(is_global, len(fixed), global_mask, most)
    return GlobalTokens(is_global, count, k, v, key_mask) if count else None


def count_slots(is_global: Tensor, fixed: int, global_mask: Tensor | None, most: int | None) -> int:
    """Return a number of slots that holds the global tokens of every row.

    Args:
        is_global: all global tokens (B, T).
        fixed: maximum number of those that the mechanism itself chooses.
        global_mask: global tokens of the caller, or None.
        most: maximum number of the caller's tokens per row, or None: they are counted, which
            synchronizes the device and needs values.
    """
    if global_mask is None:
        return fit_block(fixed, is_global.shape[1])
    if most is not None:
        return fit_block(fixed + most, is_global.shape[1])
    if is_global.is_meta or torch.compiler.is_exporting():
        raise InputError("global_mask has no values to count: build with max_global_tokens=")
    # torch.compile stops its graph here unless max_global_tokens is given.
    return int(values_of(is_global.sum(1)).max())


def replace_global_rows(
    out, q, k, v, global_tokens, key_mask, causal, itself=True, bias=None, dropout=0.0, sink=None
) -> Tensor:
    """Replace the rows of global tokens: they attend to every real key.

    With `itself=False` a token attends to itself only if there is no other key.
    """
    mask = global_tokens.row_mask(key_mask, causal)
    if not itself:
        same = torch.arange(q.shape[2], device=q.device) == global_tokens.index[:, None, :, None]
        other = ~same if mask is None else mask & ~same
        mask = other | (same & ~other.any(-1, keepdim=True))
    bias = None if bias is None else global_tokens.gather_bias(bias, 2)
    rows = softmax_attention(global_tokens.gather(q), k, v, mask, bias, dropout, sink)
    return global_tokens.scatter_rows(rows, out)
