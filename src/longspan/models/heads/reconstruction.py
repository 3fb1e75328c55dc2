"""Reconstruction of a sequence from its pooled state: an autoencoder.

Decoder of Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures", 2024
(https://arxiv.org/abs/2403.17844), as in athms/mad-lab (mad/model/auto_encoder.py): the pooled
state plus the sinusoids of a position passes through two layers of its own width.
"""

import torch
from torch import Tensor, nn

from longspan.models.base import LongspanOutput
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import Shapes
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.inputs import TextInputs
from longspan.models.modules import make_norm
from longspan.models.positions import sinusoidal_table
from longspan.shapes import Float


class LongspanForReconstruction(LongspanForTokenClassification):
    """Transformer whose pooled state alone gives the class of every token."""

    features = "pooler_output"
    card_kind = "feature-extraction"

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        width = config.output_size
        layers = [
            nn.Sequential(make_norm(config, width), nn.Linear(width, width), nn.GELU())
            for _ in range(2)
        ]
        self.decoder = nn.Sequential(*layers, make_norm(config, width))
        self.post_init()

    def classified_vectors(
        self, encoded: LongspanOutput, inputs: TextInputs
    ) -> Float[Tensor, "B T W"]:
        """Return the decoder's state of each position, counted over real tokens."""
        pooled = encoded.pooler_output
        assert pooled is not None
        rows, length = inputs.shape
        positions = torch.arange(length, device=pooled.device).expand(rows, length)
        if inputs.attention_mask is not None:
            positions = (inputs.attention_mask.long().cumsum(1) - 1).clamp(min=0)
        table = sinusoidal_table(positions, pooled.shape[1], dtype=pooled.dtype)
        return self.decoder(pooled[:, None] + table)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the decoder and of the classification of each token."""
        (length,), width = shapes["input_ids"], config.output_size
        return 2 * linear_flops(length, width, width) + super().head_flops(config, shapes)


HEAD = LongspanForReconstruction
