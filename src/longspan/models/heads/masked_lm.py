"""Masked language model: an encoder that predicts hidden tokens."""

from typing import Unpack

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput

from longspan.errors import OptionError
from longspan.models.base import Requests
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import encode_texts
from longspan.models.heads.language import LanguageModel, make_narrow
from longspan.models.heads.losses import Items, label_loss
from longspan.models.inputs import TextInputs, TokenIds, TokenMask
from longspan.models.modules import make_norm
from longspan.shapes import Float, Int


class LongspanForMaskedLM(LanguageModel):
    """Encoder that predicts masked tokens (Devlin et al. 2019, section 3.1)."""

    card_kind = "fill-mask"

    def __init__(self, config: LongspanConfig):
        if config.is_decoder:
            raise OptionError(
                "masked tokens are predicted from both sides; set is_decoder to False, or use "
                "LongspanForCausalLM"
            )
        if config.adaptive_cutoffs:
            raise OptionError(
                "masked tokens have no adaptive softmax; set adaptive_cutoffs to [], or use "
                "LongspanForCausalLM"
            )
        transforms = config.prediction_head == "transform"
        super().__init__(config, bias=transforms)
        self.transform = PredictionTransform(config) if transforms else make_narrow(config)
        self.post_init()

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        labels: TokenIds | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> MaskedLMOutput | tuple:
        """Predict the token at each position; see `LongspanModel.forward` for the inputs.

        `labels` are the tokens of the positions that are predicted, and -100 elsewhere.
        `num_items_in_batch` is the number of labels of all parts of a batch; see `Head.finish`.

        Returns:
            `logits` (B, T, V) and, if labels are given, `loss`: the mean cross entropy.
        """
        masks = attention_mask, global_attention_mask
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, inputs_embeds)
        encoded = encode_texts(self.model, inputs, **requests)
        logits = self.lm_head(self.transform(encoded.last_hidden_state))
        loss = None if labels is None else label_loss(logits, labels, sparse=True)
        weight = labels, num_items_in_batch
        return self.finish(MaskedLMOutput, [encoded], loss, requests, *weight, logits=logits)


class PredictionTransform(nn.Module):
    """Linear map, activation and normalization before the logits of masked tokens."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        width = config.logits_input_size
        self.dense = nn.Linear(config.output_size, width, bias=config.linear_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = make_norm(config, width)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T W"]:
        """Map every position independently."""
        return self.norm(self.activation(self.dense(x)))


HEAD = LongspanForMaskedLM
