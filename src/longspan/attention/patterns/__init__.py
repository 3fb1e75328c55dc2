"""Patterns as values: which query-key pairs a sparse mechanism may attend.

A pattern is an index function `(b, h, q, kv) -> bool` (the convention of FlexAttention) that also
knows its block layout, so one value gives everything: the dense mask for references and pictures,
the blocks that a kernel gathers, and the exact number of pairs.

    >>> pattern = Window(2) | Global((0,))
    >>> pattern.pairs(100)
    688
    >>> print(pattern.draw(8))
    ████████
    ████····
    █████···
    ██████··
    █·█████·
    █··█████
    █···████
    █····███
"""

from longspan.attention.patterns.base import BlockLayout, Both, Causal, Either, Pattern
from longspan.attention.patterns.heads import PerHead
from longspan.attention.patterns.random import RandomBlocks
from longspan.attention.patterns.strided import Fixed, Strided
from longspan.attention.patterns.windows import BlockWindow, FirstKeys, Global, Window

__all__ = [
    "BlockLayout",
    "BlockWindow",
    "Both",
    "Causal",
    "Either",
    "FirstKeys",
    "Fixed",
    "Global",
    "Pattern",
    "PerHead",
    "RandomBlocks",
    "Strided",
    "Window",
]
