"""Examples of the validation split, and the calls of the mechanism in each layer on them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from longspan.attention.weights import Call, check_weighted_sum
from longspan.errors import NoWeightsError
from longspan.models import LongspanModel
from longspan.models.attention_layer import SelfAttention
from longspan.tasks import Task
from longspan.tasks.base import Batch, Split
from longspan.tasks.batching import find_mask, mask_name, text_names

SPLIT: Split = "validation"
TOKENS_PER_BATCH = 4_096

T = TypeVar("T")


class Sequences(NamedTuple):
    """Sequences of a batch.

    Attributes:
        inputs: ids (B, T) or numbers (B, T, F).
        mask: True at real tokens, (B, T).
        global_mask: True at the global tokens that the task marks, (B, T); None: it marks none.
    """

    inputs: Tensor
    mask: Tensor
    global_mask: Tensor | None = None


def count_summary_tokens(encoder: LongspanModel) -> int:
    """Return the number of tokens that the model prepends: 1 for `pooling="cls"`, else 0."""
    config = encoder.config
    return config.max_sequence_length - config.max_position_embeddings


def batches_of_rows(task: Task, rows: np.ndarray) -> Iterator[Batch]:
    """Iterate over batches with these examples of the validation split, in order of length."""
    batch_size = max(TOKENS_PER_BATCH // task.length, 1)
    return task.batches(SPLIT, batch_size=batch_size, rows=np.sort(rows))


def select(batch: Batch, indices: Tensor) -> Batch:
    """Return some examples of a batch, by index."""
    return batch.map(lambda x: x[indices])


def sequences(batch: Batch) -> Iterator[Sequences]:
    """Iterate over the sequences of the batch: one of each example, or two for pairs.

    Of a text in several windows it is the first window, which every example has.
    """
    for name in text_names(batch.inputs):
        if name.startswith("negative_"):
            continue
        texts, mask = batch.inputs[name], find_mask(batch.inputs, name)
        marked = batch.inputs.get(mask_name(name, "global_attention_mask"))
        if mask.ndim == 3:
            texts, mask = texts[:, 0], mask[:, 0]
            marked = None if marked is None else marked[:, 0]
        yield Sequences(texts, mask, marked)


def read_layers(
    encoder: LongspanModel,
    sequences: Sequences,
    read: Callable[[Call], T],
    check: bool = False,
) -> list[T]:
    """Run the encoder and return `read` of the call of each layer's mechanism.

    Args:
        encoder: model.
        sequences: sequences; their global tokens have an effect on models that have such.
        read: function of a call, which runs before the next layer.
        check: check that the outputs are weighted sums of the values.

    Raises:
        NoWeightsError: the model has no attention, or with `check`, no attention weights.
    """
    values: list[T] = []

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], out: Tensor) -> None:
        call = Call.of_arguments(module, args, kwargs)
        if check:
            check_weighted_sum(call)
        values.append(read(call))

    device = next(encoder.parameters()).device
    kind = "input_values" if sequences.inputs.is_floating_point() else "input_ids"
    arguments = {kind: sequences.inputs, "attention_mask": sequences.mask}
    config, global_mask = encoder.config, sequences.global_mask
    if global_mask is not None and config.supports_global_tokens and config.num_hidden_layers:
        arguments["global_attention_mask"] = global_mask
    with torch.no_grad(), contextlib.ExitStack() as hooks:
        for module in encoder.modules():
            if isinstance(module, SelfAttention):
                handle = module.mechanism.register_forward_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
        # With a state a decoder takes steps, which run no hooks.
        encoder(**{name: x.to(device) for name, x in arguments.items()}, use_cache=False)
    if not values:
        raise NoWeightsError("the model has no attention layers, and so no attention weights")
    return values
