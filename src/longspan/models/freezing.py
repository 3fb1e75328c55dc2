"""Training of some parameters only, as the configuration of a model asks for it.

`freeze="all-but-positions"` with `frozen_positions=n` trains the positions from n on and nothing
else: the ablation of Longformer (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 5)
that keeps the weights of the short pretrained model. The configuration is saved with the
checkpoint, so that every load applies it. Load with `freeze="none", frozen_positions=0` to train
all parameters.

In an encoder-decoder both fields describe the encoder. Its decoder is frozen, unless
`decoder_overrides` has `frozen_positions`: then the positions from there on are trained.

Rows without a gradient still shrink under weight decay: set the decay of the positions to zero.
"""

from torch import nn
from transformers import PreTrainedModel

from longspan.models.embeddings import Embeddings


def apply_freeze(model: PreTrainedModel) -> None:
    """Clear `requires_grad` of the parameters that the model's configuration freezes."""
    if model.config.freeze == "none":
        return
    trained = {
        id(module.positions.weight)
        for module in model.modules()
        if isinstance(module, Embeddings)
        and isinstance(module.positions, nn.Embedding)
        and module.config.freeze == "all-but-positions"
    }
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)
