"""Classification models: of a sequence, of its tokens, or of a pair of sequences."""

from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from longspan.models.config import LongspanConfig
from longspan.models.encoder import LongspanModel, LongspanPreTrainedModel
from longspan.shapes import Bool, Float, Int

ClassifierOutput = SequenceClassifierOutput | TokenClassifierOutput


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
        self.encoder = LongspanModel(config)
        self.classifier = ClassificationHead(self._feature_size(config), config)
        self.post_init()

    @staticmethod
    def _feature_size(config: LongspanConfig) -> int:
        return config.hidden_size

    def _classify(self, features: Tensor, labels: Tensor | None) -> dict[str, Tensor | None]:
        """Return the logits and, given labels, their mean cross entropy."""
        logits = self.classifier(features)
        if labels is None:
            return {"loss": None, "logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


class LongspanSingleInputClassifier(LongspanClassifier):
    """Base of the models that classify one sequence or its tokens."""

    output_class: ClassVar[type[ClassifierOutput]]

    def _features(self, encoded: BaseModelOutputWithPooling) -> Tensor:
        raise NotImplementedError

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        global_attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        labels: Int[Tensor, " B"] | Int[Tensor, "B T"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> ClassifierOutput:
        """Classify; see `LongspanModel.forward` for the inputs and masks.

        Returns:
            `logits`, (B, C) for sequences or (B, T, C) for tokens, and `loss` if labels are given:
            the mean cross entropy over the labels other than -100.
        """
        encoded = self.encoder(input_ids, attention_mask, global_attention_mask, input_values)
        return self.output_class(**self._classify(self._features(encoded), labels))


class LongspanForSequenceClassification(LongspanSingleInputClassifier):
    """Encoder with a classification head on the pooled state."""

    output_class = SequenceClassifierOutput

    def _features(self, encoded: BaseModelOutputWithPooling) -> Tensor:
        return cast(Tensor, encoded.pooler_output)


class LongspanForTokenClassification(LongspanSingleInputClassifier):
    """Encoder with a classification head on the state of every token."""

    output_class = TokenClassifierOutput

    def _features(self, encoded: BaseModelOutputWithPooling) -> Tensor:
        return cast(Tensor, encoded.last_hidden_state)


class LongspanForPairClassification(LongspanClassifier):
    """Encoder applied to two sequences, with a classification head on both pooled states."""

    @staticmethod
    def _feature_size(config: LongspanConfig) -> int:
        return pair_feature_size(config)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        input_ids_b: Int[Tensor, "B U"],
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        attention_mask_b: Bool[Tensor, "B U"] | Int[Tensor, "B U"] | None = None,
        labels: Int[Tensor, " B"] | None = None,
    ) -> SequenceClassifierOutput:
        """Classify pairs; the two sequences of a pair may differ in length.

        Returns:
            `logits` (B, C) and, if labels are given, `loss`, their mean cross entropy.
        """
        a = self.encoder(input_ids, attention_mask).pooler_output
        b = self.encoder(input_ids_b, attention_mask_b).pooler_output
        parts = (a, b, a * b, a - b) if self.config.pair_head == "interaction" else (a, b)
        return SequenceClassifierOutput(**self._classify(torch.cat(parts, dim=-1), labels))


def pair_feature_size(config: LongspanConfig) -> int:
    """Return the size of the vectors that the pair head classifies."""
    return config.hidden_size * (4 if config.pair_head == "interaction" else 2)
