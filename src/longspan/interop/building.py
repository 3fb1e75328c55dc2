"""Construction of a mechanism for an attention module of another library's model."""

import dataclasses
from typing import Any

import torch
from torch import nn

from longspan.attention import Attention, build
from longspan.attention.initial_values import initial_values
from longspan.errors import InputError


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Mechanism and its options, without the sizes of a model.

    Attributes:
        attention: key in `MECHANISMS`.
        options: its options.
        backend: backend, as in `build`.
        max_length: longest input; None: `max_position_embeddings` of the model.
        global_positions: positions of the tokens that attend to all and are attended by all.
    """

    attention: str
    options: dict[str, Any]
    backend: str = "auto"
    max_length: int | None = None
    global_positions: tuple[int, ...] = ()

    def build(self, config: Any = None, **sizes: Any) -> Attention:
        """Build the mechanism on the CPU in float32, whatever the defaults are.

        Args:
            config: configuration of the model.
            sizes: further arguments of `longspan.build`.
        """
        length = self.max_length or getattr(config, "max_position_embeddings", None)
        with initial_values(), torch.inference_mode(False):
            attention = build(
                self.attention, backend=self.backend, max_length=length, **self.options, **sizes
            )
        if self.global_positions and not attention.traits.global_tokens:
            raise InputError(
                f"global_positions is not supported by {self.attention} (traits.global_tokens)"
            )
        return attention


def layer_index(module: nn.Module) -> int:
    """Return the index of the layer that an attention module says it is in, or 0."""
    index = getattr(module, "layer_idx", None)
    return index if isinstance(index, int) else 0
