"""Attention rollouts of single examples, from the states that the model's output is made of.

Figure 5 of Tay et al., "Long Range Arena", 2021 starts them at the CLS token. A model without one
starts them at the tokens that it pools, by their shares in the pooled state.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longspan.analysis.layers import (
    SPLIT,
    Sequences,
    batches_of_rows,
    count_summary_tokens,
    read_layers,
    select,
    sequences,
)
from longspan.analysis.rollout import attention_rollout
from longspan.models import LongspanModel, LongspanPreTrainedModel
from longspan.results import Rollout, pack_levels, pack_tokens, quantize
from longspan.tasks import Task
from longspan.tasks.base import Batch
from longspan.tasks.batching import text_names
from longspan.tasks.scoring import IGNORE
from longspan.training.arguments import model_inputs

STARTS = {
    "mean": "the mean over the tokens",
    "max": "the maxima over the tokens",
    "attention": "the attention over the tokens",
    "cls": "the CLS token",
    "first": "the first token",
    "last": "the last token",
}


def roll_out_examples(
    model: LongspanPreTrainedModel, task: Task, rows: Sequence[int], token: int | None = None
) -> list[Rollout]:
    """Return the rollouts of some validation examples, in this order; two for each pair.

    Args:
        model: model with its head, in eval mode.
        task: open task.
        rows: examples.
        token: token of the first sequence of the first example at which its rollout starts; None
            as for the others: the states that the output is made of.

    Raises:
        NoWeightsError: the model has no attention weights.
    """
    rollouts: dict[int, list[Rollout]] = {}
    for batch in batches_of_rows(task, np.array(rows, np.int64)):
        for i, row in enumerate(batch.rows.tolist()):
            start_token = token if row == rows[0] else None
            rollouts[row] = _roll_out(model, task, select(batch, torch.tensor([i])), start_token)
    return [rollout for row in rows for rollout in rollouts[row]]


def _rollout_start(
    encoder: LongspanModel, pooled: Tensor, scored: Tensor | None = None, token: int | None = None
) -> tuple[str, Tensor]:
    """Return a name for the start of a rollout, and its distribution over the states (B, T).

    Args:
        encoder: model.
        pooled: shares (B, T) of the states in the pooled one, the default start.
        scored: mask (B, N) of the scored tokens, for tasks that score tokens.
        token: token of the input to start at.
    """
    if token is None and scored is None:
        return STARTS[encoder.config.pooling], pooled.double()
    num_summary = count_summary_tokens(encoder)
    start = torch.zeros_like(pooled, dtype=torch.float64)
    if token is not None:
        start[:, num_summary + token] = 1
        return f"token {token}", start
    assert scored is not None
    start[:, num_summary : num_summary + scored.shape[1]] = scored.to(start)
    return "the scored tokens", start / start.sum(1, keepdim=True)


def _roll_out(
    model: LongspanPreTrainedModel, task: Task, example: Batch, token: int | None
) -> list[Rollout]:
    """Return the rollouts of a batch of one example: one, or two for a pair."""
    (row,) = example.rows.tolist()
    label, prediction = _classes(model, task, example)
    # One pooled state can give the class of every token.
    pools = getattr(task.head, "features", None) == "pooler_output"
    scored = None if pools else _scored_tokens(example)
    rollouts = []
    for part, sequence in enumerate(sequences(example), 1):
        shares, start = _shares(model, sequence, scored, token if part == 1 else None)
        # Read tokens can differ from stored ones: windows, segments, masks, both texts of a pair.
        tokens = sequence.inputs[sequence.mask].numpy()
        if tokens.ndim > 1:  # numbers, made from stored gray levels
            tokens = task.dataset.splits[SPLIT].tokens[row]
        side = task.image_side
        text = pack_tokens(task.ids_to_tokens(tokens)) if side is None else {"text": None}
        rollout = Rollout(
            split=SPLIT,
            row=row,
            part=part,
            start=start,
            label=label,
            prediction=prediction,
            shares=quantize(shares[: len(tokens)], 16),
            side=side,
            levels=None if side is None else pack_levels(tokens),
            **text,
        )
        rollouts.append(rollout)
    return rollouts


def _scored_tokens(example: Batch) -> Tensor | None:
    """Return the mask (1, T) of the tokens whose states are scored; None if a pooled state is."""
    inputs, targets = example.inputs, example.targets
    text = inputs[text_names(inputs)[0]]
    if "candidate_positions" in inputs:
        places = torch.arange(text.shape[-1])
        return (inputs["candidate_positions"][..., None] == places).any(1)
    if "sentence_ids" in inputs:
        return inputs["sentence_ids"][:, 0] >= 0
    return targets != IGNORE if targets.shape == text.shape[:2] else None


def _shares(
    model: LongspanPreTrainedModel, sequence: Sequences, scored: Tensor | None, token: int | None
) -> tuple[np.ndarray, str]:
    """Return the share of each token of one sequence, and the name of the start."""
    encoder = model.base_model
    assert isinstance(encoder, LongspanModel)
    pooled: list[Tensor] = []
    keep = encoder.pooling.register_forward_hook(lambda m, x, _: pooled.append(m.shares(*x)))
    with keep:
        calls = read_layers(encoder, sequence, lambda call: call, check=True)
    start, distribution = _rollout_start(encoder, pooled[-1], scored, token)
    shares = attention_rollout(calls, distribution)[0, count_summary_tokens(encoder) :]
    return shares.cpu().numpy(), start


def _classes(
    model: LongspanPreTrainedModel, task: Task, example: Batch
) -> tuple[str, str] | tuple[None, None]:
    """Return the class of an example and the predicted one; None where it has not one class."""
    has_other_targets = task.is_regression or task.is_multi_label or task.head.compares_examples
    if example.targets.ndim != 1 or has_other_targets:
        return None, None
    device = next(model.parameters()).device
    with torch.no_grad():
        output = model(**model_inputs(model, example.inputs, device))
    predicted = int(output.logits.argmax())
    return task.class_name(int(example.targets)), task.class_name(predicted)
