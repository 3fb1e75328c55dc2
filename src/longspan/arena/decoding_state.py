"""Bytes of the state that a causal model keeps between the tokens of one example."""

import torch
from transformers import PreTrainedModel

from longspan.models import LongspanModel
from longspan.models.cache import LongspanCache
from longspan.models.heads.base import Shapes, text_shapes
from longspan.results import DecodingState
from longspan.tasks import Task
from longspan.training.footprint import AUTOCAST


def measure_state(model: PreTrainedModel, task: Task, precision: str) -> DecodingState | None:
    """Return the state of a model after the tokens of the largest example; None: it is not causal.

    Args:
        model: model of the task, on its device.
        task: task, which need not be open.
        precision: precision of the run, as `TrainingConfig.precision`.
    """
    decoders = [x for x in model.modules() if isinstance(x, LongspanModel) and x.config.is_decoder]
    if not decoders:
        return None
    decoder, shapes = decoders[0], task.input_shapes
    traits = [layer.attention.mechanism.traits for layer in decoder.layers_in_order]
    texts = text_shapes(shapes)
    shorter = {name: (*shape[:-1], max(shape[-1] - 1, 1)) for name, shape in texts.items()}
    return DecodingState(
        num_bytes=max(
            _state_bytes(model, decoder, task, x, precision)
            for x in (shapes, {**shapes, **shorter})
        ),
        grows=any(x.state_size != "1" for x in traits),
    )


@torch.no_grad()
def _state_bytes(
    model: PreTrainedModel,
    decoder: LongspanModel,
    task: Task,
    shapes: Shapes,
    precision: str,
) -> int:
    """Return the bytes of the state of a decoder after inputs of some shapes, without padding."""
    inputs = task.head.dummy_batch(shapes, 1, task.input_features)
    inputs = {name: x.to(model.device) for name, x in inputs.items() if not name.endswith("mask")}
    caches: list[LongspanCache] = []
    hooks = [
        decoder.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "use_cache": True}), with_kwargs=True
        ),
        decoder.register_forward_hook(lambda *call: caches.append(call[-1].cache)),
    ]
    dtype = AUTOCAST.get(precision)
    try:
        with torch.autocast(model.device.type, dtype, enabled=dtype is not None):
            model.eval()(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(x.numel() * x.element_size() for x in caches[0].tensors)
