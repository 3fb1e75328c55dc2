"""Classification and regression of a pair of sequences."""

import dataclasses
from typing import Any, Unpack, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from longspan.errors import InputError, OptionError
from longspan.models.base import LongspanOutput, Requests
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import encode_texts
from longspan.models.heads.losses import Items
from longspan.models.heads.sequence_classification import (
    Labels,
    LongspanClassifier,
    classification_loss,
)
from longspan.models.inputs import TextInputs, TokenIds, TokenMask
from longspan.shapes import Float, Int, Mask

SecondIds = Int[Tensor, "B U"]
SecondMask = Mask[Tensor, "B U"]


@dataclasses.dataclass
class PairClassifierOutput(SequenceClassifierOutput):
    """Output of the classifier of pairs.

    Attributes:
        loss: loss of the labels, plus the mechanisms' auxiliary losses in training.
        logits: scores of the classes (B, C).
        hidden_states: states of the first sequence, see `LongspanOutput`.
        attentions: weights of the first sequence, see `LongspanOutput`.
        hidden_states_b: states of the second sequence.
        attentions_b: weights of the second sequence.
    """

    hidden_states_b: tuple[Tensor, ...] | None = None
    attentions_b: tuple[Tensor, ...] | None = None


class LongspanForPairClassification(LongspanClassifier):
    """Transformer applied to two sequences, with a classification head on both pooled states."""

    texts = ("input_ids", "input_ids_b")

    def __init__(self, config: LongspanConfig):
        if config.input_features is not None:
            raise OptionError(
                f"pairs are sequences of token ids, got input_features={config.input_features}; "
                "set input_features to None"
            )
        super().__init__(config)

    @staticmethod
    def feature_size(config: LongspanConfig) -> int:
        """Return the size of the vectors that the head classifies."""
        return config.output_size * (4 if config.pair_head == "interaction" else 2)

    def forward(
        self,
        input_ids: TokenIds | None = None,
        input_ids_b: SecondIds | None = None,
        attention_mask: TokenMask | None = None,
        attention_mask_b: SecondMask | None = None,
        labels: Labels | None = None,
        global_attention_mask: TokenMask | None = None,
        global_attention_mask_b: SecondMask | None = None,
        token_type_ids: TokenIds | None = None,
        token_type_ids_b: SecondIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        position_ids_b: Int[Tensor, "#B U"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        inputs_embeds_b: Float[Tensor, "B U W"] | None = None,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> PairClassifierOutput | tuple:
        """Classify pairs; the two sequences of a pair may differ in length.

        Arguments that end in `_b` are those of the second sequence; see `LongspanModel.forward`
        for all of them, and `classification_loss` for the labels. `num_items_in_batch` is the
        number of labels of all parts of a batch; see `Head.finish`.

        Returns:
            See `PairClassifierOutput`.

        Raises:
            InputError: the Transformer refuses the inputs, or the labels do not fit the logits.
        """
        masks = attention_mask, global_attention_mask
        first = TextInputs(input_ids, *masks, token_type_ids, position_ids, inputs_embeds)
        masks_b = attention_mask_b, global_attention_mask_b
        second = TextInputs(
            input_ids_b, *masks_b, token_type_ids_b, position_ids_b, inputs_embeds_b
        )
        a = encode_texts(self.model, first, "first sequence", **requests)
        b = encode_texts(self.model, second, "second sequence", **requests)
        logits = self.classifier(self._features(a, b))
        loss = None if labels is None else classification_loss(logits, labels, self.config)
        weight, kind = (labels, num_items_in_batch), PairClassifierOutput
        of_second: Any = {"hidden_states_b": b.hidden_states, "attentions_b": b.attentions}
        return self.finish(kind, [a, b], loss, requests, *weight, logits=logits, **of_second)

    def _features(self, first: LongspanOutput, second: LongspanOutput) -> Tensor:
        a, b = cast(Tensor, first.pooler_output), cast(Tensor, second.pooler_output)
        if len(a) != len(b):
            raise InputError(
                f"each first sequence must have a second one, got {len(a)} and {len(b)} sequences"
            )
        parts = (a, b, a * b, a - b) if self.config.pair_head == "interaction" else (a, b)
        return torch.cat(parts, dim=-1)


HEAD = LongspanForPairClassification
