"""The contract that every attention mechanism obeys, and the one registry that names them.

Letters: B batch, H heads, T queries, S keys, D head dimension of queries and keys, E of values.
Masks are boolean and True means "may be attended". Layout is (B, H, T, D), always.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longspan.attention._cache import Cache, joined, without
from longspan.attention.masking import zeroed
from longspan.attention.traits import Source, Traits
from longspan.errors import InputError, OptionError, check_name
from longspan.shapes import Bool, Float


class Attention(nn.Module):
    """Map queries, keys and values to outputs; the projections belong to the model.

    A mechanism writes two bodies of one function: `attend` (as fast as plain PyTorch can, on
    every device, trainable) and `reference` (the formula as plainly as it can be read). Both
    get inputs that `forward` has checked, with zeros at padded positions. `forward` is the only
    public door and the only place of checks.
    """

    traits: Traits  # of the defaults; an instance replaces what its options or form change
    name: ClassVar[str]
    knob: ClassVar[str | None] = None  # see `register`
    small: ClassVar[dict[str, Any]] = {}  # options that show the mechanism on a few dozen tokens
    causal: bool = False
    forgets: bool = False  # no gradient passes from a step, or segment, into those before it
    blank: ClassVar[dict[str, float]] = {}  # what state holds before any real token, if not zeros
    redraw_every: int | None = None  # training steps between two calls of `redraw`
    idle: bool = False  # some of its parameters may have no part in a training step
    backend: str = "auto"  # what was asked for
    ran: str | None = None  # the body that the last call used

    def forward(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        key_mask: Bool[Tensor, "B S"] | None = None,
        *,
        query_mask: Bool[Tensor, "B T"] | None = None,
        global_mask: Bool[Tensor, "B S"] | None = None,
        source: Source | None = None,
    ) -> Float[Tensor, "B H T E"]:
        """Attend.

        Args:
            q: queries.
            k: keys.
            v: values.
            key_mask: True at real tokens. A False key has no influence at all, whatever its
                content (NaN included).
            query_mask: True at real queries; the output is zero at the others, and no gradient
                flows from them. When T == S it defaults to `key_mask`: queries and keys are
                taken to be the same positions.
            global_mask: True at tokens that attend to all and are attended by all (within the
                masks and the causal order); the number may differ from sample to sample.
            source: what q, k and v were projected from, where `traits.source` says it is read.

        Returns:
            Mixed values; rows of queries that have nothing to attend are zero. With a causal
            mechanism and T < S the last query sees all keys, as in decoding.

        Raises:
            InputError: the inputs cannot be served; the message lists every reason.
        """
        reasons = self.refusals(q, k, v, key_mask, query_mask, global_mask)
        reasons += self._source_refusals(k, source)
        if reasons:
            raise InputError(f"{self.name} refuses these inputs: {'; '.join(reasons)}")
        if query_mask is None and q.shape[-2] == k.shape[-2]:
            query_mask = key_mask
        source = _real_source(source, key_mask)
        # Queries that are the keys as well are padding where the keys are.
        own = query_mask if "k" in self.traits.reads else key_mask
        q, k, v = _zeroed(q, own), _zeroed(k, key_mask), _zeroed(v, key_mask)
        extra = self._extra(global_mask, source)
        self.ran, body = self._body(q, k, v, key_mask, *extra)
        with torch.autocast(q.device.type, enabled=False):
            out = body(self, q, k, v, key_mask, *extra)
        return _zeroed(out, query_mask)

    def step(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        cache: Cache | None = None,
        key_mask: Bool[Tensor, "B S"] | None = None,
        source: Source | None = None,
    ) -> tuple[Float[Tensor, "B H T E"], Cache]:
        """Go on with a causal sequence by T >= 1 tokens: decoding, or one segment after another.

        Args:
            q: queries of the new tokens.
            k: their keys (S = T).
            v: their values.
            cache: what the step before returned; None begins a sequence.
            key_mask: True at new tokens that are real.
            source: what the new tokens' q, k and v were projected from, as in `forward`.

        Returns:
            The rows that `forward` would give the new tokens at the end of the whole sequence so
            far, and the cache for the next step.

        Raises:
            InputError: the mechanism is not causal, the cache is of other inputs, or what
                `forward` refuses.
        """
        reasons = self.refusals(q, k, v, key_mask) + self._step_refusals(q, k, v, cache)
        reasons += [] if source is None else self._source_refusals(k, source)
        if reasons:
            raise InputError(f"{self.name} refuses this step: {'; '.join(reasons)}")
        length = q.shape[2] + (0 if cache is None else cache.length)
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        q, k, v = (_zeroed(x, key_mask) for x in (q, k, v))
        extra = () if source is None else (_real_source(source, key_mask),)
        with torch.autocast(q.device.type, enabled=False):
            out, state = self.advance(q, k, v, key_mask, cache, *extra)
        return _zeroed(out, key_mask), Cache(length, shape, state)

    def reset(self, cache: Cache, rows: Bool[Tensor, " B"]) -> Cache:
        """Forget what some rows of the batch have seen, as where one document ends.

        Args:
            cache: what a step returned; it is left as it was.
            rows: True at the rows that forget.

        Returns:
            A cache from which those rows go on as if all their tokens so far had been padding.
            Positions are counted on, for the whole batch.

        Raises:
            InputError: `rows` is not a boolean mask of the cache's batch.
        """
        reasons = _mask_refusals("rows", rows, cache.shape[:1])
        if reasons:
            raise InputError(f"{self.name} refuses this reset: {'; '.join(reasons)}")
        return without(cache, rows, self.blank)

    def refusals(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        global_mask: Tensor | None = None,
    ) -> list[str]:
        """Why these inputs cannot be served; empty when they can. Extended by mechanisms."""
        reasons = _shape_refusals(q, k, v)
        (B, _, T, _), S = q.shape, k.shape[-2]
        reasons += _mask_refusals("key_mask", key_mask, (B, S))
        reasons += _mask_refusals("query_mask", query_mask, (B, T))
        reasons += _mask_refusals("global_mask", global_mask, (B, S))
        if T != S and not self.traits.cross:
            reasons.append(f"it needs as many keys as queries, got T={T} and S={S}")
        if global_mask is not None and not self.traits.global_tokens:
            reasons.append("it has no global tokens (traits.global_tokens is False)")
        if self.causal and T > S:
            reasons.append(f"the causal form needs T <= S, got T={T} and S={S}")
        return reasons

    def split_refusals(self) -> list[str]:
        """Why a process cannot attend from some of the queries to all keys; empty when it can.

        When it can, rows of the output are those that all queries together would get.
        """
        reasons = []
        if not self.traits.cross:
            reasons.append("it needs all queries in one place (traits.cross is False)")
        if self.causal:
            reasons.append("its causal form takes the last query for the last key's")
        return reasons

    def share(self, first: "Attention") -> None:
        """Take from the mechanism of the first layer what all layers of a model have in common.

        A model calls it once, on the mechanism of every other layer. Here: nothing is common.
        """

    def attend(self, q, k, v, key_mask, *global_mask):
        """Compute the output fast. Inputs are checked, and zero at padded positions."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def reference(self, q, k, v, key_mask, *global_mask):
        """Compute the same function as plainly as it can be read."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def advance(self, q, k, v, key_mask, cache, *source):
        """Compute a step, checked and zeroed like the inputs of `attend`; the new state with it.

        Here: keep all keys and values (queries too, where the fast body needs as many of them, and
        the states of a source), and call `attend` on the whole. Mechanisms with a smaller state
        write their own; they take a source if `traits.source` says that they read one.
        """
        new = {"k": k, "v": v} if self.traits.cross else {"q": q, "k": k, "v": v}
        for known_source in source:
            new["states"] = known_source.states[:, None]
        state = joined(cache, new, key_mask)
        sources = [dataclasses.replace(x, states=state["states"][:, 0]) for x in source]
        extra = self._extra(None, *sources)
        out = self.attend(state.get("q", q), state["k"], state["v"], state.get("real"), *extra)
        return out[:, :, out.shape[2] - q.shape[2] :], state

    def formed(self, q, k, key_mask) -> Tensor | None:
        """The weights (B, H, T, S), where computing them alone is cheaper than mixing values.

        Inputs are zero at padded positions. Here None: whoever wants weights mixes the identity.
        """
        return None

    def redraw(self, seed: int) -> None:
        """Draw what is random anew, between training steps; nothing is where nothing is drawn."""

    def flops(self, T: int, head_dim: int) -> int:
        """Forward floating-point operations of one head (multiply and add counted apart)."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def pairs(self, T: int) -> int | tuple[int, ...] | None:
        """Query-key pairs attended in one head, of each head where they differ, or None.

        None: there is no such notion, or it depends on the input.
        """
        return None

    def _extra(self, global_mask=None, source=None) -> tuple:
        """What the bodies get beside q, k, v and the key mask: what the traits name."""
        traits = self.traits
        return (global_mask,) * traits.global_tokens + (source,) * traits.source

    def _source_refusals(self, k: Tensor, source: Source | None) -> list[str]:
        if source is None:
            return []
        if not self.traits.source:
            return ["it does not read a source (traits.source is False)"]
        expected, got = (k.shape[0], k.shape[2]), tuple(source.states.shape[:2])
        if got != expected:
            return [f"source.states must be (B, S, W) with (B, S) = {expected}, got {got}"]
        return []

    def _step_refusals(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> list[str]:
        reasons = []
        if not self.causal:
            reasons.append(
                "only a causal mechanism goes on step by step; build it with causal=True"
            )
        if q.shape[2] != k.shape[2]:
            reasons.append(
                f"new queries and keys must be the same tokens, got T={q.shape[2]} "
                f"and S={k.shape[2]}"
            )
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        if cache is not None and cache.shape != shape:
            reasons.append(f"the cache is of (B, H, D, E) = {cache.shape}, got {shape}")
        return reasons

    def _body(self, *inputs) -> tuple[str, Callable]:
        """The body to run: the one asked for by name, or the first kernel that does not refuse."""
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
                    because = "; ".join(reasons)
                    raise InputError(f"{self.name}: kernel {name!r} refuses: {because}")
        return "torch", cls.attend


def _zeroed(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` with zeros where the mask is False: a selection, so that no NaN survives it."""
    return x if mask is None else zeroed(x, mask[:, None, :, None])


def _real_source(source: Source | None, mask: Tensor | None) -> Source | None:
    """The source with zeros at padded positions."""
    if source is None or mask is None:
        return source
    return dataclasses.replace(source, states=zeroed(source.states, mask[..., None]))


def _shape_refusals(q: Tensor, k: Tensor, v: Tensor) -> list[str]:
    if not q.dim() == k.dim() == v.dim() == 4:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise InputError(f"q, k and v must be (B, H, T, D), got shapes {shapes}")
    reasons = []
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        reasons.append(f"q, k, v need one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        reasons.append(f"q, k, v need one device, got {q.device}, {k.device}, {v.device}")
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        reasons.append(f"q {tuple(q.shape)} and k {tuple(k.shape)} differ in B, H or D")
    if k.shape[:3] != v.shape[:3]:
        reasons.append(f"k {tuple(k.shape)} and v {tuple(v.shape)} differ in B, H or S")
    if q.shape[-2] == 0 or k.shape[-2] == 0:
        reasons.append("it needs at least one query and one key")
    return reasons


def _mask_refusals(what: str, mask: Tensor | None, shape: tuple[int, ...]) -> list[str]:
    if mask is None:
        return []
    reasons = []
    if mask.dtype != torch.bool:
        reasons.append(f"{what} must be boolean (True = real), got {mask.dtype}; use mask.bool()")
    if tuple(mask.shape) != shape:
        reasons.append(f"{what} must have shape {shape}, got {tuple(mask.shape)}")
    return reasons


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Another body of a mechanism: `refusals(attention, *inputs)` says why it cannot run."""

    run: Callable
    refusals: Callable
    automatic: bool


MECHANISMS: dict[str, type[Attention]] = {}
KERNELS: dict[type[Attention], dict[str, Kernel]] = {}


def register(name: str, *, knob: str | None = None) -> Callable[[type[Attention]], type[Attention]]:
    """Class decorator: make a mechanism known by its name.

    Args:
        name: the key of `MECHANISMS`.
        knob: the option that trades memory for reach, a whole number from 1 up: its window, block,
            rank, ...; None: there is no such choice.
    """

    def add(cls: type[Attention]) -> type[Attention]:
        if name in MECHANISMS:
            raise OptionError(f"mechanism {name!r} is already {MECHANISMS[name].__qualname__}")
        MECHANISMS[name] = cls
        cls.name, cls.knob = name, knob
        return cls

    return add


def register_kernel(
    cls: type[Attention], name: str, refusals: Callable, *, automatic: bool
) -> Callable:
    """Function decorator: one more body of a mechanism.

    Kernels are tried in order of registration when the backend is "auto" and `automatic` is
    True; a kernel that is not automatic runs only when asked for by name.
    """

    def add(run: Callable) -> Callable:
        KERNELS.setdefault(cls, {})[name] = Kernel(run, refusals, automatic)
        return run

    return add


def backends(name: str) -> list[str]:
    """The backends of a mechanism: "auto", its own two bodies, and its kernels."""
    cls = MECHANISMS[check_name(name, MECHANISMS, "mechanism")]
    return ["auto", "torch", "reference", *KERNELS.get(cls, {})]
