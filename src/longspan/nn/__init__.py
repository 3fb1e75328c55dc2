"""Modules with the interface of `torch.nn`. They need torch alone."""

from longspan.nn.multihead_attention import MultiheadAttention

__all__ = ["MultiheadAttention"]
