"""Classification and regression of a sequence or of its tokens."""

import math
from typing import Unpack, cast

import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from longspan.attention.ops.precision import at_least_float32
from longspan.errors import InputError
from longspan.models.base import LongspanOutput, Requests
from longspan.models.config import LongspanConfig
from longspan.models.heads.base import ClassificationHead, HeadModel, Shapes, encode_texts
from longspan.models.heads.losses import IGNORED, Items, label_loss, mean_loss
from longspan.models.inputs import TextInputs, TokenIds, TokenMask
from longspan.shapes import Float, Int

Labels = Int[Tensor, "..."] | Float[Tensor, "..."]


class LongspanClassifier(HeadModel):
    """Base of the classification models: Transformer and head."""

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        num_labels = cast(int, config.num_labels)
        self.classifier = ClassificationHead(self.feature_size(config), num_labels, config)
        self.post_init()

    @staticmethod
    def feature_size(config: LongspanConfig) -> int:
        """Return the size of the vectors that the head classifies."""
        return config.output_size

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the head on each classified vector."""
        rows, features = math.prod(cls.label_shapes(shapes)[cls.label]), cls.feature_size(config)
        return ClassificationHead.flops(config, rows, features, cast(int, config.num_labels))


class SingleInputClassifier(LongspanClassifier):
    """Base of the classification models of one sequence."""

    output_class: type[SequenceClassifierOutput] | type[TokenClassifierOutput]
    features: str  # field of the Transformer's output that the head classifies

    def classified_vectors(
        self, encoded: LongspanOutput, inputs: TextInputs
    ) -> Float[Tensor, "*B W"]:
        """Return the vectors that the head classifies."""
        return getattr(encoded, self.features)

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        labels: Labels | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> SequenceClassifierOutput | TokenClassifierOutput | tuple:
        """Classify; see `LongspanModel.forward` for the inputs and masks.

        `num_items_in_batch` is the number of labels of all parts of a batch; see `Head.finish`.

        Returns:
            `logits`, (B, C) for sequences or (B, T, C) for tokens, and `loss` if labels are given;
            see `classification_loss`. In training the mechanisms' auxiliary loss is added.

        Raises:
            InputError: the Transformer refuses the inputs, or the labels do not fit the logits.
        """
        masks, values = (attention_mask, global_attention_mask), (inputs_embeds, input_values)
        inputs = TextInputs(input_ids, *masks, token_type_ids, position_ids, *values)
        encoded = encode_texts(self.model, self.mark_global_tokens(inputs), **requests)
        logits = self.classifier(self.classified_vectors(encoded, inputs))
        loss = None if labels is None else classification_loss(logits, labels, self.config)
        weight = labels, num_items_in_batch
        return self.finish(self.output_class, [encoded], loss, requests, *weight, logits=logits)


class LongspanForSequenceClassification(SingleInputClassifier):
    """Transformer with a classification head on the pooled state.

    In a decoder the last token alone has read the whole text; set `pooling="last"`.
    """

    output_class = SequenceClassifierOutput
    features = "pooler_output"


def classification_loss(
    logits: Float[Tensor, "*B C"], labels: Labels, config: LongspanConfig
) -> Float[Tensor, ""]:
    """Return the loss that `problem_type` names.

    Args:
        logits: scores of the classes, or predicted numbers.
        labels: classes, and -100 where there is no loss; for `problem_type="regression"`, or one
            label, the numbers, which may leave out an axis C of size one; for
            `problem_type="multi_label_classification"` 1 at the classes that apply, 0 at those that
            do not, and -100 where there is no loss.
        config: configuration of the model.

    Returns:
        The mean cross entropy, squared error or binary cross entropy.

    Raises:
        InputError: the labels do not have the shape or type of the problem.
    """
    if config.is_regression or config.is_multi_label:
        scores = at_least_float32(logits)
        shape = scores.shape
        if labels.shape != shape and (labels.shape != shape[:-1] or shape[-1] != 1):
            # Not broadcast: every sequence needs numbers of its own.
            raise InputError(f"labels must have shape {tuple(shape)}, got {tuple(labels.shape)}")
        targets = labels.to(scores.dtype).reshape(shape)
        if config.is_regression:
            return F.mse_loss(scores, targets)
        losses = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        return mean_loss(losses.masked_fill(targets == IGNORED, 0).sum(), labels)
    if labels.is_floating_point():
        raise InputError(
            f"labels must be integers, the classes, got {labels.dtype}; for numbers set "
            "problem_type to 'regression', for several labels to 'multi_label_classification'"
        )
    return label_loss(logits, labels, weights=config.class_weights)


HEAD = LongspanForSequenceClassification
