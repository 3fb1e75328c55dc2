"""Methods of a mechanism: two to implement, and hooks with defaults.

Letters, masks and layout are those of `base`.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from longspan.attention.cache import Cache, append_tokens
from longspan.attention.documents import Documents
from longspan.attention.refusals import (
    device_refusals,
    input_refusals,
    layer_input_refusals,
    mask_refusals,
    open_length_refusals,
)
from longspan.attention.traits import LayerInput, Traits


class MemorySizes(NamedTuple):
    """Sizes of a mechanism that divides sequences into segments with a memory.

    Attributes:
        segment: tokens per segment, counted from the first one of the sequence.
        tokens: largest number of tokens before a segment that its memory stands for.
    """

    segment: int
    tokens: int

    @property
    def first_full(self) -> int:
        """First token of the first segment whose memory is full."""
        return -(-self.tokens // self.segment) * self.segment


class MechanismHooks(nn.Module):
    """Methods and attributes that a mechanism defines; `Attention` calls them.

    Every mechanism defines `attend`, `reference` and `flops`. The other methods have defaults.

    Attributes:
        traits: properties with default options; an instance replaces what its options change.
        name: key in `MECHANISMS`.
        size_option: option that trades memory for reach, or None; see `register`.
        small_options: options for sequences of a few dozen tokens, for tests and pictures.
        picture_options: options of pictures beyond the small ones, where those show no difference
            from another mechanism.
        layered_options: options that take a list with one value for each layer, with the depth of
            such a list: 1, or 2 where a list of numbers is for the heads.
        causal: whether outputs depend only on earlier positions.
        detaches_memory: whether gradients stop between a step, or segment, and the ones before it.
        loops_over_length: whether the number of operations grows with the length: a program of
            `torch.export` then serves one length.
        shared_state: names of state tensors that are equal for heads with the same keys and values.
        takes_groups: whether `attend` and `reference` take keys and values of G heads; if not, they
            are repeated for all H heads, in memory as well (a cache keeps G heads).
        keeps_tokens: whether `advance` continues all keys and values, `k` and `v`, as the state.
        empty_state: value of a state tensor before the first real token, by name; zero if absent.
        reads_padding: whether an option of the instance lets padded tokens influence others, as a
            public model does; inputs and outputs are then not zero at padding.
        redraw_every: training steps between two calls of `redraw`; None: no redraws.
        has_unused_parameters: whether some parameters may receive no gradient in a training step.
        max_global_tokens: largest number of global tokens per row; None: counted in each call.
        weight_dropout: probability with which a weight is dropped in training.
        memory_sizes: segment and memory; None: a token sees no memory of earlier segments.
        signature: name and options of `build`, or class and number of an instance made without it;
            a cache belongs to one signature.
    """

    traits: Traits
    name: ClassVar[str]
    size_option: ClassVar[str | None] = None
    small_options: ClassVar[dict[str, Any]] = {}
    picture_options: ClassVar[dict[str, Any]] = {}
    layered_options: ClassVar[dict[str, int]] = {}
    causal: bool = False
    detaches_memory: bool = False
    loops_over_length: bool = False
    shared_state: ClassVar[tuple[str, ...]] = ("k", "v")
    takes_groups: ClassVar[bool] = False
    keeps_tokens: ClassVar[bool] = False
    empty_state: ClassVar[dict[str, float]] = {}
    reads_padding: bool = False
    redraw_every: int | None = None
    has_unused_parameters: bool = False
    max_global_tokens: int | None = None
    weight_dropout: float = 0.0
    memory_sizes: MemorySizes | None = None
    signature: str

    def attend(self, q, k, v, key_mask, *global_mask):
        """Compute the output fast. Inputs are checked, and zero at padded positions."""
        raise TypeError(f"{type(self).__name__} does not define attend")

    def reference(self, q, k, v, key_mask, *global_mask):
        """Compute the same function as plainly as possible."""
        raise TypeError(f"{type(self).__name__} does not define reference")

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cache: Cache | None, *extra
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a step and the new state. Inputs are checked and zeroed like those of `attend`.

        The default keeps all keys and values (and queries, if the mechanism needs as many of them;
        and layer inputs), and calls `attend` on the whole sequence, so it needs no override to be
        right. Mechanisms with a smaller state override it, and those derived from a class whose
        `advance` does not call the `attend` that they change.

        Args:
            q: queries of the T new tokens (B, H, T, D).
            k: their keys, and `v` their values; with G heads if `takes_groups`, else with H.
            v: values.
            key_mask: True at real new tokens (B, T), or None for all.
            cache: what the previous step left; None starts a sequence. `cache.state` holds the
                tensors that this method returned, `cache.length` counts the tokens before.
            extra: layer input, and bias or relative bias, as the traits declare.

        Returns:
            Rows of the new tokens (B, H, T, E), and new tensors by name, batch first, which `step`
            puts into the next cache. They are new: the given cache stays as it is. Those named in
            `shared_state` have the heads of the keys in dimension 1. `append_tokens` makes the
            state of a mechanism that keeps tokens, with `grows` of one that keeps all of them;
            `clear_rows` describes what `reset` does. `traits.step_cost` and `traits.state_size`
            claim the growth of time and state.
        """
        new = {"k": k, "v": v} if self.traits.cross else {"q": q, "k": k, "v": v}
        layer_input, *others = extra if self.traits.needs_layer_input else (None, *extra)
        if layer_input is not None:
            new["states"] = layer_input.states[:, None]
        state = append_tokens(cache, new, key_mask, grows=True)
        if layer_input is not None:
            layer_input = dataclasses.replace(layer_input, states=state["states"][:, 0])
        more = self._optional_inputs(layer_input, None, *(others or [None]))
        keys = state["k"], state["v"], state.get("real")
        out = self.attend(state.get("q", q), *keys, *(None,) * self.traits.global_tokens, *more)
        return out[:, :, out.shape[2] - q.shape[2] :], state

    def state_of(self, k: Tensor, v: Tensor, key_mask: Tensor | None) -> dict[str, Tensor] | None:
        """Return the state after tokens with these keys and values; None: it depends on more.

        A step can then continue keys and values that another library has cached. They are zero at
        padded positions. The default returns them if `keeps_tokens`.
        """
        return append_tokens(None, {"k": k, "v": v}, key_mask) if self.keeps_tokens else None

    def attend_packed(
        self, q: Tensor, k: Tensor, v: Tensor, documents: Documents, *extra
    ) -> Tensor:
        """Compute documents laid one after another in a row, with `traits.packed`.

        Args:
            q: queries (1, H, N, D).
            k: keys, and `v` values, likewise; with G heads if `takes_groups`.
            v: values.
            documents: bounds of the documents.
            extra: global mask (1, N) and other inputs, as the traits declare; `shared` and `bias`
                are None.

        Returns:
            Rows (1, H, N, E), each equal to that of its document alone.
        """
        raise TypeError(f"{type(self).__name__} does not define attend_packed")

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
        reasons = input_refusals(q, k, v) + device_refusals(self, q)
        reasons += open_length_refusals(k.shape[2], self.loops_over_length)
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

    def step_refusals(
        self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None, layer_input: LayerInput | None
    ) -> list[str]:
        """Return the reasons why these tokens cannot continue `cache`. Mechanisms extend the list.

        They are added to those of `refusals` for the new tokens alone.
        """
        reasons = [] if layer_input is None else self.layer_input_refusals(k, layer_input)
        if not self.causal:
            reasons.append("step() requires causal=True")
        if q.shape[2] != k.shape[2]:
            reasons.append(
                f"step() requires as many queries as keys, got T={q.shape[2]} and S={k.shape[2]}"
            )
        return reasons if cache is None else reasons + cache.refusals(self.signature, q, v)

    def layer_input_refusals(self, k: Tensor, layer_input: LayerInput | None) -> list[str]:
        """Return the reasons why this is no layer input of these keys."""
        return layer_input_refusals(k, layer_input, self.traits.needs_layer_input)

    def shared_refusals(self, shared: Tensor | None) -> list[str]:
        """Return the reasons why this is not the parameter that all layers share."""
        if shared is None or self.traits.shares_parameter:
            return []
        return ["shared is not supported (traits.shares_parameter)"]

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

    def attention_weights(self, q, k, key_mask) -> Tensor | None:
        """Return the weights (B, H, T, S) if computing them alone is cheaper than mixing values.

        Inputs are zero at padded positions. The default returns None: callers then obtain the
        weights by mixing the identity.
        """
        return None

    def part_weights(self, q, k, v, key_mask, *layer_input) -> dict[str, Tensor] | None:
        """Return the weight of each query on each part of its keys, (B, H, T) by name of the part.

        Parts are those of `bucket_weights`; None: there are none.
        """
        found = self.bucket_weights(q, k, v, key_mask, 1, *layer_input)
        return None if found is None else {name: x[..., 0] for name, x in found.items()}

    def bucket_weights(
        self, q, k, v, key_mask, buckets: int, *layer_input
    ) -> dict[str, Tensor] | None:
        """Return the weight of each query on equal buckets of the keys of each part, by its name.

        Mechanisms with `memory_sizes` define it: parts are memories and the query's own segment,
        the oldest tokens first, and so are their buckets. A part with fewer keys than buckets has
        one key in each of the first ones. Inputs are those of `attend`. The default returns None.

        Args:
            q: queries; these, keys, values and mask are those of a call.
            k: keys.
            v: values.
            key_mask: True at real keys, or None.
            buckets: number of buckets of each part.
            layer_input: layer input, if the traits declare it.

        Returns:
            (B, H, T, buckets) by name of the part.
        """
        return None

    def flops(self, T: int, head_dim: int) -> int:
        """Return the forward FLOPs of one head (a multiply-add counts as two)."""
        raise TypeError(f"{type(self).__name__} does not define flops")

    def pairs(self, T: int) -> int | tuple[int, ...] | None:
        """Return the attended pairs of one head, or of each if they differ; None: undefined."""
        return None

    def is_dense(self, T: int) -> bool:
        """Return whether T tokens attend to as many keys as full attention: no size is saved.

        The default counts `pairs`. Mechanisms without a count define it.
        """
        pairs = self.pairs(T)
        most = T * (T + 1) // 2 if self.causal else T * T
        return pairs is not None and (min(pairs) if isinstance(pairs, tuple) else pairs) >= most

    def redraw(self, seed: int) -> None:
        """Draw random tensors anew, between training steps. The default does nothing."""

    def release_shared(self) -> nn.Parameter | None:
        """Give up the parameter that all layers of a model share, and return it; None: none.

        A model calls this once on the mechanism of every layer, registers the parameter of the
        first as its own, and passes it to every call as `shared`.
        """
        return None

    def auxiliary_loss(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, cache: Cache | None = None
    ) -> Tensor | None:
        """Return a loss from which parameters of the mechanism learn that the output cannot train.

        A model adds it to the loss of its task in training. No gradient flows to q, k and v. The
        default returns None: there are no such parameters.

        Args:
            q: queries of the new tokens; these, keys, values and mask are those of a call or step.
            k: keys.
            v: values.
            mask: True at real tokens, or None.
            cache: what the previous step left, or None.
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

    def _optional_inputs(self, layer_input, shared, bias, relative=None) -> tuple:
        """Return the inputs after the masks, as the traits declare.

        A relative bias has the place of the bias.
        """
        traits = self.traits
        inputs = (layer_input,) * traits.needs_layer_input + (shared,) * traits.shares_parameter
        return inputs + (bias if relative is None else relative,) * traits.bias
