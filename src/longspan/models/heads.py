"""Classification of a sequence, of its tokens, or of a pair that one encoder reads apart."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from longspan.models.config import LongspanConfig
from longspan.models.encoder import LongspanModel, LongspanPreTrainedModel
from longspan.shapes import Bool, Float, Int


class ClassificationHead(nn.Module):
    """A hidden layer with ReLU, then one logit per class."""

    def __init__(self, width: int, config: LongspanConfig):
        super().__init__()
        hidden, classes = config.classifier_hidden_size, cast(int, config.num_labels)
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, pooled: Float[Tensor, "*B W"]) -> Float[Tensor, "*B C"]:
        """Logits of each summary."""
        return self.output(F.relu(self.hidden(pooled)))


class LongspanForSequenceClassification(LongspanPreTrainedModel):
    """The encoder, its summary of the input, and a classification head."""

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.encoder = LongspanModel(config)
        self.classifier = ClassificationHead(config.hidden_size, config)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        global_attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        labels: Int[Tensor, " B"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> SequenceClassifierOutput:
        """Classify; the arguments are those of `LongspanModel.forward`.

        Returns:
            `logits` (B, C), and with labels `loss`, their mean cross entropy.
        """
        encoded = self.encoder(input_ids, attention_mask, global_attention_mask, input_values)
        return _scored(self.classifier(encoded.pooler_output), labels)


class LongspanForTokenClassification(LongspanPreTrainedModel):
    """The encoder and a classification head on every token."""

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.encoder = LongspanModel(config)
        self.classifier = ClassificationHead(config.hidden_size, config)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        global_attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> TokenClassifierOutput:
        """Classify tokens; the arguments are those of `LongspanModel.forward`.

        Returns:
            `logits` (B, T, C), and with labels `loss`, the mean cross entropy of the tokens whose
            label is not -100.
        """
        encoded = self.encoder(input_ids, attention_mask, global_attention_mask, input_values)
        logits = self.classifier(encoded.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


class LongspanForPairClassification(LongspanPreTrainedModel):
    """Two towers with one set of weights, and a classification head over both summaries."""

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.encoder = LongspanModel(config)
        self.classifier = ClassificationHead(pair_width(config), config)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        input_ids_b: Int[Tensor, "B U"],
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        attention_mask_b: Bool[Tensor, "B U"] | Int[Tensor, "B U"] | None = None,
        labels: Int[Tensor, " B"] | None = None,
    ) -> SequenceClassifierOutput:
        """Classify pairs; each sequence has its own length and mask.

        Returns:
            `logits` (B, C), and with labels `loss`, their mean cross entropy.
        """
        a = self.encoder(input_ids, attention_mask).pooler_output
        b = self.encoder(input_ids_b, attention_mask_b).pooler_output
        parts = (a, b, a * b, a - b) if self.config.pair_head == "interaction" else (a, b)
        return _scored(self.classifier(torch.cat(parts, dim=-1)), labels)


def pair_width(config: LongspanConfig) -> int:
    """Width of what the pair head is given."""
    return config.hidden_size * (4 if config.pair_head == "interaction" else 2)


def _scored(logits: Tensor, labels: Tensor | None) -> SequenceClassifierOutput:
    loss = None if labels is None else F.cross_entropy(logits, labels)
    return SequenceClassifierOutput(loss=loss, logits=logits)
