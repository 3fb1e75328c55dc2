"""Batches of zeros in the shape of a task's largest ones, to measure a step without data."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from longspan.tasks.base import Batch, Task
from longspan.tasks.layout import (
    CandidateLayout,
    ChoiceLayout,
    CoreferenceLayout,
    Layout,
    MaskedLayout,
    MultiHopLayout,
    PairLayout,
    RetrievalLayout,
    SpanLayout,
    StreamLayout,
    TextToTextLayout,
    TokenLayout,
)

NUM_FEATURES = 4  # of each token of a document with coreference


def make_dummy_batch(task: Task, num_rows: int) -> Batch:
    """Return a batch of zeros with examples of full length, for a task that need not be open.

    One symbol is hidden: a mask of ones alone would be dropped, as in no batch with padding.
    """
    layout, length = task.layout, task.length
    first: tuple[int, ...] = (length,)
    if isinstance(layout, ChoiceLayout):
        first = (layout.candidates, length)
    if isinstance(layout, CandidateLayout | CoreferenceLayout):
        first = (layout.windows, length)
    if isinstance(layout, RetrievalLayout):
        first = (layout.query_length,)
    inputs, mask = _tokens(num_rows, *first)
    if task.input_features is not None:
        inputs = torch.zeros(*inputs.shape, task.input_features)
    count = count_global_tokens(task)
    return Batch(
        inputs=inputs,
        key_mask=mask,
        targets=torch.zeros(num_rows, *_target_shape(layout, length), dtype=torch.long),
        rows=torch.arange(num_rows),
        global_mask=_first_tokens(mask, count) if count else None,
        **_further_tokens(task, num_rows),
    )


def count_global_tokens(task: Task) -> int:
    """Return the largest number of global tokens of a text, also where tensors have no values."""
    with unset_fake_temporarily():
        return task.num_global_tokens


def _tokens(*shape: int) -> tuple[Tensor, Tensor]:
    """Return tokens and the mask of the real ones: all but the last of the first example."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1, shape[-1])[0, -1] = False
    return torch.zeros(shape, dtype=torch.long), mask


def _first_tokens(mask: Tensor, count: int) -> Tensor:
    """Return the mask of the first tokens."""
    first = torch.zeros_like(mask)
    first[..., :count] = True
    return first


def _further_tokens(task: Task, num_rows: int) -> dict[str, Tensor]:
    """Return the second sequences of a batch, and the negatives."""
    layout, found, count = task.layout, {}, count_global_tokens(task)
    if isinstance(layout, PairLayout | RetrievalLayout | TextToTextLayout):
        width = layout.target_length if isinstance(layout, TextToTextLayout) else task.length
        found["inputs_b"], found["key_mask_b"] = _tokens(num_rows, width)
    if isinstance(layout, PairLayout | RetrievalLayout) and count:
        found["global_mask_b"] = _first_tokens(found["key_mask_b"], count)
    if isinstance(layout, RetrievalLayout) and layout.negatives:
        tokens = _tokens(num_rows, layout.negatives, task.length)
        found["negatives"], found["negatives_mask"] = tokens
        if count:
            found["global_mask_negatives"] = _first_tokens(tokens[1], count)
    if isinstance(layout, CandidateLayout):
        found["candidate_positions"] = torch.zeros(num_rows, layout.candidates, dtype=torch.long)
    if isinstance(layout, CoreferenceLayout):
        shape = (num_rows, layout.windows, task.length, NUM_FEATURES)
        found["token_features"] = torch.zeros(shape, dtype=torch.long)
        # Every token is a word, so that there are as many spans as there can be.
        words = torch.arange(layout.windows * task.length).view(shape[1:3])
        found["token_features"][..., 1] = words
    return found


def _target_shape(layout: Layout, length: int) -> tuple[int, ...]:
    """Return the shape of the targets of one example."""
    if isinstance(layout, TokenLayout | MaskedLayout | StreamLayout | MultiHopLayout):
        return (length,)
    if isinstance(layout, CoreferenceLayout):
        return (1, 3)
    if isinstance(layout, SpanLayout):
        return (length,) if layout.has_several else (2,)
    return (layout.target_length,) if isinstance(layout, TextToTextLayout) else ()
