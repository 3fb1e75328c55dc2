"""The Transformer without a head: inputs to token states and a pooled state.

It is an encoder, or with `is_decoder=True` a stack of causal layers with a state between calls.
"""

from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from longspan.attention.masking import apply_mask
from longspan.errors import OptionError
from longspan.models.arguments import (
    check_gaps,
    prepend_global_summary,
    rotary_tables,
    select_cache,
    select_mask,
    select_positions,
)
from longspan.models.attention_layer import (
    INITIALIZED,
    LayerContext,
    LayerOutput,
    SelfAttention,
    build_mechanism,
)
from longspan.models.base import LongspanOutput, LongspanPreTrainedModel
from longspan.models.cache import LongspanCache, takes_past_key_values
from longspan.models.config import LongspanConfig
from longspan.models.context_parallel import ContextParallel
from longspan.models.cross_attention import select_source_mask
from longspan.models.embeddings import Embeddings
from longspan.models.inputs import (
    TokenIds,
    TokenMask,
    prepend,
    select_inputs,
    to_global_mask,
)
from longspan.models.layer_cache import RowGroup, group_rows
from longspan.models.layers import (
    Layer,
    count_own_layers,
    group_of_layers,
    make_layer,
    start_streams,
)
from longspan.models.modules import make_norm
from longspan.models.packing import splits_documents
from longspan.models.pooling import Pooling
from longspan.models.relative import TRAITS, T5Positions, has_buckets
from longspan.shapes import Bool, Float, Int, Mask


class LongspanModel(LongspanPreTrainedModel):
    """Transformer without a head."""

    context_parallel: ContextParallel | None = None
    shared_parameter: nn.Parameter | None

    def __init__(self, config: LongspanConfig):
        if config.is_encoder_decoder:
            raise OptionError(
                "is_encoder_decoder=True describes an encoder and a decoder, which this class does "
                "not have; use LongspanForConditionalGeneration, which AutoModelForSeq2SeqLM "
                "loads, or set is_encoder_decoder to False"
            )
        super().__init__(config)
        self.embeddings = Embeddings(config)
        layers = [make_layer(config, i) for i in range(count_own_layers(config))]
        # The model owns the parameter, so that layers can be copied and sharded one by one.
        released = [layer.attention.mechanism.release_shared() for layer in layers]
        shared = next((parameter for parameter in released if parameter is not None), None)
        self.register_parameter("shared_parameter", shared)
        self.layers = nn.ModuleList(layers)
        self.relative = T5Positions(config) if has_buckets(config) else None
        self.norm = make_norm(config, config.output_size) if config.norm == "pre" else nn.Identity()
        self.pooling = Pooling(config)
        self.post_init()

    def initialize_shared_parameter(self) -> None:
        """Reset the parameter that the layers share if the loaded checkpoint does not contain it.

        transformers replaces such tensors with uninitialized memory.
        """
        shared = self.shared_parameter
        if shared is None or hasattr(shared, INITIALIZED):
            return
        layer = next(i for i, x in enumerate(self.config.layer_traits) if x.shares_parameter)
        fresh = build_mechanism(self.config, layer).release_shared()
        with torch.no_grad():
            shared.copy_(cast(nn.Parameter, fresh))
        setattr(shared, INITIALIZED, True)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings, or the linear map of continuous inputs."""
        return cast(nn.Module, self.embeddings.words or self.embeddings.values)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.embeddings.words = cast(nn.Embedding, value)

    @property
    def layers_in_order(self) -> list[Layer]:
        """Layers as they are applied; those of a group are one module."""
        return [cast(Layer, self.layers[group]) for group in group_of_layers(self.config)]

    def clear_rows(self, cache: LongspanCache, rows: Bool[Tensor, " B"]) -> LongspanCache:
        """Return a state without the tokens of some rows, such as those whose document has ended.

        Args:
            cache: state that a call returned; it is not modified.
            rows: True at the rows to clear; their positions restart at 0.

        Raises:
            InputError: `rows` is no mask of the batch, or the state is of another model.
        """
        cleared = cache.map_states(lambda state: state)
        for layer, new in zip(self.layers_in_order, cleared.layers, strict=True):
            if new.state is not None:
                new.state = new.state.reset(layer.attention.mechanism, rows)
        positions = cache.next_positions
        cleared.next_positions = None if positions is None else positions.masked_fill(rows, 0)
        if cache.ends_in_token is not None:
            cleared.ends_in_token = cache.ends_in_token | rows
        return cleared

    def enable_context_parallel(self, group: distributed.ProcessGroup | None) -> None:
        """Shard the positions of every sequence over the processes of a group.

        All processes must call `forward` with the same inputs; all receive the same outputs.

        Args:
            group: processes to shard over; None takes all of them.

        Raises:
            OptionError: the mechanism or the position encoding does not support sharded queries.
        """
        config, fields = self.config, []
        if config.cross_attention is not None:
            fields.append("cross_attention")
        if config.position in TRAITS or has_buckets(config):
            fields.append(f"position={config.position!r}")
        if config.short_convolution:
            fields.append(f"short_convolution={config.short_convolution}")
        if fields:
            raise OptionError(
                f"{fields[0]} does not support context parallelism; use --parallel ddp or fsdp"
            )
        layers = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for layer in layers:
            reasons = []
            if not layer.mechanism.traits.cross:
                reasons.append("all queries must be in one process (traits.cross)")
            if layer.mechanism.causal:
                reasons.append("causal=True aligns the last query with the last key")
            if layer.mechanism.has_auxiliary_loss:
                reasons.append("its auxiliary loss reads whole sequences")
            if reasons:
                raise OptionError(
                    f"{layer.mechanism.name} does not support context parallelism: "
                    f"{'; '.join(reasons)}; use --parallel ddp or fsdp"
                )
        self.context_parallel = ContextParallel(group)
        for layer in layers:
            layer.context_parallel = self.context_parallel

    @takes_past_key_values
    @splits_documents
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        cache: LongspanCache | None = None,
        use_cache: bool | None = None,
        encoder_hidden_states: Float[Tensor, "R S M"] | None = None,
        encoder_attention_mask: Mask[Tensor, "R _"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> LongspanOutput | tuple:
        """Compute the states of the tokens.

        Args:
            input_ids: token ids.
            attention_mask: True or 1 at real tokens; None if all are real. The content of padded
                positions does not affect the outputs. With a cache, of the new tokens or of all.
            global_attention_mask: True or 1 at global tokens, which attend to all tokens and are
                attended by all, for mechanisms that support them.
            input_values: continuous inputs, in place of `input_ids`, of a model with
                `input_features`.
            token_type_ids: types of the tokens, of a model with `type_vocab_size`.
            position_ids: positions of the tokens. None: their index in the row; in decoders the
                number of real tokens before them, so that padding may stand on either side.
                Without a mask, a position that does not grow begins another document of the row,
                which sees no other one, see `longspan.models.packing`.
            inputs_embeds: embeddings in place of `input_ids`.
            cache: state of a decoder after the tokens before; it is not modified.
            use_cache: whether a decoder returns its state. None: yes, if `cache` is
                given, or outside training if the configuration says so.
            encoder_hidden_states: states of an encoder, of a decoder with `cross_attention`; None:
                those in `cache`. Each of R rows serves B / R consecutive rows.
            encoder_attention_mask: True or 1 at real tokens of the encoder; None: all are real, or
                those of `cache`.
            output_attentions: whether to return the weights of each layer, which most mechanisms
                never form otherwise, in time and memory that grow as T^2.
            output_hidden_states: whether to return the states after each layer.
            return_dict: False: return a tuple.

        Returns:
            See `LongspanOutput`. A row without real tokens gives finite outputs, and zero gradients
            for its tokens. Of rows with several documents, `pooler_output` has one row a document.

        Raises:
            InputError: the input exceeds `max_position_embeddings`, a token id is outside the
                vocabulary, a mask is malformed, the inputs are of the wrong kind, the state is of
                another batch or model, or the mechanism refuses them.
        """
        past, source = cache, encoder_hidden_states
        inputs = select_inputs(self.config, input_ids, input_values, inputs_embeds, token_type_ids)
        weighted = self._wants("output_attentions", output_attentions)
        # Weights are those of whole sequences.
        default = not (self.training or weighted)
        cache = select_cache(self.config, past, use_cache, global_attention_mask, inputs, default)
        real = select_mask(self.config, attention_mask, inputs, past)
        global_tokens = to_global_mask(self.config, global_attention_mask, inputs)
        mask = select_source_mask(self.config, source, encoder_attention_mask, len(inputs), past)
        positions = select_positions(self.config, position_ids, inputs, real, past)
        x = self.embeddings(inputs, real, positions, token_type_ids, inputs_embeds is not None)
        context = self._context(x, inputs, real, global_tokens, positions)
        context = context._replace(
            use_cache=cache is not None,
            record=cache is not None and cache.records_past,
            groups=self._row_groups(context.mask, past),
            output_attentions=weighted,
            source_mask=mask,
        )
        keep = self._wants("output_hidden_states", output_hidden_states)
        states, layers = self._run_layers(x, context, source, past, keep)
        if cache is not None:
            cache.store(layers, past, inputs, real, mask)
        tokens = tuple(y[:, y.shape[1] - inputs.shape[1] :] for y in states)
        output = LongspanOutput(
            last_hidden_state=tokens[-1],
            pooler_output=None if past is not None else self.pooling(states[-1], context.mask),
            cache=cache,
            hidden_states=tokens if keep else None,
            **_join(layers),
        )
        return self.as_requested(output, return_dict)

    def _context(
        self,
        x: Tensor,
        inputs: Tensor,
        real: Tensor | None,
        global_tokens: Tensor | None,
        positions: Tensor | None,
    ) -> LayerContext:
        """Return the masks and rotations of the layers, summary token included."""
        mask, global_mask = real, global_tokens
        if x.shape[1] > inputs.shape[1]:
            mask = None if real is None else prepend(real, True)
            global_mask = prepend_global_summary(self.config, global_tokens, inputs)
        return LayerContext(
            mask=mask,
            global_mask=global_mask,
            rotary=rotary_tables(self.config, x, positions),
            relative=None if self.relative is None else self.relative(),
            shared=self.shared_parameter,
        )

    def _row_groups(
        self, mask: Tensor | None, past: LongspanCache | None
    ) -> tuple[RowGroup, ...] | None:
        """Return the groups of a new batch, for a decoder whose mechanisms need them, or None."""
        traits = [cast(Layer, layer).attention.mechanism.traits for layer in self.layers]
        if past is not None and past.get_seq_length() > 0:
            check_gaps(self.config, traits, past, mask)
            return None
        anchored = any(each.anchored for each in traits)
        return group_rows(mask) if self.config.is_decoder and anchored else None

    def _run_layers(
        self,
        x: Tensor,
        context: LayerContext,
        source: Tensor | None,
        past: LongspanCache | None,
        keep: bool,
    ) -> tuple[list[Tensor], list[LayerOutput]]:
        """Apply all layers and the norm; under context parallelism, to this process's shard.

        With `keep`, the states are the embeddings and those after each layer; else the last ones.
        Those of the outputs of the layers are not kept.
        """
        parallel, length, mask = self.context_parallel, x.shape[1], context.mask
        if parallel is not None:
            shard_mask = x.new_ones(x.shape[:2]).bool() if mask is None else mask
            rotary = {base: parallel.local_shard(y) for base, y in context.rotary.items()}
            x, context = parallel.local_shard(x), context._replace(mask=shard_mask, rotary=rotary)
        states, outputs = [start_streams(self.config, x)], []
        for i, layer in enumerate(self.layers_in_order):
            layer_past = None if past is None else past.layers[i]
            read = (layer_past.state, layer_past.cross or source) if layer_past else (None, source)
            result = layer(states[-1], context, *read)
            # Reentrant checkpointing returns a plain tuple.
            recomputed, output = not isinstance(result, LayerOutput), LayerOutput(*result)
            state = cast(Tensor, output.states)
            states = [*states, state] if keep else [state]
            outputs.append(output._replace(states=None, is_recomputed=recomputed))
        if parallel is not None:
            states = [parallel.gather(y, 1)[:, :length] for y in states]
        last = self.norm(states.pop())
        last = last if mask is None else apply_mask(last, mask[..., None])
        return [*states, last], outputs

    def _wants(self, field: str, requested: bool | None) -> bool:
        """Return what the caller requests, or else the configuration."""
        return bool(getattr(self.config, field) if requested is None else requested)


def _join(layers: list[LayerOutput]) -> dict[str, Any]:
    """Return the weights and the loss of all layers, by field of the output."""
    # One comprehension a field: torch 2.11 does not compile a nested one that reads a name outside.
    weights = tuple(x.weights for x in layers if x.weights is not None) or None
    cross = tuple(x.cross_weights for x in layers if x.cross_weights is not None) or None
    losses = [x.loss for x in layers if x.loss is not None]
    total = torch.stack(losses).sum() if losses else None
    return {"attentions": weights, "cross_attentions": cross, "auxiliary_loss": total}
