"""Mask function for transformers' AttentionMaskInterface: padding (B, 1, 1, S), never T x S."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig, masking_utils
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    packed_sequence_mask_function,
    sliding_window_bidirectional_overlay,
    sliding_window_overlay,
)

from longspan.errors import InputError
from longspan.shapes import Bool

_PACKED_REFUSAL = (
    "compiled longspan attention supports no packed sequences (position_ids that restart); "
    "use attn_implementation='sdpa'"
)
# transformers composes masks of closures; their code tells which they are.
_INTERSECTION = and_masks(causal_mask_function).__code__
_PACKED = packed_sequence_mask_function(torch.zeros(1, 1)).__code__
# Later than transformers 5.16.
_remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
_REMAPPED = _remap and _remap(causal_mask_function, torch.zeros(1, 1)).__code__
_ORDER = "longspan_order"  # of a mask
_WINDOWS = (sliding_window_overlay(1).__code__, sliding_window_bidirectional_overlay(1).__code__)


class Order(NamedTuple):
    """Pairs that a mask of transformers excludes beyond padding, as its call should.

    Attributes:
        causal: whether keys after the query are excluded.
        window: whether keys out of a sliding window are excluded.
        every: whether all keys are real.
    """

    causal: bool
    window: bool
    every: bool


def order_of(mask: Tensor | None) -> Order | None:
    """Return the order of a mask that `create_padding_mask` made; None: it is not known."""
    return getattr(mask, _ORDER, None)


def real_keys(mask: Tensor | None) -> Tensor | None:
    """Return the real keys (B, S) of a mask; None: all are."""
    order = order_of(mask)
    return None if mask is None or (order and order.every) else mask[:, 0, 0]


def create_padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: Any = "cpu",
    local_size: int | None = None,
    config: PretrainedConfig | None = None,
    **kwargs: Any,
) -> Bool[Tensor, "B 1 1 S"]:
    """Return the keys that are real.

    The order of time and a sliding window reach the mechanism as `is_causal` and `sliding_window`
    of the call, not in the mask, whose `Order` the call is compared with. The signature is that of
    transformers, which passes a mask of four axes on as it is: `generate` creates masks before a
    model asks for them.

    Args:
        batch_size: B.
        q_length: number of queries.
        kv_length: number of keys that the cache returns, including those that it has not written.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: pairs that may attend, composed by transformers.
        attention_mask: True at real tokens (B, number of tokens so far), or None.
        device: device of the mask.
        local_size: size of the sliding window, if transformers creates its mask.
        config: configuration of the model, or None.
        kwargs: arguments for the mask functions of transformers, which padding does not need.

    Returns:
        Mask of the keys that exist: a cache of fixed size has room for more.

    Raises:
        InputError: the mask has no such form: packed sequences, chunks, blocks, custom functions;
            or the model applies it by its own code.
    """
    if config is not None:
        _refuse_own_attention(type(config))
    parts = _parts(mask_function)
    if torch.compiler.is_compiling():
        parts = _without_packing(parts)
    supported = (causal_mask_function, bidirectional_mask_function)
    if not all(x in supported or (local_size and x.__code__ in _WINDOWS) for x in parts):
        raise InputError(
            "longspan attention supports padding, causal masks and sliding windows, but no "
            "packed sequences, chunks, blocks of image tokens or custom mask functions; "
            "use attn_implementation='sdpa'"
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise InputError(f"attention_mask must be (B, S), got shape {tuple(attention_mask.shape)}")
    written, causal = kv_length, causal_mask_function in parts
    if causal:
        written = min(kv_length, int(q_offset) + q_length - kv_offset)
    mask = torch.ones(1, dtype=torch.bool, device=device).expand(batch_size, written)  # one number
    if attention_mask is not None:
        missing = max(0, kv_offset + kv_length - attention_mask.shape[1])
        # transformers hides the keys for which the mask has no column.
        mask = F.pad(attention_mask.bool(), (0, missing))[:, kv_offset : kv_offset + written]
    every = written == kv_length
    if every and attention_mask is not None:
        # A traced mask has no values.
        every = not torch.compiler.is_compiling() and bool(mask.all())
    return _with_order(mask[:, None, None], Order(causal, local_size is not None, every))


def _with_order(mask: Tensor, order: Order) -> Tensor:
    setattr(mask, _ORDER, order)
    return mask


def _refuse_own_attention(config: type) -> None:
    """Raise InputError for a model that creates masks but does not call the AttentionInterface.

    Its own attention would read this mask as numbers, and None as no order of time. A model that
    calls the interface imports it in its file.
    """
    modules = [cls.__module__ for cls in config.__mro__ if cls not in PretrainedConfig.__mro__]
    # By the names of files: configuration_bloom, modeling_bloom.
    names = [name.replace(".configuration_", ".modeling_") for name in modules]
    files = [name for name in names if name not in modules and name in sys.modules]
    if files and not any(hasattr(sys.modules[name], "ALL_ATTENTION_FUNCTIONS") for name in files):
        raise InputError(
            f"models with {config.__name__} compute attention by their own code ({files[0]}), not "
            "through transformers' AttentionInterface, so longspan attention would never be "
            "called; use attn_implementation='eager', or longspan.models.convert for the families "
            "that it knows"
        )


def _without_packing(parts: list[Callable]) -> list[Callable]:
    """Return the mask functions of a traced call, which asserts that no sequences are packed.

    transformers reads from the positions whether sequences are packed. A traced call has no values,
    so that transformers hides the pairs of different sequences in every such call.
    """
    functions = []
    for part in parts:
        if part.__code__ is _PACKED:
            number = part.__closure__[0].cell_contents  # type: ignore[index]
            torch._assert_async((number == 0).all(), _PACKED_REFUSAL)
        elif part.__code__ is _REMAPPED:
            functions += _parts(part.__closure__[0].cell_contents)  # type: ignore[index]
        else:
            functions.append(part)
    return functions


def _parts(function: Callable) -> list[Callable]:
    """Return the mask functions whose intersection this is."""
    if function.__code__ is not _INTERSECTION:
        return [function]
    functions = function.__closure__[0].cell_contents  # type: ignore[index]
    return [part for one in functions for part in _parts(one)]
