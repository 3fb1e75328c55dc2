"""Calls of FlexAttention (Dong et al. 2024, https://arxiv.org/abs/2412.05496) under a mask.

torch compiles one kernel from the index function of a pattern. The kernel visits tiles of 128
queries and 128 keys that hold an allowed pair. Masks of a call are tensors that the index function
reads, so that another mask, or another length of the same bucket, runs the same kernel:

- Inputs are padded to a bucket (`bucket_length`), because kernels had faults at lengths that are no
  multiple of 128 (pytorch#153799), and each length would be compiled anew (pytorch#136196).
- Shapes are static: dynamic ones returned NaN (pytorch#186775).
- Each kernel is a function of its own, so that torch's limit of 8 compilations per function, beyond
  which it raises or runs without fusion, never counts those of other patterns and lengths.
- Rows without keys are zero by the definition of `flex_attention`.

Global tokens are part of the mask: they are not counted, and the host never waits for the device.
The lists of tiles are made once for a pattern and length, or once for the masks of a batch, which
the layers of a model share.

The kernels run when they are requested by name; docs/development/performance.md has their figures.
"""

import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from longspan.attention.base import Attention
from longspan.attention.derivatives import has_transforms
from longspan.attention.inputs import Inputs
from longspan.attention.kernels import triton
from longspan.attention.kernels.flex.mask_cache import MaskCache
from longspan.attention.kernels.flex.tiles import (
    Tiles,
    TokenMasks,
    bucket_length,
    make_block_mask,
    pad_tokens,
    restrict_tiles,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALLEST, WIDEST = 16, 256  # head dimensions: torch refuses fewer than 16
COMPILER: str | Callable = "inductor"
KERNELS, MASKS = 256, 64  # compiled functions, and lists of tiles, that are kept


class Source(NamedTuple):
    """Allowed pairs of a call, without its key mask.

    Attributes:
        pairs: index function (b, h, q, kv).
        tiles: tiles of the index function.
        is_global: True at global tokens (1 or B, T), or None.
    """

    pairs: Callable
    tiles: Tiles
    is_global: Tensor | None


class Kind(NamedTuple):
    """Functions by which mechanisms differ.

    Attributes:
        own_refusals: (attention, inputs) to the reasons why it does not run.
        source: (attention, inputs) to the pairs of the call.
        identity: attention to what the pairs depend on besides length and masks: a value that is
            equal for instances with the same kernel, and tensors.
    """

    own_refusals: Callable[..., list[str]]
    source: Callable[..., Source]
    identity: Callable[[Any], tuple[Hashable, tuple[Tensor, ...]]]

    def refusals(self, attention: Attention, x: Inputs) -> list[str]:
        """Return the reasons why FlexAttention does not compute these inputs."""
        return _input_refusals(*x[:3]) or self.own_refusals(attention, x)

    def run(self, attention: Attention, x: Inputs) -> Tensor:
        """Compute softmax under the mask of a pattern."""
        (q, k, v, key_mask), global_mask = x[:4], x.global_mask
        T, (identity, tensors) = q.shape[2], self.identity(attention)
        length = bucket_length(T)

        def make() -> BlockMask:
            # Kept tensors may be those of a later call that computes gradients.
            with torch.inference_mode(False), torch.no_grad():
                source = self.source(attention, x)
                return _block_mask(source, attention.causal, q, key_mask)

        place = identity, attention.causal, q.shape[0], T, q.device
        block_mask = _masks.get(place, (*tensors, key_mask, global_mask), make)
        q, k, v = (F.pad(y, (0, 0, 0, length - T)) if length > T else y for y in (q, k, v))
        masks = key_mask is None, global_mask is None
        shapes = q.shape, k.shape[1], v.shape[3], q.dtype, q.device
        run = compile_kernel((identity, attention.causal, *masks, *shapes), COMPILER)
        return run(q, k, v, block_mask)[:, :, :T]


_masks: MaskCache[BlockMask] = MaskCache(MASKS)
_ATTEND = (lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask)).__code__


def _input_refusals(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    """Return the reasons why no pattern of these inputs is computed."""
    if torch.compiler.is_compiling() or isinstance(q, FakeTensor):
        return ["the call is traced, by torch.compile or another"]
    reasons = device_refusals(q, k, v)
    if has_transforms():
        reasons.append("torch.func transforms and forward mode")
    if q.dtype not in DTYPES:
        names = ", ".join(str(x).removeprefix("torch.") for x in DTYPES)
        reasons.append(f"dtype must be one of {names}, got {q.dtype}")
    widths = q.shape[3], v.shape[3]
    if min(widths) < SMALLEST or max(widths) > WIDEST:
        limits = f"between {SMALLEST} and {WIDEST}"
        reasons.append(f"D and E must be {limits}, got {widths[0]} and {widths[1]}")
    return reasons


def device_refusals(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    """Return the reasons why the device does not compute them, or not their gradients."""
    device = q.device.type
    if device == "cuda":
        return [] if triton.IS_INSTALLED else ["the package triton is required on CUDA"]
    if device != "cpu":
        return [f"device must be cuda, or cpu without gradients, got {device}"]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return ["FlexAttention has no backward pass on the CPU; use torch.no_grad()"]
    return []


@functools.lru_cache(KERNELS)
def compile_kernel(key: Hashable, compiler: str | Callable) -> Callable[..., Tensor]:
    """Return a function that is compiled at its first call, one for each key."""
    # torch counts compilations by code object: a copy has none.
    attend = types.FunctionType(_ATTEND.replace(), globals(), "attend")
    return torch.compile(attend, backend=compiler, dynamic=False, fullgraph=True)


def _block_mask(source: Source, causal: bool, q: Tensor, key_mask: Tensor | None) -> BlockMask:
    """Return the tiles of a call and the function that masks them."""
    (B, _, T, _), is_global = q.shape, source.is_global
    length = bucket_length(T)
    rows = B if key_mask is not None else 1
    masks = TokenMasks(
        torch.full((), T, dtype=torch.int32, device=q.device),
        pad_tokens(key_mask, rows, length),
        pad_tokens(is_global, B, length),
        causal,
    )
    tiles = restrict_tiles(source.tiles, masks, length)
    return make_block_mask(tiles, source.pairs, masks, length)
