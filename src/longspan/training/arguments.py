"""Arguments of a model's call in training and evaluation."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from longspan.metrics import Metric
from longspan.models import LongspanForCausalLM
from longspan.tasks.base import Task

_ALL = slice(None)


def model_inputs(
    model: nn.Module,
    inputs: dict[str, torch.Tensor],
    device: torch.device,
    rows: slice = _ALL,
) -> dict[str, torch.Tensor]:
    """Return the inputs of some rows of a batch that a model supports, on a device.

    A model whose mechanism has no global tokens gets no masks of them: a task marks them for the
    mechanisms that do.
    """
    supported = takes_global_tokens(cast(PreTrainedModel, getattr(model, "module", model)))
    return {
        name: x.to(device, non_blocking=True)[rows]
        for name, x in inputs.items()
        if supported or "global_attention_mask" not in name
    }


def takes_global_tokens(model: PreTrainedModel) -> bool:
    """Return whether some layer of a model has global tokens."""
    return model.config.supports_global_tokens and model.config.num_hidden_layers > 0


def label_arguments(
    model: nn.Module, task: Task, metrics: Sequence[Metric], targets: torch.Tensor
) -> dict[str, Any]:
    """Return the arguments from which the model computes its loss, and what metrics read.

    Args:
        model: model, possibly wrapped.
        task: task of the targets.
        metrics: metrics that follow from the call.
        targets: targets on the device of the model.
    """
    return {**task.label_arguments(targets), **logit_arguments(model, metrics)}


def logit_arguments(model: nn.Module, metrics: Sequence[Metric]) -> dict[str, bool]:
    """Return the argument for logits of an adaptive softmax, which its loss does without.

    Only metrics that read other words than the targets need the logits of the whole vocabulary.
    """
    unwrapped_model = getattr(model, "module", model)
    is_adaptive = isinstance(unwrapped_model, LongspanForCausalLM) and bool(
        unwrapped_model.config.adaptive_cutoffs
    )
    is_needed = is_adaptive and not all(metric.is_likelihood for metric in metrics)
    return {"return_logits": True} if is_needed else {}
