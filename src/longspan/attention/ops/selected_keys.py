"""Softmax attention of each query to its own few keys, which all heads share.

A long row that few queries read gathers its keys. Others form all scores of some queries at a time
and hide the keys that are not selected: on CPU a product with all keys takes less time than a copy
of the selected ones for each query.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from longspan.attention.masking import apply_mask, masked_softmax
from longspan.attention.ops.fused import has_fused_kernel, kernel_bias
from longspan.attention.ops.gathered_keys import gathered_softmax
from longspan.attention.ops.open_sizes import is_open
from longspan.attention.ops.precision import dot_products
from longspan.attention.ops.selected_blocks import Selected
from longspan.attention.ops.softmax import softmax_attention
from longspan.attention.ops.softmax_pieces import Gathered, Pieces, softmax_in_pieces

PIECE = 1 << 9  # queries whose scores exist at once
FEW = 16  # keys for each selected key of all queries, from which these are gathered


def softmax_selected(q: Tensor, k: Tensor, v: Tensor, selected: Selected, causal: bool) -> Tensor:
    """Compute softmax attention of each query to the selected keys; rows without any are zero.

    Args:
        q: queries (B, H, T, D); the last one is at the position of the last key.
        k: keys (B, H, S, D).
        v: values (B, H, S, E).
        selected: keys of each query, each at most once (B, T, n).
        causal: whether no selected key is after its query.
    """
    T, S = q.shape[2], k.shape[2]
    traced = torch.compiler.is_compiling() or is_open(S)
    if not traced and FEW * T * selected.index.shape[2] < S:
        return gathered_softmax(q, k, v, *(x[:, None] for x in selected), None)
    if traced or not has_fused_kernel(q, k, v):
        return softmax_attention(q, k, v, dense_mask(selected, S))
    return softmax_in_pieces(_MaskedPieces(selected, S - T, causal), q, k, v)


def dense_mask(selected: Selected, keys: int) -> Tensor:
    """Return True at the selected keys of each query, (B, 1, T, keys)."""
    index, real = selected
    mask = real.new_zeros(*index.shape[:2], keys + 1)
    # Places that hold none write behind the last key.
    return mask.scatter(2, torch.where(real, index, keys), True)[:, None, :, :keys]


class _MaskedPieces(Pieces):
    """Some of the queries of a row of the batch, and all keys up to the last of them."""

    def __init__(self, selected: Selected, before: int, causal: bool):
        self.selected, self.before, self.causal = selected, before, causal

    def divide(self, q: Tensor) -> Iterator[tuple[int, tuple[int, slice]]]:
        for row in range(len(q)):
            for first in range(0, q.shape[2], PIECE):
                yield 0, (row, slice(first, min(first + PIECE, q.shape[2])))

    def view(self, x: Tensor, piece: tuple[int, slice]) -> Tensor:
        return x[piece[0], None, :, piece[1]]

    def gather(self, tensors, number: int, piece: tuple[int, slice]) -> Gathered:
        row, part = piece
        keys, values = (x[row, None, :, : self._keys(x, part)] for x in tensors)
        selected = Selected(*(x[row, None, part] for x in self.selected))
        bias, some = kernel_bias(dense_mask(selected, keys.shape[2]), keys.dtype)
        return Gathered(keys, values, bias, some)

    def add(self, sums, number: int, piece: tuple[int, slice], by_key, by_value) -> None:
        row, part = piece
        for total, new in zip(sums, (by_key, by_value), strict=True):
            total[row, None, :, : self._keys(total, part)] += new

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute all rows from operations that can be differentiated twice."""
        scores = dot_products(q, k, q.shape[3] ** -0.5)
        mask = dense_mask(self.selected, k.shape[2])
        return apply_mask(masked_softmax(scores, mask).to(v.dtype) @ v, mask.any(3, keepdim=True))

    def _keys(self, x: Tensor, part: slice) -> int:
        """Return the number of keys of a piece."""
        return self.before + part.stop if self.causal else x.shape[2]
