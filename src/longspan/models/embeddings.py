"""Embeddings of the inputs, their types and positions, and the convolutional stem of images.

Tay et al. 2021 (https://arxiv.org/abs/2011.04006), appendix A.2.1, report that inductive biases of
images outweigh the choice of the attention. The text names a convolutional stem and gives no sizes:
here two 3 x 3 convolutions of the model's width, which keep every position.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention.masking import apply_mask
from longspan.errors import InputError
from longspan.models.adaptive import AdaptiveEmbedding
from longspan.models.config import LongspanConfig
from longspan.models.inputs import is_readable
from longspan.models.modules import Dropout, make_norm
from longspan.models.positions import AxialPositions, sinusoidal_table
from longspan.models.relative import image_side
from longspan.shapes import Bool, Float, Int

WordTable = nn.Embedding | AdaptiveEmbedding
KERNEL, CONVOLUTIONS = 3, 2  # of the stem


class Embeddings(nn.Module):
    """Embeddings of the inputs, their positions, and the summary token of `pooling="cls"`."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        model_width = config.hidden_size
        width = config.embedding_size or model_width
        self.config = config
        features = config.input_features
        self.words: WordTable | None = None
        if config.adaptive_cutoffs:
            self.words = AdaptiveEmbedding(config, width)
        elif features is None:
            self.words = nn.Embedding(config.vocab_size, width)
        self.values = None if features is None else nn.Linear(features, width)
        self.types = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.stem = ConvolutionStem(width) if config.stem == "convolution" else None
        self.summary = nn.Embedding(1, width) if config.pooling == "cls" else None
        learned = config.position_encoding == "learned"
        self.positions = nn.Embedding(config.max_sequence_length, width) if learned else None
        shape, widths = config.axial_shape, config.axial_widths
        self.axial = AxialPositions(shape, widths) if shape and widths else None
        normalizes = config.norm == "post" or config.embedding_norm
        self.norm = make_norm(config, width) if normalizes else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.widen = None if width == model_width else nn.Linear(width, model_width)

    def forward(
        self,
        inputs: Int[Tensor, "B T"] | Float[Tensor, "B T F"],
        mask: Bool[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "#B N"] | None = None,
        token_types: Int[Tensor, "B T"] | None = None,
        embedded: bool = False,
    ) -> Float[Tensor, "B N M"]:
        """Embed the inputs; N is T, or T + 1 with a summary token.

        Args:
            inputs: ids, numbers, or with `embedded` their embeddings.
            mask: True at real tokens.
            positions: position of each token, the summary token included; None: its index.
            token_types: types; None: all zero.
            embedded: whether the inputs are embeddings already.

        Raises:
            InputError: an id is outside its table, or the model has no table of types.
        """
        x = inputs if embedded else self._embed(inputs)
        if self.config.scale_embedding:
            x = x * math.sqrt(x.shape[2])
        if self.types is None:
            _refuse_types(token_types)
        else:
            types = (
                x.new_zeros(x.shape[:2], dtype=torch.long) if token_types is None else token_types
            )
            x = x + _look_up(self.types, types, "token_type_ids", "type_vocab_size")
        if self.stem is not None:
            # A convolution reads its neighbors, so padding must hold no content.
            x = self.stem(x if mask is None else apply_mask(x, mask[..., None]))
        if self.summary is not None:
            summary = self.summary(torch.zeros(1, 1, dtype=torch.long, device=x.device))
            x = torch.cat((summary.expand(len(x), -1, -1), x), dim=1)
        x = self.dropout(self.norm(self._add_positions(x, positions)))
        return x if self.widen is None else self.widen(x)

    def _embed(self, inputs: Tensor) -> Tensor:
        if self.values is not None:
            return self.values(inputs)
        return _look_up(cast(WordTable, self.words), inputs, "token ids", "vocab_size")

    def _add_positions(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.positions is not None:
            return x + self._learned_positions(self.positions, x, positions)
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)[None]
        if self.axial is not None:
            return x + self.axial(positions)
        if self.config.position_encoding != "sinusoidal":
            return x
        table = sinusoidal_table(positions, x.shape[2], dtype=x.dtype)
        # Scaled to the root mean square of the initial word embeddings, which are much smaller.
        return x + math.sqrt(2) * self.config.initializer_range * table

    def _learned_positions(
        self, table: nn.Embedding, x: Tensor, positions: Tensor | None
    ) -> Tensor:
        """Return the rows of the table, the frozen ones without a gradient."""
        frozen = self.config.frozen_positions
        if positions is None:
            # Called, not indexed: tools that offload weights load those of the modules in a call.
            rows = table(torch.arange(x.shape[1], device=x.device))
            return torch.cat((rows[:frozen].detach(), rows[frozen:])) if frozen else rows
        rows = _look_up(table, positions, "position_ids", "max_position_embeddings")
        if not frozen:
            return rows
        return torch.where((positions < frozen)[..., None], rows.detach(), rows)


def _refuse_types(token_types: Tensor | None) -> None:
    """Raise InputError for types other than zero, which tokenizers give to one text.

    On a device they are not read, as that would wait for it.
    """
    if token_types is None or token_types.device.type != "cpu" or not is_readable(token_types):
        return
    if token_types.any():
        raise InputError(
            "token_type_ids must be 0 in a model without types (type_vocab_size=0), got up to "
            f"{token_types.max()}; leave them out, or build the model with type_vocab_size=2"
        )


def _look_up(table: WordTable, ids: Tensor, name: str, field: str) -> Tensor:
    """Return the embeddings of ids.

    Raises:
        InputError: an id is outside the table.
    """
    try:
        return table(ids)
    except IndexError as error:
        low, high, size = int(ids.min()), int(ids.max()), table.num_embeddings
        raise InputError(
            f"{name} must be in 0..{size - 1}, got {low}..{high}; "
            f"check the tokenizer, or build the model with a larger {field}"
        ) from error


class ConvolutionStem(nn.Module):
    """Two 3 x 3 convolutions with ReLU over the embedded pixels of a square image."""

    def __init__(self, width: int):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(width, width, KERNEL, padding="same") for _ in range(CONVOLUTIONS)
        )

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        """Convolve the states of T = side x side pixels in row order.

        Raises:
            InputError: T is no square number.
        """
        side = image_side(x.shape[1])
        if side is None:
            raise InputError(
                f"stem='convolution' requires a square image, got {x.shape[1]} positions; "
                "use a task of images, or stem='none'"
            )
        grid = x.mT.unflatten(2, (side, side))
        for convolution in self.convolutions:
            grid = F.relu(convolution(grid))
        return grid.flatten(2).mT


def stem_flops(length: int, width: int) -> int:
    """Return the forward FLOPs of the stem on an image of `length` pixels."""
    return CONVOLUTIONS * 2 * length * KERNEL**2 * width**2
