"""Self-attention of a Transformer layer, with any mechanism, and what cross-attention shares."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention import Attention, Cache, Inputs, LayerInput, RelativeBias, build
from longspan.attention.dispatch import without_autocast
from longspan.attention.initial_values import initial_values, reset_tensors, tensors_of, to_default
from longspan.attention.masking import apply_mask
from longspan.attention.ops.linear_maps import linear_part
from longspan.attention.weights import compute_weights
from longspan.errors import InputError
from longspan.models.config import LongspanConfig
from longspan.models.context_parallel import ContextParallel
from longspan.models.input_maps import map_states
from longspan.models.layer_cache import LayerCache, RowGroup, extend_cache, step_groups
from longspan.models.modules import Dropout, OutputRMSNorm
from longspan.models.positions import apply_rotary
from longspan.models.relative import LayerPositions, add_positions, build_layer_positions
from longspan.models.short_convolution import ShortConvolution
from longspan.shapes import Bool, Float

# transformers skips tensors with this attribute when it initializes weights.
INITIALIZED = "_is_hf_initialized"


def build_mechanism(config: LongspanConfig, layer: int) -> Attention:
    """Build the mechanism of one layer with the initial values of its own constructor."""
    traits = config.layer_traits[layer]
    with initial_values():
        attention = build(
            config.attention_names[layer],
            backend=config.attention_backend,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            width=config.hidden_size,
            max_length=config.max_sequence_length,
            layer=layer,
            causal=config.is_decoder,
            max_global_tokens=config.max_tokens_of_global_mask if traits.global_tokens else None,
            **config.layer_options(layer),
        )
    return to_default(attention)


class LayerContext(NamedTuple):
    """Masks, positions and parameters that all layers of a call share.

    Attributes:
        mask: True at real tokens; None: all are real. With a cache, of the new tokens.
        global_mask: True at global tokens, or None.
        rotary: cosines and sines of the positions by the base of the layers, see
            `positions.rotary_table`; empty without rotary positions.
        relative: numbers of distances that all layers share, see `relative.T5Positions`, or None.
        shared: parameter that all layers share, or None.
        use_cache: whether the layers return caches.
        record: whether these record their step, see `Attention.step`.
        groups: groups of rows that begin after padding, or None; see `layer_cache`.
        output_attentions: whether the layers return the weights of their mechanisms.
        source_mask: True at real tokens of the encoder, which cross-attention reads; None: all are
            real.
    """

    mask: Bool[Tensor, "B S"] | None = None
    global_mask: Bool[Tensor, "B S"] | None = None
    rotary: Mapping[float, Float[Tensor, "#B T 2 half"]] = MappingProxyType({})
    relative: RelativeBias | None = None
    shared: Tensor | None = None
    use_cache: bool = False
    record: bool = False
    groups: tuple[RowGroup, ...] | None = None
    output_attentions: bool = False
    source_mask: Bool[Tensor, "R S"] | None = None


PLAIN = LayerContext()  # all tokens are real, nothing is kept


class CrossStates(NamedTuple):
    """Keys and values of the encoder's states, which cross-attention computes once for a decoder.

    Attributes:
        k: keys of R inputs; each serves B / R consecutive rows of the decoder, such as beams.
        v: values.
    """

    k: Float[Tensor, "R H S D"]
    v: Float[Tensor, "R H S D"]


class LayerOutput(NamedTuple):
    """Result of a layer, or of its attention.

    Attributes:
        states: states of the tokens (B, T, M); None once the next layer has read them.
        cache: cache for the next tokens, if the context asks for it.
        loss: loss of the mechanism's own parameters in training; see `Attention.auxiliary_loss`.
        weights: weights of the mechanism, if the context asks for them; see `attention.weights`.
        cross: keys and values of the encoder's states for the next tokens, or None.
        cross_weights: weights of cross-attention, if the context asks for them.
        is_recomputed: whether reentrant checkpointing keeps no autograd history of the cache.
    """

    states: Float[Tensor, "B T M"] | None
    cache: LayerCache | None = None
    loss: Float[Tensor, ""] | None = None
    weights: Float[Tensor, "B H T T"] | None = None
    cross: CrossStates | None = None
    cross_weights: Float[Tensor, "B H T S"] | None = None
    is_recomputed: bool = False


class ProjectedAttention(nn.Module):
    """Base of self- and cross-attention: projections, mechanism, and its initial state."""

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__()
        width, inner, bias = config.hidden_size, config.all_head_size, config.has_qkv_bias
        self.config = config
        self.layer = layer
        self.mechanism = self.build_mechanism()
        reads = self.mechanism.traits.inputs
        self.query = nn.Linear(width, inner, bias=bias) if "q" in reads else None
        self.key = nn.Linear(width, inner, bias=bias) if "k" in reads else None
        self.value = nn.Linear(width, inner, bias=bias)
        self.positions = self.build_positions()
        self.dropout = Dropout(config.attention_dropout)
        self.output = nn.Linear(inner, width, bias=config.has_attention_output_bias)
        # On the meta device transformers loads a checkpoint and reports the missing tensors itself.
        self.is_new = torch.get_default_device().type != "meta"
        if self.is_new:
            self._mark_initialized()

    def build_mechanism(self) -> Attention:
        """Build the mechanism with its initial values."""
        raise TypeError(f"{type(self).__name__} does not define build_mechanism")

    def build_positions(self) -> LayerPositions | None:
        """Build the numbers that depend on the distance of query and key; None: there are none."""
        return None

    def initialize_mechanism(self) -> None:
        """Complete the mechanism's initial state, after the projections of the layer have theirs.

        Tensors that a loaded checkpoint does not contain (those of another mechanism, and
        non-persistent buffers) are uninitialized memory, which transformers left; they are reset.
        Projections of a new mechanism start as copies of the layer's.
        """
        if self.value.weight.is_meta:
            return  # The weights are yet to be loaded, or stay on disk.
        tensors = tensors_of(self.mechanism)
        missing = [name for name in tensors if not hasattr(tensors[name], INITIALIZED)]
        if missing:
            fresh = self.build_mechanism()
            self._copy_projections(fresh)
            reset_tensors(self.mechanism, missing, fresh)
            self._mark_initialized()
        elif self.is_new:
            self._copy_projections(self.mechanism)
        self.is_new = False

    def _copy_projections(self, mechanism: Attention) -> None:
        if self.query is not None and self.key is not None:
            mechanism.copy_projections(self.query, self.key, self.value)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Reshape (..., T, M) to (..., H, T, D)."""
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(-3, -2)

    def _merge_heads(self, mixed: Tensor) -> Tensor:
        """Project the values (B, H, T, D) of all heads to (B, T, M)."""
        return self.output(self.dropout(mixed.transpose(1, 2).flatten(2)))

    def _mark_initialized(self) -> None:
        for tensor in tensors_of(self.mechanism).values():
            setattr(tensor, INITIALIZED, True)


class SelfAttention(ProjectedAttention):
    """Self-attention: input projections, relative positions, mechanism, output projection.

    With the fields of the configuration, queries, keys and values pass through short convolutions,
    before positions are added, and the output O of each head becomes norm(O) * act(gate(x)).
    """

    context_parallel: ContextParallel | None = None

    def __init__(self, config: LongspanConfig, layer: int):
        super().__init__(config, layer)
        self.rotary_base = config.rotary_bases[layer]
        names = [x for x in ("value", "query", "key") if getattr(self, x) is not None]
        names = names if config.short_convolution else []
        self.convolutions = nn.ModuleDict({name: ShortConvolution(config) for name in names})
        width, inner, bias = config.hidden_size, config.all_head_size, config.has_qkv_bias
        has_gate = config.output_gate != "none"
        self.gate = nn.Linear(width, inner, bias=bias) if has_gate else None
        has_norm = config.output_norm != "none"
        self.norm = OutputRMSNorm(config.head_dim, eps=config.layer_norm_eps) if has_norm else None

    def build_mechanism(self) -> Attention:
        """Build the mechanism of this layer."""
        return build_mechanism(self.config, self.layer)

    def build_positions(self) -> LayerPositions | None:
        """Build the positions that the configuration asks for."""
        return build_layer_positions(self.config, self.mechanism)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        context: LayerContext = PLAIN,
        cache: LayerCache | None = None,
    ) -> LayerOutput:
        """Attend among the positions of `x`, and to those in the cache.

        Under context parallelism `x` and `rotary` hold this process's shard, the masks the whole
        sequence.
        """
        self._check_cache(cache)
        tokens, gate = self._project(x, context.mask)
        heads = self._to_heads(tokens, cache, context.rotary.get(self.rotary_base))
        inputs = Inputs(*heads, mask=context.mask, layer_input=self._layer_input(x))
        # Layers whose mechanism has no global tokens attend as ever, if other layers have them.
        if self.mechanism.traits.global_tokens or not self.config.supports_global_tokens:
            inputs = inputs._replace(global_mask=context.global_mask)
        state, groups = None, None if cache is None else cache.groups
        if groups is None and self.mechanism.traits.anchored:
            groups = context.groups
        if groups is None and not context.use_cache:
            loss, mixed = self._loss(inputs), self._attend(inputs, context)
        else:
            step = functools.partial(self._step, context)
            groups = (RowGroup(),) if groups is None else groups
            mixed, groups, loss = step_groups(step, groups, inputs)
            if context.use_cache:
                reach = max(self.config.short_convolution - 1, 0)
                state = extend_cache(cache, groups, tokens, reach, record=context.record)
        weights = self._weights(inputs, context) if context.output_attentions else None
        return LayerOutput(self._merge_heads(self._modulate(mixed, gate)), state, loss, weights)

    def _check_cache(self, cache: LayerCache | None) -> None:
        """Check that a cache is of a layer with the same number of taps.

        Raises:
            InputError: it is of another one.
        """
        expected = self.config.short_convolution
        taps = cache.reach + 1 if cache is not None and cache.tokens else 0
        if cache is not None and taps != expected:
            raise InputError(
                f"the cache must be of a model with short_convolution={expected}, got "
                f"short_convolution={taps}; start without a cache"
            )

    def _step(self, context: LayerContext, x: Inputs) -> tuple[Tensor, Cache | None, Tensor | None]:
        """Return the mixed values of new tokens, the cache after them if one is used, and the loss.

        The tokens may be those of some rows of the batch.
        """
        loss = self._loss(x)
        if not context.use_cache:
            return self._attend(x, context), None, loss
        q, added = add_positions(self.positions, context.relative, x.q)
        options = {"layer_input": x.layer_input, "record": context.record, **added}
        return *self.mechanism.step(q, x.k, x.v, x.cache, x.mask, **options), loss

    def _loss(self, x: Inputs) -> Tensor | None:
        """Return the loss of the mechanism's own parameters in training, or None."""
        with without_autocast(x.q.device):
            return self.mechanism.auxiliary_loss(x) if self.training else None

    def _weights(self, x: Inputs, context: LayerContext) -> Tensor:
        """Return the weight of each token's value in each output, without gradients.

        Raises:
            InputError: the call continues a cache, or its mechanism has groups of rows.
            NoWeightsError: the output of the mechanism is no weighted sum of the values.
        """
        if context.use_cache or context.groups is not None or self.context_parallel is not None:
            raise InputError(
                "output_attentions=True requires whole sequences that begin with a token, in one "
                "process; pass use_cache=False, and pad on the right"
            )
        q, added = add_positions(self.positions, context.relative, x.q)
        return compute_weights(
            self.mechanism,
            q,
            x.k,
            x.mask,
            v=x.v,
            global_mask=x.global_mask,
            layer_input=x.layer_input,
            **added,
        )

    def _attend(self, x: Inputs, context: LayerContext) -> Tensor:
        """Return the mixed values of a whole sequence."""
        key_mask, query_mask, (_, k, v), mask = None, None, x[:3], x.mask
        if self.context_parallel is not None and mask is not None:
            k, v = (self.context_parallel.gather(y, 2)[:, :, : mask.shape[1]] for y in (k, v))
            mask, key_mask, query_mask = None, mask, self.context_parallel.local_shard(mask)
        q, added = add_positions(self.positions, context.relative, x.q)
        traits = self.mechanism.traits
        return self.mechanism(
            q,
            k,
            v,
            mask,
            key_mask=key_mask,
            query_mask=query_mask,
            global_mask=x.global_mask,
            layer_input=x.layer_input,
            shared=context.shared if traits.shares_parameter else None,
            **added,
        )

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
        """Return the outputs (B, T, N) of the layer's projections: values first, and the gate's.

        What convolutions read is zero at padding.
        """
        maps = (self.value, self.query, self.key, self.gate)
        tokens = list(map_states(x, [each for each in maps if each is not None]))
        gate = None if self.gate is None else tokens.pop()
        if self.convolutions and mask is not None:
            tokens = [apply_mask(each, mask[..., None]) for each in tokens]
        return tokens, gate

    def _to_heads(
        self, tokens: list[Tensor], past: LayerCache | None, rotary: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, H, T, D) of projected tokens.

        The mechanism ignores those for which the layer has no projection.
        """
        if self.convolutions:
            before = [None] * len(tokens) if past is None else past.read_next
            maps = zip(self.convolutions.values(), tokens, before, strict=True)
            tokens = [convolution(each, old) for convolution, each, old in maps]
        v, *rest = map(self._split_heads, tokens)
        rotated = (heads if rotary is None else apply_rotary(heads, rotary) for heads in rest)
        q = v if self.query is None else next(rotated)
        return q, q if self.key is None else next(rotated), v

    def _modulate(self, mixed: Tensor, gate: Tensor | None) -> Tensor:
        """Apply norm and gate to the mixed values (B, H, T, D)."""
        if self.norm is not None:
            mixed = self.norm(mixed)
        if gate is None:
            return mixed
        activate = F.silu if self.config.output_gate == "silu" else torch.sigmoid
        return mixed * activate(self._split_heads(gate))

    def _layer_input(self, x: Tensor) -> LayerInput | None:
        """Return the layer's input and projections for mechanisms that need them."""
        if not self.mechanism.traits.needs_layer_input or self.query is None or self.key is None:
            return None
        query, key = self.query, self.key
        return LayerInput(
            states=x,
            query=lambda p: self._split_heads(linear_part(query, p)),
            key=lambda p: self._split_heads(linear_part(key, p)),
        )
