"""Interface of the models with a head, and the parts that they share."""

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from longspan.errors import InputError
from longspan.models.base import LongspanOutput, LongspanPreTrainedModel, Output, Requests
from longspan.models.config import LongspanConfig
from longspan.models.flops import encoder_flops, linear_flops
from longspan.models.heads.losses import IGNORED, Items
from longspan.models.inputs import TextInputs
from longspan.models.model import LongspanModel
from longspan.models.packing import mark_global_tokens
from longspan.shapes import Float, Int

Shapes = Mapping[str, Sequence[int]]  # of the inputs of one example, by argument of the model


class Head(LongspanPreTrainedModel):
    """Model for a kind of task: what training, reports and model cards read of it.

    Attributes:
        card_kind: name of the kind of task on the Hugging Face hub.
        texts: arguments of the token ids of an example.
        label: argument of the labels, from which the model computes its loss.
        compares_examples: True if the loss of an example depends on the others of its batch.
        has_one_loss: True if each example has one loss, whatever its labels are.
    """

    card_kind: ClassVar[str] = "text-classification"
    texts: ClassVar[tuple[str, ...]] = ("input_ids",)
    label: ClassVar[str] = "labels"
    compares_examples: ClassVar[bool] = False
    has_one_loss: ClassVar[bool] = False

    @classmethod
    def count_targets(cls, labels: Mapping[str, Any], rows: int) -> Int[Tensor, " B"]:
        """Return the number of targets of each example, over which the loss is a mean.

        Args:
            labels: labels of a batch, by argument.
            rows: examples of the batch.
        """
        if cls.has_one_loss:
            return torch.ones(rows, dtype=torch.long)
        (values,) = labels.values()
        if values.is_floating_point():
            return torch.ones(rows, dtype=torch.long, device=values.device)
        return (values != IGNORED).reshape(rows, -1).sum(1)

    @staticmethod
    def scores(output: Any) -> Float[Tensor, "*B C"]:
        """Return the scores of the classes, which metrics compare with the targets."""
        return output.logits

    def finish(
        self,
        output: type[Output],
        encoded: Sequence[Any],
        loss: Tensor | None,
        requests: Requests,
        labels: Tensor | None = None,
        items: Items | None = None,
        **fields: Any,
    ) -> Output | tuple:
        """Return the output of a call.

        In training the auxiliary losses of the mechanisms are added. The loss of a batch that is a
        part of that of an optimizer step is weighted, so that the parts sum to the mean over all
        labels, whichever way the batch is divided.

        Args:
            output: class of the output, which takes over the fields that it shares with that of
                the first Transformer.
            encoded: outputs of the Transformers.
            loss: mean loss of the labels, or None.
            requests: what the caller asks for.
            labels: labels of the batch; those of -100 do not count.
            items: number of labels of all parts of the batch; None: this part is all.
            fields: other fields of the output.

        Raises:
            InputError: a training loop has kept the labels, and computes a loss from the logits,
                which would leave out the auxiliary losses or the weights of the classes.
        """
        auxiliary = [x.auxiliary_loss for x in encoded if x.auxiliary_loss is not None]
        parts = {"the mechanism has an auxiliary loss": bool(auxiliary)}
        parts["the configuration has class_weights"] = self.config.class_weights is not None
        if loss is None and items is not None and (lost := [x for x, y in parts.items() if y]):
            raise InputError(
                f"num_items_in_batch requires labels: {' and '.join(lost)}, which a loss of the "
                "logits alone leaves out; set label_smoothing_factor=0 and no compute_loss_func, "
                "or override Trainer.compute_loss"
            )
        if loss is not None:
            loss = sum(auxiliary, loss)
            if labels is not None and items is not None:
                # Without labels in any part there are no items.
                total = torch.as_tensor(items, device=loss.device).clamp(min=1)
                loss = loss * ((labels != IGNORED).sum() / total)
        first = encoded[0].items() if encoded else ()
        shared = {name: x for name, x in first if hasattr(output, name)}
        values = output(**{**shared, "loss": loss, **fields})
        return self.as_requested(values, requests.get("return_dict"))

    @classmethod
    def flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the floating-point operations of the forward pass on one example.

        A multiply-add counts as two operations. The count holds the matrix products of projections,
        feed-forward layers, stem and head, and the mechanism's own count (`Attention.flops`). It
        leaves out embedding look-ups, norms, activations, biases and positions.

        Args:
            config: configuration of the model.
            shapes: shape of each input of an example, padding included.

        Raises:
            InputError: a length exceeds `max_position_embeddings`.
        """
        texts = text_shapes(shapes).values()
        encoders = sum(math.prod(x[:-1]) * encoder_flops(config, x[-1]) for x in texts)
        return encoders + cls.head_flops(config, shapes)

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the head alone; see `flops`."""
        return 0

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels of one example, by argument: one class."""
        return {cls.label: ()}

    @classmethod
    def dummy_batch(
        cls, shapes: Shapes, rows: int, features: int | None = None, num_global: int = 0
    ) -> dict[str, Tensor]:
        """Return arguments of zeros for some examples, to measure a step without data.

        One symbol is hidden: a mask of ones alone would be dropped, as in no batch with padding.

        Args:
            shapes: shape of each input of an example.
            rows: number of examples.
            features: numbers at each position of continuous inputs; None for token ids.
            num_global: global tokens at the beginning of each text.
        """
        parameters, batch = signature(cls.forward).parameters, dict[str, Tensor]()
        for name, shape in {**shapes, **cls.label_shapes(shapes)}.items():
            batch[name] = torch.zeros(rows, *shape, dtype=torch.long)
        for name, shape in text_shapes(shapes).items():
            mask = torch.ones(rows, *shape, dtype=torch.bool)
            mask.view(-1, shape[-1])[0, -1] = False
            batch[name.replace("input_ids", "attention_mask")] = mask
            marked = name.replace("input_ids", "global_attention_mask")
            if num_global and marked in parameters:
                batch[marked] = torch.zeros_like(mask)
                batch[marked][..., :num_global] = True
        if features is not None:
            batch["input_values"] = torch.zeros(*batch.pop("input_ids").shape, features)
        return batch


def text_shapes(shapes: Shapes) -> Shapes:
    """Return the shapes of token ids among those of all inputs."""
    return {name: shape for name, shape in shapes.items() if "input_ids" in name}


class HeadModel(Head):
    """Base of the models with a head: a Transformer that reads whole texts.

    A decoder keeps no state between calls.
    """

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.model = LongspanModel(config)

    def mark_global_tokens(self, inputs: TextInputs) -> TextInputs:
        """Return texts with the global tokens that the configuration names, if they have no mask.

        Raises:
            InputError: there are no token ids in which to find the separator.
        """
        if inputs.global_attention_mask is not None:
            return inputs
        return inputs._replace(global_attention_mask=mark_global_tokens(self.config, inputs))


def encode_texts(
    model: LongspanModel,
    inputs: TextInputs,
    name: str | None = None,
    **requests: Unpack[Requests],
) -> LongspanOutput:
    """Compute the states of the tokens of a batch of texts.

    Args:
        model: Transformer that reads the texts.
        inputs: the texts.
        name: name of the texts in messages, where a model reads several batches.
        requests: weights and states to return.

    Raises:
        InputError: the Transformer refuses the inputs.
    """
    try:
        return model(**inputs._asdict(), **{**requests, "return_dict": True}, use_cache=False)
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

    @staticmethod
    def flops(config: LongspanConfig, rows: int, features: int, num_logits: int) -> int:
        """Return the operations for some feature vectors."""
        width = config.classifier_hidden_size
        hidden = linear_flops(rows, features, width)
        return hidden + linear_flops(rows, width or features, num_logits)


def exclude(scores: Float[Tensor, "*B"], mask: Tensor | None) -> Float[Tensor, "*B"]:
    """Return the scores, with the lowest number where `mask` is False; None: all are kept.

    The number is finite: tools of transformers take infinite outputs for failures.
    """
    lowest = torch.finfo(scores.dtype).min
    return scores if mask is None else scores.masked_fill(~mask, lowest)
