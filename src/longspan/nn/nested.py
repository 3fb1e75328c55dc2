"""Nested tensors as tokens of documents, one after another."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InputError


@dataclasses.dataclass(frozen=True)
class PackedTokens:
    """Tokens of nested tensors with the same lengths.

    Attributes:
        tokens: tokens of each tensor (total, width).
        cu_seqlens: cumulative lengths, from 0 to the total (documents + 1).
        like: nested tensor whose layout the output has.
    """

    tokens: tuple[Tensor, ...]
    cu_seqlens: Tensor
    like: Any  # torch's annotations do not know the methods of nested tensors

    @classmethod
    def of(cls, inputs: tuple[Tensor, ...]) -> "PackedTokens":
        """Return the tokens of query, key and value.

        Raises:
            InputError: not all are nested, their lengths or layouts differ, or they have gaps.
        """
        if not all(x.is_nested and x.dim() == 3 for x in inputs):
            kinds = ", ".join("nested" if x.is_nested else "dense" for x in inputs)
            raise InputError(f"query, key and value must all be nested (B, *, width), got {kinds}")
        if len({x.layout for x in inputs}) > 1:
            raise InputError("query, key and value must have one layout of nested tensors")
        packings = {id(x): _unpack(x) for x in inputs}
        (_, cu_seqlens), *rest = (packings[id(x)] for x in inputs)
        if not all(torch.equal(cu_seqlens, other) for _, other in rest):
            raise InputError(
                "nested query and key must have the same lengths: attention is within documents"
            )
        return cls(tuple(packings[id(x)][0] for x in inputs), cu_seqlens, inputs[0])

    @property
    def real(self) -> Tensor:
        """True at the tokens of each document, padded to the longest (documents, longest)."""
        lengths = self.cu_seqlens.diff().to(self.tokens[0].device)
        return torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows (total, width) of documents side by side (documents, longest, width)."""
        real = self.real
        padded = rows.new_zeros(*real.shape, rows.shape[1])
        padded[real] = rows
        return padded

    def nest(self, out: Tensor) -> Tensor:
        """Return rows (total, width) as a nested tensor of the inputs' layout and lengths."""
        lengths = self.cu_seqlens.diff().tolist()
        if self.like.layout == torch.jagged:
            # The same offsets make the output addable to the inputs.
            bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)}
            return torch.nested.nested_tensor_from_jagged(out, self.like.offsets(), **bounds)
        return torch.nested.as_nested_tensor(list(out.split(lengths)))


def _unpack(x: Any) -> tuple[Tensor, Tensor]:
    """Return tokens (total, width) and cumulative lengths of a nested tensor."""
    if x.layout == torch.jagged:
        if x.lengths() is not None:
            raise InputError("nested tensors must have no gaps; call contiguous()")
        return x.values(), x.offsets()
    rows = x.unbind()
    lengths = torch.tensor([0, *(len(row) for row in rows)])
    return torch.cat(rows), lengths.cumsum(0)
