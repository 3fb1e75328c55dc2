"""Base class of attention mechanisms.

Letters: B batch, H heads, T queries, S keys, D head dimension of queries and keys, E of values.
With grouped-query heads, keys and values have G heads, a divisor of H. Masks are boolean and True
means "may be attended". The layout is always (B, H, T, D).
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention.cache import Cache, append_tokens, clear_rows
from longspan.attention.grouped_heads import (
    drop_repeated_heads,
    repeat_cached_heads,
    repeat_heads,
)
from longspan.attention.masking import both_masks, mask_layer_input, zero_masked
from longspan.attention.refusals import (
    bias_refusals,
    global_token_refusals,
    input_refusals,
    mask_refusals,
    padding_refusals,
    scale_refusals,
)
from longspan.attention.registry import KERNELS, register
from longspan.attention.traits import LayerInput, Traits
from longspan.errors import InputError
from longspan.shapes import Bool, Float

_INSTANCES = itertools.count()
__all__ = ["Attention", "Cache", "LayerInput", "Traits", "append_tokens", "register"]


class Attention(nn.Module):
    """Map queries, keys and values to outputs. The projections belong to the model.

    A mechanism implements one function twice: `attend` (as fast as plain PyTorch allows, on every
    device, differentiable) and `reference` (the formula, written plainly). Both receive inputs that
    `forward` has checked, with zeros at padded positions. `forward` is the only public entry point
    and the only place of checks.

    Attributes:
        traits: properties with default options; an instance replaces what its options change.
        name: key in `MECHANISMS`.
        size_option: option that trades memory for reach, or None; see `register`.
        small_options: options for sequences of a few dozen tokens, for tests and pictures.
        causal: whether outputs depend only on earlier positions.
        detaches_memory: whether gradients stop between a step, or segment, and the ones before it.
        shared_state: names of state tensors that are equal for heads with the same keys and values.
        takes_groups: whether `attend` and `reference` take keys and values of G heads; if not, they
            are repeated for all H heads, in memory as well (a cache keeps G heads).
        empty_state: value of a state tensor before the first real token, by name; zero if absent.
        redraw_every: training steps between two calls of `redraw`; None: no redraws.
        has_unused_parameters: whether some parameters may receive no gradient in a training step.
        backend: requested backend.
        backend_used: backend of the last call.
        max_global_tokens: largest number of global tokens per row; None: counted in each call.
        weight_dropout: probability with which a weight is dropped in training.
        signature: name and options of `build`, or class and number of an instance made without it;
            a cache belongs to one signature.
    """

    traits: Traits
    name: ClassVar[str]
    size_option: ClassVar[str | None] = None
    small_options: ClassVar[dict[str, Any]] = {}
    causal: bool = False
    detaches_memory: bool = False
    shared_state: ClassVar[tuple[str, ...]] = ("k", "v")
    takes_groups: ClassVar[bool] = False
    empty_state: ClassVar[dict[str, float]] = {}
    redraw_every: int | None = None
    has_unused_parameters: bool = False
    backend: str = "auto"
    backend_used: str | None = None
    max_global_tokens: int | None = None
    weight_dropout: float = 0.0

    def __init__(self):
        """Number the instance; `build` names its options instead."""
        super().__init__()
        self.signature = f"{type(self).__name__} {next(_INSTANCES)}"

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S E"],
        mask: Bool[Tensor, "B T"] | None = None,
        *,
        key_mask: Bool[Tensor, "B S"] | None = None,
        query_mask: Bool[Tensor, "B T"] | None = None,
        global_mask: Bool[Tensor, "B S"] | None = None,
        layer_input: LayerInput | None = None,
        shared: Tensor | None = None,
        scale: float | None = None,
        bias: Float[Tensor, "#B #H T S"] | None = None,
    ) -> Float[Tensor, "B H T E"]:
        """Compute attention.

        Args:
            q: queries.
            k: keys; each of their G heads serves H / G consecutive heads of queries.
            v: values.
            mask: True at real tokens of self-attention: both `key_mask` and `query_mask`.
            key_mask: True at real keys. A False key has no influence, whatever its content (NaN
                included).
            query_mask: True at real queries; the output is zero at the others, no gradient flows
                from them, and other rows do not change. With `traits.mixes_queries` rows of keys
                that `key_mask` hides are zero as well.
            global_mask: True at tokens that attend to all and are attended by all (within the
                masks and the causal order); their number may differ between samples.
            layer_input: tensor that q, k and v were projected from; used if
                `traits.needs_layer_input`.
            shared: parameter that all layers of a model share, which the model owns; see
                `release_shared`. None: the mechanism owns its parameters.
            scale: factor of the products q . k; None: 1 / sqrt(D).
            bias: numbers added to the scaled products; -inf hides a pair.

        Returns:
            Mixed values. Rows of queries with nothing to attend are zero. With a causal mechanism
            and T < S the last query sees all keys, as in decoding.

        Raises:
            InputError: the inputs are not supported; the message lists every reason.
        """
        reasons = self.refusals(q, k, v, key_mask, query_mask, global_mask)
        reasons += padding_refusals(mask, key_mask, query_mask, q, k)
        reasons += self._layer_input_refusals(k, layer_input) + self._shared_refusals(shared)
        reasons += scale_refusals(scale, self.traits.scale)
        reasons += bias_refusals(bias, q, k.shape[2], self.traits.bias)
        if reasons:
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        if mask is not None:
            key_mask = query_mask = mask
        if reasons := global_token_refusals(global_mask, key_mask, self.max_global_tokens):
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        layer_input = mask_layer_input(layer_input, key_mask)
        own = query_mask
        if self.traits.mixes_queries:
            # Other rows read the queries: only the key mask says which tokens exist.
            own, query_mask = key_mask, both_masks(key_mask, query_mask)
        q, k, v = zero_masked(q, own), zero_masked(k, key_mask), zero_masked(v, key_mask)
        q, k, v = self._scale_and_repeat(q, k, v, scale)
        extra = self._optional_inputs(layer_input, shared, bias)
        extra = (global_mask, *extra) if self.traits.global_tokens else extra
        self.backend_used, body = self._select_backend(q, k, v, key_mask, *extra)
        with _without_autocast(q.device):
            out = body(self, q, k, v, key_mask, *extra)
        return zero_masked(out, query_mask)

    def step(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B G S D"],
        v: Float[Tensor, "B G S E"],
        cache: Cache | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        *,
        layer_input: LayerInput | None = None,
        scale: float | None = None,
        bias: Float[Tensor, "#B #H T L"] | None = None,
    ) -> tuple[Float[Tensor, "B H T E"], Cache]:
        """Extend a causal sequence by T >= 1 tokens: decoding, or one segment after another.

        Args:
            q: queries of the new tokens.
            k: keys of the new tokens (S = T).
            v: values of the new tokens.
            cache: cache that the previous step returned; None starts a sequence.
            mask: True at new tokens that are real, as in `forward`.
            layer_input: layer input of the new tokens, as in `forward`.
            scale: factor of the products, as in `forward`.
            bias: numbers added to the scores of the new tokens, for all L tokens so far.

        Returns:
            The rows that `forward` would return for the new tokens at the end of the whole sequence
            so far, and the cache for the next step.

        Raises:
            InputError: the mechanism is not causal, the cache belongs to another mechanism, to
                other options or other inputs, or `forward` would refuse the inputs.
        """
        if not isinstance(cache, Cache | None):
            raise InputError(f"cache must be that of a step or None, got {type(cache).__name__}")
        reasons = self.refusals(q, k, v) + self._step_refusals(q, k, v, cache, layer_input)
        length = q.shape[2] + (0 if cache is None else cache.length)
        reasons += bias_refusals(bias, q, length, self.traits.bias)
        reasons += mask_refusals("mask", mask, (q.shape[0], q.shape[2]), q.device)
        reasons += scale_refusals(scale, self.traits.scale)
        if reasons:
            raise InputError(f"{self.name} does not support this step: {'; '.join(reasons)}")
        q, k, v = (zero_masked(x, mask) for x in (q, k, v))
        groups, names = k.shape[1], () if self.takes_groups else self.shared_state
        q, k, v = self._scale_and_repeat(q, k, v, scale)
        cache = repeat_cached_heads(cache, names)
        extra = self._optional_inputs(mask_layer_input(layer_input, mask), None, bias)
        with _without_autocast(q.device):
            out, state = self.advance(q, k, v, mask, cache, *extra)
        made = self.make_cache(length, q, v, state)
        return zero_masked(out, mask), drop_repeated_heads(made, groups, names)

    def reset(self, cache: Cache, rows: Bool[Tensor, " B"]) -> Cache:
        """Clear the cached tokens of some rows of the batch, for example at a document boundary.

        Args:
            cache: cache that a step returned; it is not modified.
            rows: True at the rows to clear.

        Returns:
            A cache in which their previous tokens are padding. Positions continue for the batch.

        Raises:
            InputError: another mechanism made the cache, or `rows` is no boolean mask of its batch.
        """
        reasons = cache.maker_refusals(self.signature)
        reasons += mask_refusals("rows", rows, cache.shape[:1], cache.device)
        if reasons:
            raise InputError(f"{self.name} does not support this reset: {'; '.join(reasons)}")
        return clear_rows(cache, rows, self.empty_state)

    def make_cache(self, length: int, q: Tensor, v: Tensor, state: dict[str, Tensor]) -> Cache:
        """Return the cache after `length` tokens, the last of which were q and v."""
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        return Cache(self.signature, length, shape, q.dtype, v.shape[1], state)

    def refusals(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        global_mask: Tensor | None = None,
    ) -> list[str]:
        """Return the reasons why these inputs are not supported. Mechanisms extend the list."""
        reasons = input_refusals(q, k, v)
        (B, _, T, _), S = q.shape, k.shape[-2]
        reasons += mask_refusals("key_mask", key_mask, (B, S), q.device)
        reasons += mask_refusals("query_mask", query_mask, (B, T), q.device)
        reasons += mask_refusals("global_mask", global_mask, (B, S), q.device)
        if T != S and not self.traits.cross:
            reasons.append(f"cross-attention is not supported (traits.cross), got T={T} and S={S}")
        if global_mask is not None and not self.traits.global_tokens:
            reasons.append("global_mask is not supported (traits.global_tokens)")
        if self.causal and T > S:
            reasons.append(f"causal=True requires T <= S, got T={T} and S={S}")
        return reasons

    def split_refusals(self) -> list[str]:
        """Return the reasons why a process cannot attend from a part of the queries to all keys.

        If there are none, the rows equal those of a call with all queries.
        """
        reasons = []
        if not self.traits.cross:
            reasons.append("all queries must be in one process (traits.cross)")
        if self.causal:
            reasons.append("causal=True aligns the last query with the last key")
        return reasons

    def release_shared(self) -> nn.Parameter | None:
        """Give up the parameter that all layers of a model share, and return it; None: none.

        A model calls this once on the mechanism of every layer, registers the parameter of the
        first as its own, and passes it to every call as `shared`.
        """
        return None

    def copy_projections(self, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> None:
        """Start projections of the mechanism's own as copies of the layer's.

        A model calls this once on a new mechanism whose `traits.inputs` are "qkv". The default
        copies nothing.
        """

    @property
    def dropout(self) -> float:
        """Probability with which a weight is dropped now: zero outside training."""
        return self.weight_dropout if self.training else 0.0

    def attend(self, q, k, v, key_mask, *global_mask):
        """Compute the output fast. Inputs are checked, and zero at padded positions."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def reference(self, q, k, v, key_mask, *global_mask):
        """Compute the same function as plainly as possible."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def advance(self, q, k, v, key_mask, cache, *extra):
        """Compute a step and the new state. Inputs are checked and zeroed like those of `attend`.

        The default keeps all keys and values (and queries, if the mechanism needs as many of them;
        and layer inputs), and calls `attend` on the whole sequence. Mechanisms with a smaller state
        override it; `extra` are layer input and bias, as the traits declare.
        """
        new = {"k": k, "v": v} if self.traits.cross else {"q": q, "k": k, "v": v}
        layer_input, *others = extra if self.traits.needs_layer_input else (None, *extra)
        if layer_input is not None:
            new["states"] = layer_input.states[:, None]
        state = append_tokens(cache, new, key_mask)
        if layer_input is not None:
            layer_input = dataclasses.replace(layer_input, states=state["states"][:, 0])
        more = self._optional_inputs(layer_input, None, *(others or [None]))
        keys = state["k"], state["v"], state.get("real")
        out = self.attend(state.get("q", q), *keys, *(None,) * self.traits.global_tokens, *more)
        return out[:, :, out.shape[2] - q.shape[2] :], state

    def attention_weights(self, q, k, key_mask) -> Tensor | None:
        """Return the weights (B, H, T, S) if computing them alone is cheaper than mixing values.

        Inputs are zero at padded positions. The default returns None: callers then obtain the
        weights by mixing the identity.
        """
        return None

    def redraw(self, seed: int) -> None:
        """Draw random tensors anew, between training steps. The default does nothing."""

    def flops(self, T: int, head_dim: int) -> int:
        """Return the forward FLOPs of one head (a multiply-add counts as two)."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def pairs(self, T: int) -> int | tuple[int, ...] | None:
        """Return the attended pairs of one head, or of each if they differ; None: undefined."""
        return None

    def _shared_refusals(self, shared: Tensor | None) -> list[str]:
        if shared is None or self.traits.shares_parameter:
            return []
        return ["shared is not supported (traits.shares_parameter)"]

    def _scale_and_repeat(self, q, k, v, scale):
        """Return queries whose product with a key, over sqrt(D), has the factor; and all heads."""
        if scale is not None:
            q = q * (scale * q.shape[3] ** 0.5)
        if self.takes_groups:
            return q, k, v
        return q, repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])

    def _optional_inputs(self, layer_input, shared, bias) -> tuple:
        """Return the inputs after the masks, as the traits declare."""
        traits = self.traits
        inputs = (layer_input,) * traits.needs_layer_input + (shared,) * traits.shares_parameter
        return inputs + (bias,) * traits.bias

    def _layer_input_refusals(self, k: Tensor, layer_input: LayerInput | None) -> list[str]:
        if layer_input is None:
            return []
        if not self.traits.needs_layer_input:
            return ["layer_input is not supported (traits.needs_layer_input)"]
        if not isinstance(layer_input, LayerInput):
            return [f"layer_input must be a LayerInput, got {type(layer_input).__name__}"]
        expected, got = (k.shape[0], k.shape[2]), tuple(layer_input.states.shape[:2])
        if got != expected:
            return [f"layer_input.states must be (B, S, W) with (B, S) = {expected}, got {got}"]
        return []

    def _step_refusals(self, q, k, v, cache, layer_input) -> list[str]:
        reasons = [] if layer_input is None else self._layer_input_refusals(k, layer_input)
        if not self.causal:
            reasons.append("step() requires causal=True")
        if q.shape[2] != k.shape[2]:
            reasons.append(
                f"step() requires as many queries as keys, got T={q.shape[2]} and S={k.shape[2]}"
            )
        return reasons if cache is None else reasons + cache.refusals(self.signature, q, v)

    def _select_backend(self, *inputs) -> tuple[str, Callable]:
        """Return the requested backend, or the first kernel that supports the inputs."""
        cls = type(self)
        own = {"torch": cls.attend, "reference": cls.reference}
        if self.backend in own:
            return self.backend, own[self.backend]
        for name, kernel in KERNELS.get(cls, {}).items():
            if self.backend == "auto" and not kernel.automatic:
                continue
            if self.backend in ("auto", name):
                reasons = kernel.refusals(self, *inputs)
                if not reasons:
                    return name, kernel.run
                if self.backend == name:
                    refused = f"{self.name}: kernel {name!r} does not support these inputs"
                    raise InputError(f"{refused}: {'; '.join(reasons)}")
        return "torch", cls.attend


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Disable autocast on a device that has it; the meta device has none."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)
