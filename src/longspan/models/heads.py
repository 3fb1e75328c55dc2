"""Classification and regression: of a sequence, of its tokens, or of a pair of sequences."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from longspan.errors import OptionError
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.config import LongspanConfig
from longspan.models.inputs import TokenIds, TokenMask
from longspan.models.model import LongspanModel
from longspan.shapes import Bool, Float, Int


class ClassificationHead(nn.Module):
    """Hidden layer with ReLU, followed by a linear map to the logits."""

    def __init__(self, input_size: int, config: LongspanConfig):
        super().__init__()
        self.hidden = nn.Linear(input_size, config.classifier_hidden_size)
        self.output = nn.Linear(config.classifier_hidden_size, cast(int, config.num_labels))

    def forward(self, features: Float[Tensor, "*B W"]) -> Float[Tensor, "*B C"]:
        """Return the logits of each feature vector."""
        return self.output(F.relu(self.hidden(features)))


class LongspanClassifier(LongspanPreTrainedModel):
    """Base of the classification models: encoder and head."""

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.model = LongspanModel(config)
        self.classifier = ClassificationHead(self.feature_size(config), config)
        self.post_init()

    @staticmethod
    def feature_size(config: LongspanConfig) -> int:
        """Return the size of the vectors that the head classifies."""
        return config.hidden_size

    def _classify(self, features: Tensor, labels: Tensor | None) -> tuple[Any, Any]:
        """Return the loss, or None without labels, and the logits.

        The loss is the mean cross entropy; of a regression, the mean squared error.
        """
        logits = self.classifier(features)
        if labels is None:
            return None, logits
        if self.config.is_regression:
            # Not broadcast: numbers of another shape are an error.
            return F.mse_loss(logits, labels.to(logits.dtype).reshape_as(logits)), logits
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten()), logits


class _SingleInputClassifier(LongspanClassifier):
    output_class: type[SequenceClassifierOutput] | type[TokenClassifierOutput]
    features: str  # field of the encoder's output that the head classifies

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        labels: Int[Tensor, " B"] | Int[Tensor, "B T"] | Float[Tensor, "*B"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> SequenceClassifierOutput | TokenClassifierOutput:
        """Classify; see `LongspanModel.forward` for the inputs and masks.

        Returns:
            `logits`, (B, C) for sequences or (B, T, C) for tokens, and `loss` if labels are given:
            the mean cross entropy over the labels other than -100; of a regression
            (`problem_type="regression"`, or one label) the mean squared error, for labels (B,), or
            (B, C) of C numbers for each sequence.
        """
        encoded = self.model(input_ids, attention_mask, global_attention_mask, input_values)
        loss, logits = self._classify(getattr(encoded, self.features), labels)
        return self.output_class(loss=loss, logits=logits)


class LongspanForSequenceClassification(_SingleInputClassifier):
    """Encoder with a classification head on the pooled state."""

    output_class = SequenceClassifierOutput
    features = "pooler_output"


class LongspanForTokenClassification(_SingleInputClassifier):
    """Encoder with a classification head on the state of every token."""

    output_class = TokenClassifierOutput
    features = "last_hidden_state"

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        if config.is_regression:
            raise OptionError(
                "numbers are predicted for sequences and pairs, not for tokens; set num_labels to "
                "2 or more, and problem_type to None"
            )


class LongspanForPairClassification(LongspanClassifier):
    """Encoder applied to two sequences, with a classification head on both pooled states."""

    @staticmethod
    def feature_size(config: LongspanConfig) -> int:
        """Return the size of the vectors that the head classifies."""
        return config.hidden_size * (4 if config.pair_head == "interaction" else 2)

    def forward(
        self,
        input_ids: TokenIds,
        input_ids_b: Int[Tensor, "B U"],
        attention_mask: TokenMask | None = None,
        attention_mask_b: Bool[Tensor, "B U"] | Int[Tensor, "B U"] | None = None,
        labels: Int[Tensor, " B"] | Float[Tensor, "*B"] | None = None,
    ) -> SequenceClassifierOutput:
        """Classify pairs; the two sequences of a pair may differ in length.

        Returns:
            `logits` (B, C) and, if labels are given, `loss`: their mean cross entropy, or of a
            regression the mean squared error.
        """
        a = self.model(input_ids, attention_mask).pooler_output
        b = self.model(input_ids_b, attention_mask_b).pooler_output
        parts = (a, b, a * b, a - b) if self.config.pair_head == "interaction" else (a, b)
        loss, logits = self._classify(torch.cat(parts, dim=-1), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
