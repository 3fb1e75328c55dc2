"""The Transformer without a head: inputs to token states and a pooled state.

It is an encoder, or with `is_decoder=True` a stack of causal layers with a state between calls.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, distributed, nn

from longspan.attention.masking import apply_mask
from longspan.errors import InputError, OptionError
from longspan.models.attention_layer import (
    INITIALIZED,
    LayerCache,
    LayerContext,
    LayerOutput,
    SelfAttention,
    build_mechanism,
)
from longspan.models.base import LongspanOutput, LongspanPreTrainedModel
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.context_parallel import ContextParallel
from longspan.models.embeddings import Embeddings
from longspan.models.inputs import TokenIds, TokenMask, prepend, to_boolean_mask, to_global_mask
from longspan.models.layers import Layer
from longspan.models.norms import make_norm
from longspan.models.pooling import pool
from longspan.models.positions import rotary_table
from longspan.models.row_groups import GroupedCache, RowGroup, group_rows
from longspan.shapes import Bool, Float, Int


class Run(NamedTuple):
    """Results of all layers.

    Attributes:
        states: states of the tokens, zero at padding.
        caches: cache of each layer, or None.
        losses: loss of each layer's mechanism, or None.
        weights: weights of each layer's mechanism, or None.
    """

    states: list[Tensor]
    caches: Sequence[LayerCache | None] = ()
    losses: Sequence[Tensor | None] = ()
    weights: Sequence[Tensor | None] = ()


class LongspanModel(LongspanPreTrainedModel):
    """Transformer without a head."""

    context_parallel: ContextParallel | None = None
    shared_parameter: nn.Parameter | None

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        # The model owns the parameter, so that layers can be copied and sharded one by one.
        released = [layer.attention.mechanism.release_shared() for layer in layers]
        shared = next((parameter for parameter in released if parameter is not None), None)
        self.register_parameter("shared_parameter", shared)
        self.layers = nn.ModuleList(layers)
        pre_norm = config.norm == "pre"
        self.norm = make_norm(config) if pre_norm else nn.Identity()
        self.post_init()

    def initialize_shared_parameter(self) -> None:
        """Reset the parameter that the layers share if the loaded checkpoint does not contain it.

        transformers replaces such tensors with uninitialized memory.
        """
        shared = self.shared_parameter
        if shared is None or hasattr(shared, INITIALIZED):
            return
        config = self.config
        layer = next(i for i, x in enumerate(config.layer_traits) if x.shares_parameter)
        fresh = build_mechanism(config, layer).release_shared()
        with torch.no_grad():
            shared.copy_(cast(nn.Parameter, fresh))
        setattr(shared, INITIALIZED, True)

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings, or the linear map of continuous inputs."""
        return cast(nn.Module, self.embeddings.words or self.embeddings.values)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.embeddings.words = cast(nn.Embedding, value)

    def clear_rows(self, cache: LongspanCache, rows: Bool[Tensor, " B"]) -> LongspanCache:
        """Return a state without the tokens of some rows, such as those whose document has ended.

        Args:
            cache: state that a call returned; it is not modified.
            rows: True at the rows to clear; their positions start anew.

        Raises:
            InputError: `rows` is no mask of the batch, or the state is of another model.
        """
        cleared = LongspanCache(len(cache.layers))
        for layer, old, new in zip(self.layers, cache.layers, cleared.layers, strict=True):
            mechanism = cast(Layer, layer).attention.mechanism
            if isinstance(old.state, GroupedCache):
                new.state = old.state.reset(mechanism, rows)
            elif old.state is not None:
                new.state = mechanism.reset(old.state, rows)
        positions = cache.next_positions
        cleared.next_positions = None if positions is None else positions.masked_fill(rows, 0)
        return cleared

    def enable_context_parallel(self, group: distributed.ProcessGroup | None) -> None:
        """Shard the positions of every sequence over the processes of a group.

        All processes must call `forward` with the same inputs; all receive the same outputs.

        Args:
            group: processes to shard over; None takes all of them.

        Raises:
            OptionError: the mechanism or the position encoding does not support sharded queries.
        """
        if self.config.position == "relative_2d":
            raise OptionError(
                "position='relative_2d' does not support context parallelism; use --parallel ddp "
                "or fsdp"
            )
        layers = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for layer in layers:
            if reasons := layer.mechanism.split_refusals():
                raise OptionError(
                    f"{layer.mechanism.name} does not support context parallelism: "
                    f"{'; '.join(reasons)}; use --parallel ddp or fsdp"
                )
        self.context_parallel = ContextParallel(group)
        for layer in layers:
            layer.context_parallel = self.context_parallel

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        past_key_values: LongspanCache | None = None,
        use_cache: bool | None = None,
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
            inputs_embeds: embeddings in place of `input_ids`.
            past_key_values: state of a decoder after the tokens before; it is not modified.
            use_cache: whether a decoder returns its state. None: yes, if `past_key_values` is
                given, or outside training if the configuration says so.
            output_attentions: whether to return the weights of each layer, which most mechanisms
                never form otherwise, in time and memory that grow as T^2.
            output_hidden_states: whether to return the states after each layer.
            return_dict: False: return a tuple.

        Returns:
            See `LongspanOutput`. A row without real tokens gives finite outputs, and zero gradients
            for its tokens.

        Raises:
            InputError: the input exceeds `max_position_embeddings`, a token id is outside the
                vocabulary, a mask is malformed, the inputs are of the wrong kind, the state is of
                another batch or model, or the mechanism refuses them.
        """
        inputs = self._select_inputs(input_ids, input_values, inputs_embeds)
        weighted = self._wants("output_attentions", output_attentions)
        cache = self._select_cache(
            inputs, past_key_values, use_cache, global_attention_mask, weighted
        )
        seen = self._count_tokens_before(inputs, past_key_values)
        real = to_boolean_mask("attention_mask", attention_mask, inputs, seen)
        global_tokens = to_global_mask(self.config, global_attention_mask, inputs)
        positions = self._positions(position_ids, inputs, real, past_key_values)
        x = self.embeddings(inputs, real, positions, token_type_ids, inputs_embeds is not None)
        context = self._context(x, inputs, real, global_tokens, positions)
        context = context._replace(
            use_cache=cache is not None,
            groups=self._row_groups(context.mask, past_key_values),
            output_attentions=weighted,
        )
        keep = self._wants("output_hidden_states", output_hidden_states)
        run = self._run_layers(x, context, past_key_values, keep)
        if cache is not None:
            cache.store(run.caches, past_key_values, inputs, real)
        tokens = [y[:, x.shape[1] - inputs.shape[1] :] for y in run.states]
        losses = [loss for loss in run.losses if loss is not None]
        output = LongspanOutput(
            last_hidden_state=tokens[-1],
            pooler_output=self._pool(run.states[-1], context.mask, past_key_values),
            past_key_values=cache,
            hidden_states=tuple(tokens) if keep else None,
            attentions=tuple(x for x in run.weights if x is not None) if weighted else None,
            auxiliary_loss=torch.stack(losses).sum() if losses else None,
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
            global_mask = self._prepend_global_summary(global_tokens, inputs)
        return LayerContext(
            mask=mask,
            global_mask=global_mask,
            rotary=self._rotary(x, positions),
            shared=self.shared_parameter,
        )

    def _row_groups(
        self, mask: Tensor | None, past: LongspanCache | None
    ) -> tuple[RowGroup, ...] | None:
        """Return the groups of a new batch, for a decoder whose mechanisms need them, or None."""
        layers = (cast(Layer, layer).attention.mechanism.traits.anchored for layer in self.layers)
        return group_rows(mask) if self.config.is_decoder and past is None and any(layers) else None

    def _run_layers(
        self, x: Tensor, context: LayerContext, past: LongspanCache | None, keep: bool
    ) -> Run:
        """Apply all layers and the norm; under context parallelism, to this process's shard.

        With `keep`, the states are the embeddings and those after each layer; else the last ones.
        """
        parallel, length, mask = self.context_parallel, x.shape[1], context.mask
        if parallel is not None:
            shard_mask = x.new_ones(x.shape[:2]).bool() if mask is None else mask
            rotary = {base: parallel.local_shard(y) for base, y in context.rotary.items()}
            x, context = parallel.local_shard(x), context._replace(mask=shard_mask, rotary=rotary)
        states, outputs = [x], []
        for i, layer in enumerate(self.layers):
            own = None if past is None else past.layers[i].state
            # Reentrant checkpointing returns a plain tuple.
            output = LayerOutput(*layer(states[-1], context, own))
            states = [*states, output.states] if keep else [output.states]
            outputs.append(output[1:])
        if parallel is not None:
            states = [parallel.gather(y, 1)[:, :length] for y in states]
        last = self.norm(states.pop())
        last = last if mask is None else apply_mask(last, mask[..., None])
        return Run([*states, last], *(list(x) for x in zip(*outputs, strict=True)))

    def _pool(self, x: Tensor, mask: Tensor | None, past: LongspanCache | None) -> Tensor | None:
        """Return the pooled state of a whole sequence."""
        return pool(x, mask, self.config.pooling) if past is None else None

    def _wants(self, field: str, requested: bool | None) -> bool:
        """Return what the caller requests, or else the configuration."""
        return bool(getattr(self.config, field) if requested is None else requested)

    def _select_inputs(
        self, input_ids: Tensor | None, input_values: Tensor | None, embeds: Tensor | None
    ) -> Tensor:
        """Return the one kind of input that this model takes, or the embeddings of it."""
        features = self.config.input_features
        selected = input_ids if features is None else input_values
        name = "input_ids" if features is None else "input_values"
        given = [x for x in (input_ids, input_values, embeds) if x is not None]
        if len(given) != 1 or given[0] is not (embeds if selected is None else selected):
            raise InputError(
                f"this model takes {name} or inputs_embeds only (input_features={features})"
            )
        if embeds is None and features is not None and given[0].shape[2:] != (features,):
            raise InputError(
                f"input_values must have shape (B, T, {features}), got {tuple(given[0].shape)}"
            )
        return given[0]

    def _select_cache(
        self,
        inputs: Tensor,
        past: LongspanCache | None,
        use_cache: bool | None,
        global_mask: Tensor | None,
        whole: bool,
    ) -> LongspanCache | None:
        """Return an empty cache for the state after this call, or None.

        The default is none for calls that need whole sequences.
        """
        reasons = [] if past is None else self._past_refusals(past, inputs)
        if (past is not None or use_cache) and not self.config.is_decoder:
            reasons.append("a state between calls requires is_decoder=True")
        if past is not None and global_mask is not None:
            reasons.append("tokens that continue a state cannot be global")
        if reasons:
            raise InputError(f"past_key_values and use_cache: {'; '.join(reasons)}")
        if use_cache is None:
            wanted = self.config.is_decoder and self.config.use_cache and not self.training
            use_cache = past is not None or (wanted and global_mask is None and not whole)
        if use_cache and global_mask is not None:
            raise InputError("use_cache=True does not support global_attention_mask")
        return LongspanCache(len(self.layers)) if use_cache else None

    def _count_tokens_before(self, inputs: Tensor, past: LongspanCache | None) -> int:
        """Return the number of tokens before a call; refuse an input that becomes too long."""
        seen = 0 if past is None else past.get_seq_length()
        self.config.sequence_length(seen + inputs.shape[1])
        return seen

    def _past_refusals(self, past: LongspanCache, inputs: Tensor) -> list[str]:
        """Return the reasons why this is no state of this model and batch."""
        if not isinstance(past, LongspanCache):
            return [f"past_key_values must be a LongspanCache, got {type(past).__name__}"]
        if len(past.layers) != len(self.layers):
            return [f"the state is of {len(past.layers)} layers, the model has {len(self.layers)}"]
        rows = {layer.batch_size for layer in past.layers if layer.state is not None}
        if rows - {len(inputs)}:
            return [f"the state is of a batch of {max(rows)}, got {len(inputs)} rows"]
        return []

    def _positions(
        self,
        given: Tensor | None,
        inputs: Tensor,
        real: Tensor | None,
        past: LongspanCache | None,
    ) -> Tensor | None:
        """Return the position of each token, summary token included; None: its index."""
        counts = self.config.counts_real_tokens
        if given is None and (not counts or (real is None and past is None)):
            return None
        if given is None:
            mask = inputs.new_ones(inputs.shape[:2]).bool() if real is None else real
            given = (LongspanCache(0) if past is None else past).positions(mask)
        if self.config.pooling == "cls":
            return torch.cat((torch.zeros_like(given[:, :1]), given + 1), dim=1)
        return given

    def _rotary(self, x: Tensor, positions: Tensor | None) -> dict[float, Tensor]:
        """Return the rotations for the base of each layer."""
        if self.config.position_encoding != "rotary":
            return {}
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)[None]
        return {
            base: rotary_table(positions, self.config.head_dim, dtype=x.dtype, base=base)
            for base in dict.fromkeys(self.config.rotary_bases)
        }

    def _prepend_global_summary(self, mask: Tensor | None, inputs: Tensor) -> Tensor | None:
        """Extend the global mask by the summary token, global if the mechanism supports that."""
        if not self.config.supports_global_tokens:
            return None
        if mask is None:
            mask = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
        return prepend(mask, True)
