"""Synthetic records with the true counts of their configuration."""

import dataclasses

import torch

from longspan.arena.model import forward_flops, full_num_parameters, model_config
from longspan.arena.record import attended_pairs
from longspan.tasks import build


def with_counts(record):
    """Return a synthetic record with the counts of its configuration."""
    config = record.effective_config
    task = build(config.task.name, config.task.options)
    with torch.device("meta"):
        model = task.head(model_config(config, task))
    return dataclasses.replace(
        record,
        num_parameters=model.num_parameters(),
        full_num_parameters=full_num_parameters(config, task),
        flops=forward_flops(config, task),
        attended_pairs=attended_pairs(model, task.length),
    )
