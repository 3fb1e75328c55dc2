"""State of a decoder between calls, as transformers' `generate` passes it on.

Each layer keeps the state that its mechanism defines: a window of keys and values, sums of constant
size, the segments and slots of a memory. transformers' own caches keep every key and value.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import ModelOutput

from longspan.errors import InputError
from longspan.models.attention_layer import CrossStates, LayerOutput
from longspan.models.layer_cache import LayerCache
from longspan.shapes import Bool, Int

Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


class CacheLayer(CacheLayerMixin):
    """State of the mechanism of one layer, and of its short convolutions.

    Attributes:
        state: cache of the layer; None before the first token.
        cross: keys and values of the encoder's states in a decoder with cross-attention.
        record_past: whether steps are recorded, so that `crop` can remove their tokens.
    """

    is_croppable = True  # transformers records steps before it removes their tokens
    # Tensors of a mechanism have no common layout that transformers could allocate in advance.
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: LayerCache | None = None
        self.cross: CrossStates | None = None
        self.record_past = False

    @property
    def batch_size(self) -> int:
        """Number of rows; -1 before the first token."""
        return -1 if self.state is None else self.state.num_rows

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: a mechanism creates its state itself."""

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> NoReturn:
        """Refuse keys and values: they pass through `Attention.step`."""
        raise TypeError("the state of a mechanism is replaced by Attention.step, not updated")

    def get_seq_length(self) -> int:
        """Return the number of tokens seen."""
        return 0 if self.state is None else self.state.length

    def get_max_length(self) -> int:
        """Return -1: the number of tokens seen is not limited."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of a mask over all tokens, and its offset."""
        return self.get_seq_length() + query_length, 0

    def reset(self) -> None:
        """Forget all tokens."""
        self.state = self.cross = None

    def select_rows(self, rows: Tensor, sources: Tensor | None) -> None:
        """Select rows of the decoder, and of the encoder; None: these stay as they are."""
        if self.state is None:
            return
        if self.cross is not None and sources is not None:
            self.cross = CrossStates(*(x.index_select(0, sources) for x in self.cross))
        self.state = self.state.select_rows(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.state is not None:
            device = next((x.device for x in self.state.state.values()), None)
            rows = torch.arange(self.batch_size, device=device)
            self.state = self.state.select_rows(rows.repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Record the following steps, so that `crop` can remove their tokens."""
        self.record_past = True

    def crop(self, tokens_to_remove: int | Int[Tensor, ""]) -> None:
        """Remove the last tokens, and forget how to remove the ones before.

        Args:
            tokens_to_remove: their number, negative as transformers passes it, in 5.16 as a
                tensor.

        Raises:
            InputError: the number is positive, or the steps of the tokens were not recorded.
        """
        if tokens_to_remove > 0:
            raise InputError(
                f"crop requires minus the number of tokens to remove, got {tokens_to_remove}"
            )
        if self.state is not None:
            self.state = self.state.rollback(-int(tokens_to_remove))


class LongspanCache(TransformersCache):
    """State of all layers of a decoder, and the next position of each row.

    It knows which rows end in padding, as tokens after it would stand behind a gap.

    In an encoder-decoder it holds the keys and values of the encoder's states as well, and their
    mask, so that later calls need only the new tokens.

    Pass it from one call to the next: tokens of a text one by one, or in training the segments of
    a stream. Calls replace its tensors; they modify none.

    Attributes:
        lost_history: whether the call that made it recomputes its activations by reentrant
            checkpointing, which keeps no autograd history of the state.
    """

    layers: list[CacheLayer]  # type: ignore[assignment]

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[CacheLayer() for _ in range(num_layers)])
        self.next_positions: Int[Tensor, " B"] | None = None
        self.ends_in_token: Bool[Tensor, " B"] | None = None  # None: all rows do
        self.source_mask: Bool[Tensor, "R S"] | None = None
        self.lost_history = False

    @property
    def records_past(self) -> bool:
        """True if the layers record their steps."""
        return any(layer.record_past for layer in self.layers)

    def successor(self) -> "LongspanCache":
        """Return an empty cache for the state after a call, which records as this one does."""
        successor = LongspanCache(len(self.layers))
        if self.records_past:
            successor.activate_past_recording()
        return successor

    @property
    def source_shape(self) -> tuple[int, int] | None:
        """Number of the encoder's rows and tokens; None without cross-attention."""
        keys = next((layer.cross.k for layer in self.layers if layer.cross is not None), None)
        return None if keys is None else (keys.shape[0], keys.shape[2])

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of the states of all layers."""
        tensors: list[Tensor] = []
        for layer in self.layers:
            tensors += () if layer.state is None else layer.state.state.values()
            tensors += () if layer.cross is None else layer.cross
        return tensors

    @property
    def num_bytes(self) -> int:
        """Memory that the state keeps: storages of its tensors, each counted once."""
        tensors = self.tensors
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
        return sum(storages.values())

    def positions(self, mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Return the positions of new tokens: the number of real tokens of the row before each."""
        counted = mask.long().cumsum(1)
        before = counted - mask.long()
        return before if self.next_positions is None else before + self.next_positions[:, None]

    def gaps(self, mask: Bool[Tensor, "B T"] | None, anchored: bool) -> Bool[Tensor, " B"] | None:
        """Return the rows whose new tokens would stand behind padding; None: no row.

        Args:
            mask: True at the real ones of the new tokens, or None for all.
            anchored: whether padding before the first token of a row counts.
        """
        if self.next_positions is None or (mask is None and self.ends_in_token is None):
            return None
        seen = torch.ones_like(self.next_positions, dtype=torch.bool)
        joined = seen if self.ends_in_token is None else self.ends_in_token
        if mask is not None:
            joined, seen = joined & mask[:, 0], mask.any(1)
        return ~joined & (seen if anchored else seen & (self.next_positions > 0))

    def store(
        self,
        layers: Sequence[LayerOutput],
        past: "LongspanCache | None",
        inputs: Tensor,
        mask: Bool[Tensor, "B T"] | None,
        source_mask: Bool[Tensor, "R S"] | None,
    ) -> None:
        """Store the states after a call.

        Args:
            layers: outputs of the layers.
            past: state before the call, or None.
            inputs: new tokens, (B, T, ...).
            mask: True at real ones, or None for all.
            source_mask: True at real tokens of the encoder, or None.
        """
        for layer, output in zip(self.layers, layers, strict=True):
            layer.state, layer.cross = output.cache, output.cross
        self.lost_history = torch.is_grad_enabled() and any(x.is_recomputed for x in layers)
        B, T = inputs.shape[:2]
        new = torch.full((B,), T, device=inputs.device) if mask is None else mask.sum(1)
        before = None if past is None else past.next_positions
        self.next_positions = new if before is None else before + new
        self.ends_in_token = None if mask is None else mask[:, -1]
        self.source_mask = source_mask

    def detach(self) -> "LongspanCache":
        """Return the cache without autograd history, for the next segment in training."""
        detached = self.map_states(lambda state: state.detach(), lambda x: x.detach())
        detached.lost_history = False
        return detached

    def map_states(
        self,
        change: Callable[[Any], Any],
        change_cross: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> "LongspanCache":
        """Return a cache with other states.

        Args:
            change: function of the state of a layer's mechanism.
            change_cross: function of keys or values of the encoder's states.
        """
        cache = self.successor()
        for target, layer in zip(cache.layers, self.layers, strict=True):
            target.state = None if layer.state is None else change(layer.state)
            target.cross = layer.cross and CrossStates(*map(change_cross, layer.cross))
        cache.next_positions, cache.source_mask = self.next_positions, self.source_mask
        cache.ends_in_token, cache.lost_history = self.ends_in_token, self.lost_history
        return cache

    def reset(self) -> None:
        """Forget all tokens of all rows."""
        super().reset()
        self.next_positions = self.source_mask = self.ends_in_token = None

    def crop(self, tokens_to_remove: int | Int[Tensor, ""]) -> None:
        """Remove the last tokens of all rows, which are no padding; see `CacheLayer.crop`."""
        super().crop(int(tokens_to_remove))
        if self.next_positions is not None:
            self.next_positions = self.next_positions + tokens_to_remove

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the surviving beams."""
        sources = None
        if self.source_shape is not None:
            # Once for all layers: the comparison synchronizes the device.
            batch = max(layer.batch_size for layer in self.layers)
            sources = source_rows(beam_idx, batch, self.source_shape[0])
        if self.source_mask is not None and sources is not None:
            self.source_mask = self.source_mask.index_select(0, sources)
        for layer in self.layers:
            layer.select_rows(beam_idx, sources)
        self._map_rows(lambda x: x.index_select(0, beam_idx))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        self._map_rows(lambda x: x.repeat_interleave(repeats))

    def _map_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change what is known of each row of the decoder."""
        if self.next_positions is not None:
            self.next_positions = change(self.next_positions)
        if self.ends_in_token is not None:
            self.ends_in_token = change(self.ends_in_token)


def source_rows(selected: Tensor, rows: int, sources: int) -> Tensor | None:
    """Return the encoder's rows of selected rows of a decoder; None: they stay as they are.

    Beams of one input share the row of its encoder, and a search reorders them among themselves.
    """
    sources_of_rows = selected // (rows // sources)
    every = torch.arange(sources, device=selected.device).repeat_interleave(rows // sources)
    return None if sources_of_rows.equal(every) else sources_of_rows


class OutputWithCache(ModelOutput):
    """Output with the state for the next tokens, `cache`."""

    cache: LongspanCache | None

    @property
    def past_key_values(self) -> LongspanCache | None:
        """State for the next tokens, under its name in transformers before 5.24."""
        return self.cache

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field or the default; guidance of `generate` asks so for the state."""
        return super().get("cache" if key == "past_key_values" else key, default)


def takes_past_key_values(forward: Callable[Inputs, Result]) -> Callable[Inputs, Result]:
    """Let a `forward` take `cache` under its name in transformers before 5.24 as well."""

    @functools.wraps(forward)
    def call(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Result:
        if "past_key_values" in kwargs:
            if kwargs.get("cache") is not None:
                raise InputError("past_key_values is another name of cache; give one of them")
            kwargs["cache"] = kwargs.pop("past_key_values")
        return forward(*args, **kwargs)

    return call


def past_refusals(past: object, layers: int, rows: int) -> list[str]:
    """Return the reasons why this is no state of a model with as many layers, and of a batch.

    Args:
        past: value that a caller gives.
        layers: number of layers of the model.
        rows: number of rows of the batch.
    """
    if not isinstance(past, LongspanCache):
        return [f"cache must be a LongspanCache, got {type(past).__name__}"]
    if len(past.layers) != layers:
        return [f"the state is of {len(past.layers)} layers, the model has {layers}"]
    if past.lost_history and torch.is_grad_enabled():
        return [
            "the state has no autograd history, of which reentrant checkpointing keeps none; pass "
            "cache.detach(), or recompute activations with use_reentrant=False"
        ]
    sizes = {layer.batch_size for layer in past.layers if layer.state is not None}
    return [f"the state is of a batch of {max(sizes)}, got {rows} rows"] if sizes - {rows} else []
