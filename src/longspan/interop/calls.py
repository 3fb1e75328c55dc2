"""Calls of transformers' attention modules, translated to calls of a mechanism."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.errors import InputError
from longspan.interop.decoding import attend_last
from longspan.interop.masks import order_of, real_keys

REFUSED = {
    "softcap": "a cap on the scores (softcap)",
    "cache": "a paged cache (cache)",
    "cu_seq_lens_q": "packed sequences (cu_seq_lens_q)",
    "output_attentions": "weights as an output (output_attentions)",
    "sinks": "a sink for each query (sinks)",
    "indices": "a choice of keys by the model (indices)",
    "block_indices": "a choice of keys by the model (block_indices)",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """Properties of a call that the choice of the mechanism depends on.

    Attributes:
        causal: whether the module is causal.
        heads: number of heads of queries.
        head_dim: head dimension.
        dropout: probability with which a weight is dropped.
        dtype: dtype of the inputs.
        device: device of the inputs.
    """

    causal: bool
    heads: int
    head_dim: int
    dropout: float
    dtype: torch.dtype
    device: torch.device


class Choice(NamedTuple):
    """Mechanism of a module, and further inputs of its call."""

    attention: Attention
    global_positions: tuple[int, ...] = ()
    extra: dict[str, Any] = {}


class AttentionFunction:
    """Attention function for transformers' AttentionInterface.

    A layer with a sliding window of its own keeps it: it runs exact attention within the window,
    whichever mechanism the other layers have.
    """

    def __init__(self, choose: Callable[[nn.Module, Request], Choice]):
        """Store the function that returns the mechanism of a module."""
        self.choose = choose

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Compute attention.

        Args:
            module: attention module that calls.
            query: queries (B, H, T, D).
            key: keys (B, G, S, D), those of the cache included.
            value: values (B, G, S, E).
            attention_mask: True at real keys (B, 1, 1, S), from `create_padding_mask`; None: all
                are.
            dropout: probability with which a weight is dropped.
            scaling: factor of the products.
            is_causal: whether keys after the query are excluded; None: `module.is_causal`.
            position_bias: numbers added to the scores.
            sliding_window: window of the module's own: keys less than so many positions away.
            s_aux: logits of the module in the denominators of its heads (H,), as in gpt-oss.
            kwargs: other arguments of transformers; those in `REFUSED` must be absent.

        Returns:
            Mixed values (B, T, H, E), and None in place of the weights.

        Raises:
            InputError: the call has something that the mechanism does not support.
        """
        causal = find_causality(module, is_causal)
        reasons = _order_refusals(attention_mask, causal, query.shape[2], sliding_window)
        _refuse_call(module, attention_mask, sliding_window, kwargs, reasons)
        query, key, value = _autocast(query, key, value)
        key_mask = real_keys(attention_mask)
        if key_mask is not None:
            # A cache of fixed size returns room for later tokens as well.
            key, value = (x[:, :, : key_mask.shape[1]] for x in (key, value))
        (_, heads, _, head_dim), S = query.shape, key.shape[2]
        request = Request(causal, heads, head_dim, dropout, query.dtype, query.device)
        if sliding_window is None:
            choice = self.choose(module, request)
            _refuse_cross_attention(module, choice.attention)
        else:
            choice = Choice(_window(sliding_window - 1, causal, dropout))
        extra = dict(choice.extra)
        if choice.global_positions:
            marked = [p for p in choice.global_positions if p < S]
            extra["global_mask"] = query.new_zeros(len(query), S, dtype=torch.bool)
            extra["global_mask"][:, marked] = True
        scale = None if scaling is None or scaling == head_dim**-0.5 else scaling
        bias = None if position_bias is None else position_bias[..., :S].to(query.dtype)
        inputs = (query, key, value, key_mask, scale, bias)
        out = attend_last(choice.attention, *inputs, s_aux, **extra)
        return out.transpose(1, 2).contiguous(), None


def _order_refusals(
    mask: Tensor | None, causal: bool, queries: int, window: int | None
) -> list[str]:
    """Return the reasons why a call is not what its mask says: transformers obeys the mask."""
    reasons, order = [], order_of(mask)
    if order and order.causal != causal and queries > 1:
        kinds = ("bidirectional", "causal") if causal else ("causal", "bidirectional")
        reasons.append("the mask is {}, and the module's is_causal says {}".format(*kinds))
    if order and order.window != (window is not None):
        kinds = ("no", "a") if window else ("a", "no")
        reasons.append("the mask has {} sliding window, and the call has {}".format(*kinds))
    return reasons


def _refuse_call(
    module: nn.Module,
    mask: Tensor | None,
    window: int | None,
    arguments: dict[str, Any],
    reasons: list[str],
) -> None:
    """Raise InputError with every reason why a call is not supported by any mechanism."""
    reasons = reasons + [
        f"{text} is not supported"
        for name, text in REFUSED.items()
        if arguments.get(name) is not None and arguments[name] is not False
    ]
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1:-1] != (1, 1)):
        expected = "the mask must mark real tokens, (B, 1, 1, S), as longspan's mask function does"
        reasons.append(f"{expected}; got {mask.dtype} of shape {tuple(mask.shape)}")
    if window is None and _has_window(module):
        reasons.append("the layer has a sliding window that it does not pass on")
    if reasons:
        raise InputError(
            f"longspan attention does not support this call of {type(module).__name__}: "
            f"{'; '.join(reasons)}; use attn_implementation='eager'"
        )


def find_causality(module: nn.Module, is_causal: bool | None) -> bool:
    """Return whether a call is causal: its argument, else the attribute of its module.

    Raises:
        InputError: neither says so.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    if is_causal is None:
        raise InputError(
            f"{type(module).__name__} does not say whether it is causal (is_causal), so longspan "
            "attention cannot replace its own; use attn_implementation='eager'"
        )
    return is_causal


def _has_window(module: nn.Module) -> bool:
    """Return whether the configuration gives the module's layer a sliding window."""
    kinds = getattr(getattr(module, "config", None), "layer_types", None)
    index = getattr(module, "layer_idx", None)
    if not kinds or not isinstance(index, int) or index >= len(kinds):
        return False
    return kinds[index] == "sliding_attention"


def may_be_cross_attention(module: nn.Module, causal: bool) -> bool:
    """Return whether a module may attend to another sequence, even one of the same length."""
    config = getattr(module, "config", None)
    names = ("is_encoder_decoder", "add_cross_attention")
    if causal or not any(getattr(config, name, False) for name in names):
        return False
    return getattr(module, "is_decoder", True)


def _refuse_cross_attention(module: nn.Module, attention: Attention) -> None:
    if not attention.traits.cross and may_be_cross_attention(module, attention.causal):
        raise InputError(
            f"{attention.name} does not support cross-attention (traits.cross), which "
            f"{type(module).__name__} may be; use attn_implementation='sdpa'"
        )


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in the dtype of autocast, as torch's own attention has them."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [x.to(torch.get_autocast_dtype(device)) for x in tensors]


@functools.lru_cache(maxsize=64)
def _window(window: int, causal: bool, dropout: float) -> Attention:
    """Build attention within a window of a module's own."""
    attention = build("local", window=window, causal=causal, weight_dropout=dropout)
    return attention.train(dropout > 0)
