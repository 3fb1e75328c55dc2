"""What a mechanism claims of itself, and what it may be told of where its inputs came from."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from longspan.shapes import Float

Size = Literal["heads", "head_dim", "max_length", "layer"]
Inputs = Literal["qkv", "qv", "v"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traits:
    """What a mechanism claims; each claim has a contract test, and nothing else is asked of it."""

    paper: str  # authors, year and address
    cost: Literal["T", "T^1.5", "T^2"]  # growth of time and memory with the length
    exact: bool  # softmax over its pattern; False: an approximation or another kernel
    causal: bool = False  # has a causal form
    cross: bool = False  # accepts other keys than queries (S != T)
    global_tokens: bool = False  # honours `global_mask`
    inputs: Inputs = "qkv"  # what it reads of q, k, v; a model projects no other
    needs_layer_input: bool = False  # may read `layer_input`, what q, k and v were projected from
    sizes: tuple[Size, ...] = ()  # what `build` must tell its constructor


@dataclasses.dataclass(frozen=True)
class LayerInput:
    """What q, k and v were projected from, for mechanisms with projections of their own.

    Attributes:
        states: the input of the layer (B, S, W), zero at padded positions.
        query: the linear part (no bias) of the query projection: (P, W) to heads (H, P, D).
        key: the same of the key projection.
    """

    states: Float[Tensor, "B S W"]
    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
