"""Base class of attention mechanisms, and the registry of mechanisms and kernels.

Letters: B batch, H heads, T queries, S keys, D head dimension of queries and keys, E of values.
Masks are boolean and True means "may be attended". The layout is always (B, H, T, D).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention.cache import Cache, append_tokens, clear_rows
from longspan.attention.masking import apply_mask
from longspan.attention.refusals import input_refusals, mask_refusals
from longspan.attention.traits import LayerInput, Traits
from longspan.errors import InputError, OptionError, check_name
from longspan.shapes import Bool, Float


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
        empty_state: value of a state tensor before the first real token, by name; zero if absent.
        redraw_every: training steps between two calls of `redraw`; None: no redraws.
        has_unused_parameters: whether some parameters may receive no gradient in a training step.
        backend: requested backend.
        backend_used: backend of the last call.
        signature: name, and the options that `build` was given; a cache belongs to one of them.
    """

    traits: Traits
    name: ClassVar[str]
    size_option: ClassVar[str | None] = None
    small_options: ClassVar[dict[str, Any]] = {}
    causal: bool = False
    detaches_memory: bool = False
    empty_state: ClassVar[dict[str, float]] = {}
    redraw_every: int | None = None
    has_unused_parameters: bool = False
    backend: str = "auto"
    backend_used: str | None = None
    signature: str = ""

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        key_mask: Bool[Tensor, "B S"] | None = None,
        *,
        query_mask: Bool[Tensor, "B T"] | None = None,
        global_mask: Bool[Tensor, "B S"] | None = None,
        layer_input: LayerInput | None = None,
        shared: Tensor | None = None,
    ) -> Float[Tensor, "B H T E"]:
        """Compute attention.

        Args:
            q: queries.
            k: keys.
            v: values.
            key_mask: True at real tokens. A False key has no influence, whatever its content (NaN
                included).
            query_mask: True at real queries; the output is zero at the others, no gradient flows
                from them, and other rows do not change. When T == S it defaults to `key_mask`:
                queries and keys are assumed to be the same positions.
            global_mask: True at tokens that attend to all and are attended by all (within the
                masks and the causal order); their number may differ between samples.
            layer_input: tensor that q, k and v were projected from; used if
                `traits.needs_layer_input`.
            shared: parameter that all layers of a model share, which the model owns; see
                `release_shared`. None: the mechanism owns its parameters.

        Returns:
            Mixed values. Rows of queries with nothing to attend are zero. With a causal mechanism
            and T < S the last query sees all keys, as in decoding.

        Raises:
            InputError: the inputs are not supported; the message lists every reason.
        """
        reasons = self.refusals(q, k, v, key_mask, query_mask, global_mask)
        reasons += self._layer_input_refusals(k, layer_input) + self._shared_refusals(shared)
        if reasons:
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        if query_mask is None and q.shape[-2] == k.shape[-2]:
            query_mask = key_mask
        layer_input = _mask_layer_input(layer_input, key_mask)
        # Queries that other rows read are padding only where the key mask says so.
        own = key_mask if self.traits.mixes_queries else query_mask
        q, k, v = _zero_masked(q, own), _zero_masked(k, key_mask), _zero_masked(v, key_mask)
        extra = self._optional_inputs(global_mask, layer_input, shared)
        self.backend_used, body = self._select_backend(q, k, v, key_mask, *extra)
        with torch.autocast(q.device.type, enabled=False):
            out = body(self, q, k, v, key_mask, *extra)
        return _zero_masked(out, query_mask)

    def step(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        cache: Cache | None = None,
        key_mask: Bool[Tensor, "B S"] | None = None,
        layer_input: LayerInput | None = None,
    ) -> tuple[Float[Tensor, "B H T E"], Cache]:
        """Extend a causal sequence by T >= 1 tokens: decoding, or one segment after another.

        Args:
            q: queries of the new tokens.
            k: keys of the new tokens (S = T).
            v: values of the new tokens.
            cache: cache that the previous step returned; None starts a sequence.
            key_mask: True at new tokens that are real.
            layer_input: layer input of the new tokens, as in `forward`.

        Returns:
            The rows that `forward` would return for the new tokens at the end of the whole sequence
            so far, and the cache for the next step.

        Raises:
            InputError: the mechanism is not causal, the cache belongs to another mechanism, to
                other options or other inputs, or `forward` would refuse the inputs.
        """
        reasons = self.refusals(q, k, v, key_mask) + self._step_refusals(q, k, v, cache)
        reasons += [] if layer_input is None else self._layer_input_refusals(k, layer_input)
        if reasons:
            raise InputError(f"{self.name} does not support this step: {'; '.join(reasons)}")
        length = q.shape[2] + (0 if cache is None else cache.length)
        q, k, v = (_zero_masked(x, key_mask) for x in (q, k, v))
        extra = () if layer_input is None else (_mask_layer_input(layer_input, key_mask),)
        with torch.autocast(q.device.type, enabled=False):
            out, state = self.advance(q, k, v, key_mask, cache, *extra)
        return _zero_masked(out, key_mask), self.make_cache(length, q, v, state)

    def reset(self, cache: Cache, rows: Bool[Tensor, " B"]) -> Cache:
        """Clear the cached tokens of some rows of the batch, for example at a document boundary.

        Args:
            cache: cache that a step returned; it is not modified.
            rows: True at the rows to clear.

        Returns:
            A cache in which all previous tokens of those rows count as padding. Positions continue
            for the whole batch.

        Raises:
            InputError: `rows` is not a boolean mask of the cache's batch.
        """
        reasons = mask_refusals("rows", rows, cache.shape[:1], cache.device)
        if reasons:
            raise InputError(f"{self.name} does not support this reset: {'; '.join(reasons)}")
        return clear_rows(cache, rows, self.empty_state)

    def make_cache(self, length: int, q: Tensor, v: Tensor, state: dict[str, Tensor]) -> Cache:
        """Return the cache after `length` tokens, the last of which were q and v."""
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        return Cache(self.signature, length, shape, q.dtype, state)

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

    def attend(self, q, k, v, key_mask, *global_mask):
        """Compute the output fast. Inputs are checked, and zero at padded positions."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def reference(self, q, k, v, key_mask, *global_mask):
        """Compute the same function as plainly as possible."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def advance(self, q, k, v, key_mask, cache, *layer_input):
        """Compute a step and the new state. Inputs are checked and zeroed like those of `attend`.

        The default keeps all keys and values (and queries, if the mechanism needs as many of them;
        and layer inputs), and calls `attend` on the whole sequence. Mechanisms with a smaller state
        override it; `layer_input` is passed only if `traits.needs_layer_input`.
        """
        new = {"k": k, "v": v} if self.traits.cross else {"q": q, "k": k, "v": v}
        for known_input in layer_input:
            new["states"] = known_input.states[:, None]
        state = append_tokens(cache, new, key_mask)
        layer_inputs = [dataclasses.replace(x, states=state["states"][:, 0]) for x in layer_input]
        extra = self._optional_inputs(None, *layer_inputs)
        out = self.attend(state.get("q", q), state["k"], state["v"], state.get("real"), *extra)
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
        """Return the attended query-key pairs of one head, or of each head where heads differ.

        None: the number is undefined, or depends on the input.
        """
        return None

    def _optional_inputs(self, global_mask=None, layer_input=None, shared=None) -> tuple:
        """Return the inputs after q, k, v and the key mask, as the traits declare."""
        traits = self.traits
        inputs = (global_mask,) * traits.global_tokens + (layer_input,) * traits.needs_layer_input
        return inputs + (shared,) * traits.shares_parameter

    def _shared_refusals(self, shared: Tensor | None) -> list[str]:
        if shared is None or self.traits.shares_parameter:
            return []
        return ["shared is not supported (traits.shares_parameter)"]

    def _layer_input_refusals(self, k: Tensor, layer_input: LayerInput | None) -> list[str]:
        if layer_input is None:
            return []
        if not self.traits.needs_layer_input:
            return ["layer_input is not supported (traits.needs_layer_input)"]
        expected, got = (k.shape[0], k.shape[2]), tuple(layer_input.states.shape[:2])
        if got != expected:
            return [f"layer_input.states must be (B, S, W) with (B, S) = {expected}, got {got}"]
        return []

    def _step_refusals(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> list[str]:
        reasons = []
        if not self.causal:
            reasons.append("step() requires causal=True")
        if q.shape[2] != k.shape[2]:
            reasons.append(
                f"step() requires as many queries as keys, got T={q.shape[2]} and S={k.shape[2]}"
            )
        if cache is not None:
            reasons += cache.refusals(self.signature, q, v)
        return reasons

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


def _zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return `x` with zeros where the mask is False. This selects, so that no NaN survives."""
    return x if mask is None else apply_mask(x, mask[:, None, :, None])


def _mask_layer_input(layer_input: LayerInput | None, mask: Tensor | None) -> LayerInput | None:
    """Return the layer input with zeros at padded positions."""
    if layer_input is None or mask is None:
        return layer_input
    return dataclasses.replace(layer_input, states=apply_mask(layer_input.states, mask[..., None]))


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Alternative implementation; `refusals(attention, *inputs)` lists why it cannot run."""

    run: Callable
    refusals: Callable
    automatic: bool


MECHANISMS: dict[str, type[Attention]] = {}
KERNELS: dict[type[Attention], dict[str, Kernel]] = {}


def register(
    name: str, *, size_option: str | None = None
) -> Callable[[type[Attention]], type[Attention]]:
    """Register a class as the mechanism `name` (class decorator).

    Args:
        name: key in `MECHANISMS`.
        size_option: option that trades memory for reach, an integer >= 1: window, block, rank, ...;
            None: the mechanism has no such option.
    """

    def add(cls: type[Attention]) -> type[Attention]:
        if name in MECHANISMS:
            owner = MECHANISMS[name].__qualname__
            raise OptionError(f"mechanism {name!r} is already registered, by {owner}")
        MECHANISMS[name] = cls
        cls.name, cls.size_option, cls.signature = name, size_option, name
        return cls

    return add


def register_kernel(
    cls: type[Attention], name: str, refusals: Callable, *, automatic: bool
) -> Callable:
    """Register a function as a kernel of a mechanism (function decorator).

    With backend "auto", kernels are tried in order of registration if `automatic` is True. A kernel
    that is not automatic runs only when it is requested by name.
    """

    def add(run: Callable) -> Callable:
        KERNELS.setdefault(cls, {})[name] = Kernel(run, refusals, automatic)
        return run

    return add


def backends(name: str) -> list[str]:
    """Return the backends of a mechanism: "auto", "torch", "reference", and its kernels."""
    cls = MECHANISMS[check_name(name, MECHANISMS, "mechanism")]
    return ["auto", "torch", "reference", *KERNELS.get(cls, {})]
