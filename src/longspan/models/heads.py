"""Parts that the models with a head share: encoding of texts and the head of hidden layers."""

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from longspan.errors import InputError
from longspan.models.base import LongspanOutput, LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.inputs import TextInputs, default_global_mask
from longspan.models.model import LongspanModel
from longspan.shapes import Float


class HeadModel(LongspanPreTrainedModel):
    """Base of the models with a head: a Transformer that reads whole texts.

    A decoder keeps no state between calls.
    """

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.model = LongspanModel(config)

    def encode(
        self,
        inputs: TextInputs,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> LongspanOutput:
        """Compute the states of the tokens of a batch of texts; see `encode_texts`.

        Texts without a global mask have the global tokens that the configuration names.

        Raises:
            InputError: the Transformer refuses the inputs, or there are no token ids in which to
                find the separator.
        """
        if inputs.global_attention_mask is None:
            mask = default_global_mask(self.config, inputs)
            inputs = inputs._replace(global_attention_mask=mask)
        return encode_texts(self.model, inputs, output_attentions, output_hidden_states)


def encode_texts(
    model: LongspanModel,
    inputs: TextInputs,
    output_attentions: bool | None = None,
    output_hidden_states: bool | None = None,
    name: str | None = None,
) -> LongspanOutput:
    """Compute the states of the tokens of a batch of texts.

    Args:
        model: Transformer that reads the texts.
        inputs: the texts.
        output_attentions: see `LongspanModel.forward`.
        output_hidden_states: see `LongspanModel.forward`.
        name: name of the texts in messages, where a model reads several batches.

    Raises:
        InputError: the Transformer refuses the inputs.
    """
    try:
        return model(
            **inputs._asdict(),
            use_cache=False,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
    except InputError as error:
        if name is None:
            raise
        raise InputError(f"{name}: {error}") from error


class ClassificationHead(nn.Module):
    """Hidden layer with an activation, if it has a width, and a linear map to the logits."""

    def __init__(self, input_size: int, num_logits: int, config: LongspanConfig):
        super().__init__()
        width = config.classifier_hidden_size
        self.hidden = nn.Linear(input_size, width) if width else None
        self.activation = ACT2FN[config.classifier_activation]
        self.output = nn.Linear(width or input_size, num_logits, bias=config.classifier_bias)

    def forward(self, features: Float[Tensor, "*B W"]) -> Float[Tensor, "*B C"]:
        """Return the logits of each feature vector."""
        if self.hidden is not None:
            features = self.activation(self.hidden(features))
        return self.output(features)


def exclude(scores: Float[Tensor, "*B"], kept: Tensor | None) -> Float[Tensor, "*B"]:
    """Return the scores, with the lowest number where `kept` is False; None: all are kept.

    The number is finite: tools of transformers take infinite outputs for failures.
    """
    lowest = torch.finfo(scores.dtype).min
    return scores if kept is None else scores.masked_fill(~kept, lowest)
