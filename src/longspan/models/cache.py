"""State of a decoder between calls, as transformers' `generate` passes it on.

Each layer keeps the state that its mechanism defines: a window of keys and values, sums of constant
size, the segments and slots of a memory. transformers' own caches keep every key and value.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from longspan.attention import Cache
from longspan.errors import InputError
from longspan.models.row_groups import GroupedCache
from longspan.shapes import Bool, Int


class CacheLayer(CacheLayerMixin):
    """State of the mechanism of one layer.

    Attributes:
        state: cache of the mechanism; None before the first token.
    """

    # Tensors of a mechanism have no common layout that transformers could allocate in advance.
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.state: Cache | GroupedCache | None = None

    @property
    def batch_size(self) -> int:
        """Number of rows; -1 before the first token."""
        return -1 if self.state is None else self.state.shape[0]

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
        self.state = None

    def offload(self) -> None:
        """Move the state to the CPU."""
        self._move("cpu")

    def prefetch(self) -> None:
        """Do nothing: a step moves no state."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the surviving beams."""
        if self.state is not None:
            self.state = self.state.select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.state is not None:
            rows = torch.arange(self.state.shape[0], device=self.state.device)
            self.state = self.state.select_rows(rows.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse to forget the last tokens: a bounded state no longer holds what preceded them.

        Raises:
            InputError: `tokens_to_remove` is not zero.
        """
        if tokens_to_remove:
            raise InputError(
                f"a mechanism's state cannot forget its last {tokens_to_remove} tokens, as "
                "assisted generation needs; generate without an assistant model"
            )

    def _move(self, device: str) -> None:
        if self.state is not None:
            self.state = self.state.to(device)


class LongspanCache(TransformersCache):
    """State of all layers of a decoder, and the next position of each row.

    Pass it from one call to the next: tokens of a text one by one, or in training the segments of
    a stream. Calls replace its tensors; they modify none.
    """

    layers: list[CacheLayer]  # type: ignore[assignment]

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[CacheLayer() for _ in range(num_layers)])
        self.next_positions: Int[Tensor, " B"] | None = None

    def positions(self, mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        """Return the positions of new tokens: the number of real tokens of the row before each."""
        counted = mask.long().cumsum(1)
        before = counted - mask.long()
        return before if self.next_positions is None else before + self.next_positions[:, None]

    def store(
        self,
        states: Sequence[Cache | GroupedCache | None],
        past: "LongspanCache | None",
        inputs: Tensor,
        mask: Bool[Tensor, "B T"] | None,
    ) -> None:
        """Store the states after a call.

        Args:
            states: state of each layer.
            past: state before the call, or None.
            inputs: new tokens, (B, T, ...).
            mask: True at real ones, or None for all.
        """
        for layer, state in zip(self.layers, states, strict=True):
            layer.state = state
        B, T = inputs.shape[:2]
        new = torch.full((B,), T, device=inputs.device) if mask is None else mask.sum(1)
        before = None if past is None else past.next_positions
        self.next_positions = new if before is None else before + new

    def detach(self) -> "LongspanCache":
        """Return the cache without autograd history, for the next segment in training."""
        made = LongspanCache(len(self.layers))
        for own, layer in zip(made.layers, self.layers, strict=True):
            own.state = None if layer.state is None else layer.state.detach()
        made.next_positions = self.next_positions
        return made

    def reset(self) -> None:
        """Forget all tokens of all rows."""
        super().reset()
        self.next_positions = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the surviving beams."""
        for layer in self.layers:
            layer.reorder_cache(beam_idx)
        if self.next_positions is not None:
            self.next_positions = self.next_positions.index_select(0, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        if self.next_positions is not None:
            self.next_positions = self.next_positions.repeat_interleave(repeats)
