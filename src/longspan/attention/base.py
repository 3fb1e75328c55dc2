"""Base class of attention mechanisms.

Letters: B batch, H heads, T queries, S keys, D head dimension of queries and keys, E of values.
With grouped-query heads, keys and values have G heads, a divisor of H. Masks are boolean and True
means "may be attended", as in `scaled_dot_product_attention`: the opposite of `key_padding_mask` of
`torch.nn.MultiheadAttention`, which is True at padding (pass `~key_padding_mask`). The layout is
always (B, H, T, D).
"""

import dataclasses
import functools
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.cache import Cache, RecordedStep, append_tokens, clear_rows
from longspan.attention.describe import describe_options
from longspan.attention.dispatch import attend_documents, select_backend, without_autocast
from longspan.attention.documents import Documents
from longspan.attention.grouped_heads import (
    drop_repeated_heads,
    repeat_cached_heads,
    repeat_heads,
)
from longspan.attention.hooks import MechanismHooks
from longspan.attention.inputs import Inputs, LayerInput
from longspan.attention.masking import both_masks, zero_masked
from longspan.attention.offloading import loaded
from longspan.attention.refusals import (
    global_token_refusals,
    layer_input_refusals,
    layout_refusals,
    mask_refusals,
    packed_refusals,
)
from longspan.attention.registry import register
from longspan.attention.relative_bias import RelativeBias
from longspan.attention.traits import Traits
from longspan.errors import InputError, OptionError
from longspan.shapes import Bool, Float, Int

_INSTANCES = itertools.count()
_INPUTS_OF_STEPS = ("layer_input", "scale", "bias", "relative", "sink_logits")
__all__ = [
    "Attention",
    "Cache",
    "Inputs",
    "LayerInput",
    "RelativeBias",
    "Traits",
    "append_tokens",
    "register",
]


class Attention(MechanismHooks):
    """Map queries, keys and values to outputs. The projections belong to the model.

    A mechanism implements one function twice: `attend` (as fast as plain PyTorch allows, on every
    device, differentiable) and `reference` (the formula, written plainly). Both receive inputs that
    `forward` has checked, with zeros at padded positions. `MechanismHooks` has them and every other
    method that a mechanism may override. `forward`, `packed`, `step` and `reset` are the public
    entry points and the only place of checks.

    Attributes:
        backend: requested backend.
        backend_used: backend of the last call.
        options: sizes, `causal` and options with which `build` made the instance; empty without it.
    """

    backend: str = "auto"
    backend_used: str | None = None

    def __init__(self):
        """Number the instance; `build` names its options instead."""
        super().__init__()
        self.sink_logits: Tensor | None = None
        self.options: dict[str, Any] = {}
        self.signature = f"{type(self).__name__} {next(_INSTANCES)}"

    def __repr__(self) -> str:
        """Return class and options in one line."""
        return describe_options(self)

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
        relative: RelativeBias | None = None,
        sink_logits: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "B H T E"]:
        """Compute attention.

        Args:
            q: queries.
            k: keys; each of their G heads serves H / G consecutive heads of queries.
            v: values.
            mask: True at real tokens of self-attention: both `key_mask` and `query_mask`. This is
                the opposite of torch's `key_padding_mask`, which is True at padding.
            key_mask: True at real keys, as in `mask`. A False key has no influence, whatever its
                content (NaN included).
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
            relative: finite numbers added to the scaled products that depend on the distance
                between query and key, in place of `bias`; the last query is at the last key.
            sink_logits: logit of each head in the denominator of every row, for a key without a
                value: the weights of a row then sum to less than one. None: those of the mechanism
                if it was built with `sink_logit=True`, else no such term.

        Returns:
            Mixed values. Rows of queries with nothing to attend are zero. With a causal mechanism
            and T < S the last query sees all keys, as in decoding.

        Raises:
            InputError: the inputs are not supported; the message lists every reason.
        """
        masks = key_mask, query_mask, global_mask
        x = Inputs(q, k, v, *masks, layer_input, shared, scale, bias, relative, mask)
        x = x._replace(sink_logits=sink_logits)
        if reasons := self.refusals(x):
            reasons = layout_refusals(q, k, mask, query_mask, key_mask, global_mask) or reasons
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        if mask is not None:
            key_mask = query_mask = mask
        if global_mask is not None and self.max_global_tokens is not None:
            reasons = global_token_refusals(global_mask, key_mask, self.max_global_tokens)
            if reasons:
                raise InputError(f"{self.name} does not support these inputs: {reasons[0]}")
        readable = query_mask
        if self.traits.mixes_queries:
            # Other rows read the queries: only the key mask says which tokens exist.
            readable, query_mask = key_mask, both_masks(key_mask, query_mask)
        x = self._prepare(x._replace(key_mask=key_mask), readable)
        self.backend_used, body = select_backend(self, x)
        with loaded(self), without_autocast(q.device):
            out = body(self, x)
        return out if query_mask is None or self.reads_padding else zero_masked(out, query_mask)

    def packed(
        self,
        q: Float[Tensor, "N H D"],
        k: Float[Tensor, "N G D"],
        v: Float[Tensor, "N G E"],
        cu_seqlens: Int[Tensor, " bounds"],
        *,
        global_mask: Bool[Tensor, " N"] | None = None,
        layer_input: LayerInput | None = None,
        scale: float | None = None,
        sink_logits: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "N H E"]:
        """Compute self-attention within each of several documents, without padding.

        The documents, of any lengths, are laid one after another: N tokens in all. The layout is
        that of variable-length kernels, (N, H, D).

        Args:
            q: queries.
            k: keys; each of their G heads serves H / G consecutive heads of queries.
            v: values.
            cu_seqlens: cumulative lengths, 0 first and N last; document i has the tokens from
                `cu_seqlens[i]` to `cu_seqlens[i + 1]`.
            global_mask: True at global tokens, which attend to all tokens of their document and are
                attended by all of them.
            layer_input: tensor (1, N, W) that q, k and v were projected from, as in `forward`.
            scale: factor of the products, as in `forward`.
            sink_logits: logits in the denominator, as in `forward`.

        Returns:
            The rows that `forward` would return for each document alone. The work grows with their
            total, not with the longest.

        Raises:
            InputError: `cu_seqlens` does not divide N tokens, or `forward` would refuse a document.
        """
        if reasons := packed_refusals(q, k, v, cu_seqlens, global_mask):
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        documents = Documents.from_bounds(cu_seqlens, len(q))
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        mask = None if global_mask is None else global_mask[None]
        x = Inputs(q, k, v, None, None, mask, layer_input, None, scale, documents=documents)
        x = x._replace(sink_logits=sink_logits)
        reasons, supported = [], self.traits.needs_layer_input
        if layer_input is not None:
            reasons = layer_input_refusals(k, layer_input, supported)
        reasons = reasons or self.refusals(x.take_tokens(slice(0, documents.longest)))
        for document_mask in () if mask is None else (mask[:, piece] for piece in documents.slices):
            reasons += global_token_refusals(document_mask, None, self.max_global_tokens)
        if reasons:
            raise InputError(f"{self.name} does not support these inputs: {'; '.join(reasons)}")
        with loaded(self), without_autocast(q.device):
            out = attend_documents(self, self._prepare(x, None))
        return out[0].transpose(0, 1)

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
        relative: RelativeBias | None = None,
        sink_logits: Float[Tensor, " H"] | None = None,
        record: bool = False,
    ) -> tuple[Float[Tensor, "B H T E"], Cache]:
        """Extend a causal sequence by T >= 1 tokens: decoding, or one segment after another.

        Args:
            q: queries of the new tokens.
            k: keys of the new tokens (S = T).
            v: values of the new tokens.
            cache: cache that the previous step returned; None starts a sequence.
            mask: True at new tokens that are real, as in `forward` (torch's `key_padding_mask` is
                the opposite).
            layer_input: layer input of the new tokens, as in `forward`.
            scale: factor of the products, as in `forward`.
            bias: numbers added to the scores of the new tokens, for all L tokens so far.
            relative: numbers added to them that depend on the distance, as in `forward`; its
                queries are the new tokens.
            sink_logits: logits in the denominator, as in `forward`.
            record: whether the new cache holds these inputs and the cache before, so that
                `Cache.rollback` can remove some of the new tokens.

        Returns:
            The rows that `forward` would return for the new tokens at the end of the whole sequence
            so far, and the cache for the next step.

        Raises:
            InputError: the mechanism is not causal, the cache belongs to another mechanism, to
                other options or other inputs, or `forward` would refuse the inputs.
        """
        if not isinstance(cache, Cache | None):
            raise InputError(f"cache must be that of a step or None, got {type(cache).__name__}")
        scores = layer_input, None, scale, bias, relative
        x = Inputs(q, k, v, None, None, None, *scores, mask, cache, None, True, sink_logits)
        if reasons := self.refusals(x):
            reasons = layout_refusals(q, k, mask) or reasons
            raise InputError(f"{self.name} does not support this step: {'; '.join(reasons)}")
        inputs, groups, names = x, k.shape[1], () if self.takes_groups else self.shared_state
        x = x._replace(key_mask=mask, cache=repeat_cached_heads(cache, names))
        x = self._prepare(x, mask)
        with loaded(self), without_autocast(q.device):
            self.backend_used = "torch"
            out, state = self.advance(x)
        new_cache = self.make_cache(inputs.before + q.shape[2], x.q, x.v, state)
        new_cache = drop_repeated_heads(new_cache, groups, names)
        if record:
            repeat = functools.partial(self._begin_step, inputs)
            new_cache = dataclasses.replace(new_cache, recorded=RecordedStep(cache, repeat))
        return zero_masked(out, mask), new_cache

    def _begin_step(self, x: Inputs, count: int) -> Cache:
        """Return the cache after the first `count` tokens of a step."""
        x = x.take_tokens(slice(count))
        more = {n: getattr(x, n) for n in _INPUTS_OF_STEPS}
        return self.step(x.q, x.k, x.v, x.cache, x.mask, **more)[1]

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
        if not isinstance(cache, Cache):
            raise InputError(f"cache must be that of a step, got {type(cache).__name__}")
        reasons = cache.maker_refusals(self.signature)
        if rows is None:
            reasons.append("rows must be a mask of the batch, got None")
        reasons += mask_refusals("rows", rows, cache.shape[:1], cache.device)
        if reasons:
            raise InputError(f"{self.name} does not support this reset: {'; '.join(reasons)}")
        return clear_rows(cache, rows, self.empty_state)

    def make_cache(self, length: int, q: Tensor, v: Tensor, state: dict[str, Tensor]) -> Cache:
        """Return the cache after `length` tokens, the last of which were q and v."""
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        return Cache(self.signature, length, shape, q.dtype, v.shape[1], state)

    def _prepare(self, x: Inputs, readable: Tensor | None) -> Inputs:
        """Return inputs with zeros at padding, scaled queries, and a bias in one place.

        `readable` is True at the queries that rows may read, or None.
        """
        (q, k, v, mask), source, bias = x[:4], x.layer_input, x.bias
        if not self.reads_padding:
            q = q if readable is None else zero_masked(q, readable)
            k, v = (k, v) if mask is None else (zero_masked(k, mask), zero_masked(v, mask))
        if x.scale is not None:
            q = q * (x.scale * q.shape[3] ** 0.5)
        if k.shape[1] < q.shape[1] and not self.takes_groups:
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        if source is not None and mask is not None:
            source = source.masked(mask)
        if x.relative is not None:
            bias = x.relative
            if bias.queries is not None and readable is not None:
                bias = dataclasses.replace(bias, queries=zero_masked(bias.queries, readable))
        sinks = self.sink_logits if x.sink_logits is None else x.sink_logits
        x = x._replace(bias=bias, relative=None, sink_logits=sinks)
        return x._replace(q=q, k=k, v=v, layer_input=source)

    def create_sink_logits(self, heads: int | None) -> None:
        """Create the parameter `sink_logits`, zeros for each head: one more in the denominator.

        Raises:
            OptionError: the number of heads is missing.
        """
        if heads is None:
            raise OptionError(
                f"{self.name} cannot be built: heads is required (number of heads) with "
                "sink_logit=True"
            )
        self.sink_logits = nn.Parameter(torch.zeros(heads))
        self.built_for = {**self.built_for, "heads": heads}
        self.traits = dataclasses.replace(self.traits, row_sums="at most one")
