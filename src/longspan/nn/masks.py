"""Masks of `torch.nn.MultiheadAttention`, as masks and bias of a mechanism.

Boolean masks of torch are True where attention is forbidden; float masks are added to the scores.
"""

import torch
from torch import Tensor

from longspan.attention import Attention
from longspan.errors import InputError


def padding_mask(
    mask: Tensor | None, shape: tuple[int, int], attention: Attention
) -> tuple[Tensor | None, Tensor | None]:
    """Read `key_padding_mask`.

    Args:
        mask: boolean, True at padding, or float, added to the scores of a key (B, S); or None.
        shape: (B, S).
        attention: mechanism that attends to the keys.

    Returns:
        True at real keys (B, S), or None, and finite numbers to add to their scores, or None.

    Raises:
        InputError: the mask has another shape or dtype, or numbers other than 0 and -inf that the
            mechanism cannot add.
    """
    if mask is None:
        return None, None
    if tuple(mask.shape) != shape or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise InputError(f"key_padding_mask must be boolean or float of shape {shape}, got {got}")
    if mask.dtype == torch.bool:
        return ~mask, None
    hidden = mask.isneginf()
    added = mask.masked_fill(hidden, 0)
    reason = (
        "key_padding_mask must be boolean, or 0 at real keys and -inf at padding; "
        f"{attention.name} adds no other numbers to its scores (traits.bias)"
    )
    if torch.compiler.is_compiling():
        if attention.traits.bias:
            reason = (
                "compiled calls read no numbers of key_padding_mask: it must be boolean, or 0 at "
                "real keys and -inf at padding; pass other numbers as attn_mask"
            )
        torch._assert_async(~added.any(), reason)
        return ~hidden, None
    if not added.any():
        return ~hidden, None
    if not attention.traits.bias:
        raise InputError(reason)
    return ~hidden, added


def pair_bias(
    mask: Tensor | None, is_causal: bool, q: Tensor, keys: int, attention: Attention
) -> Tensor | None:
    """Read `attn_mask` and `is_causal`.

    Args:
        mask: boolean, True at hidden pairs, or float, added to the scores, (T, S) or (B * H, T, S);
            or None.
        is_causal: hint that the mask is the causal one, in which case it is not read.
        q: queries (B, H, T, D).
        keys: number of keys, S.
        attention: mechanism that receives the bias.

    Returns:
        Numbers to add to the scores (1, 1, T, S) or (B, H, T, S); None: the mask hides nothing
        beyond the causal order of the mechanism.

    Raises:
        InputError: the mask has another shape or dtype, or is not the causal mask of a causal
            mechanism and the mechanism has no bias.
    """
    B, H, T, _ = q.shape
    remedy = "build it with attention_options={'causal': True}"
    if mask is None:
        if is_causal and not attention.causal:
            raise InputError(f"is_causal=True requires a causal mechanism; {remedy}")
        return None
    shapes = ((T, keys), (B * H, T, keys))
    if tuple(mask.shape) not in shapes or not (
        mask.dtype == torch.bool or mask.is_floating_point()
    ):
        got = f"{mask.dtype} of shape {tuple(mask.shape)}"
        expected = f"{shapes[0]} or {shapes[1]}"
        raise InputError(f"attn_mask must be boolean or float of shape {expected}, got {got}")
    if attention.causal and ((is_causal and keys == T) or _is_causal_mask(mask)):
        return None
    if not attention.traits.bias:
        reason = f"attn_mask must be the causal mask of a causal {attention.name} ({remedy})"
        raise InputError(f"{reason}; it adds no other mask to its scores (traits.bias)")
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf)
    return mask.to(q.dtype).view(-1, 1 if mask.dim() == 2 else H, T, keys)


def _is_causal_mask(mask: Tensor) -> bool:
    """Return whether a mask hides exactly the future; the last query sees all keys."""
    T, S = mask.shape[-2:]
    future = torch.ones(T, S, dtype=torch.bool, device=mask.device).triu(S - T + 1)
    if mask.dtype == torch.bool:
        return bool((mask == future).all())
    return bool((mask == torch.zeros_like(mask).masked_fill(future, -torch.inf)).all())
