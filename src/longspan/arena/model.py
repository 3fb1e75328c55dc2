"""The model of an experiment."""

import dataclasses

import torch

from longspan.arena.experiment import Experiment
from longspan.models import (
    LongspanConfig,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanPreTrainedModel,
    count_flops,
)
from longspan.results import BASELINE
from longspan.tasks import Task


def model_config(experiment: Experiment, task: Task) -> LongspanConfig:
    """The configuration of an experiment's model, for a task that need not be open.

    Raises:
        OptionError: a value cannot be used; the message lists every reason.
        UnknownNameError: no such choice or backend (with near names).
    """
    spec = experiment.model
    config = LongspanConfig(
        vocab_size=task.vocabulary,
        input_features=task.features,
        hidden_size=spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        attention_head_size=spec.head_dim,
        intermediate_size=spec.feed_forward,
        classifier_hidden_size=spec.classifier,
        max_position_embeddings=task.length,
        position=spec.position,
        norm=spec.norm,
        pooling=spec.pooling,
        pair_head=spec.pair_head,
        hidden_dropout_prob=spec.dropout,
        attention_dropout=spec.attention_dropout,
        initializer_range=spec.initializer,
        attention=experiment.mechanism,
        attention_options=dict(experiment.options),
        attention_backend=experiment.backend,
    )
    config.num_labels = task.class_count
    return config


def make_model(experiment: Experiment, task: Task) -> LongspanPreTrainedModel:
    """A fresh model for an experiment, its weights drawn from the experiment's seed."""
    config, kind = model_config(experiment, task), model_class(task)
    # Weights are drawn on the CPU: the generators of other devices are left alone.
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(experiment.seed)
        return kind(config)


def model_class(task: Task) -> type[LongspanPreTrainedModel]:
    """The head that a task needs."""
    if task.info.per_token:
        return LongspanForTokenClassification
    return LongspanForPairClassification if task.info.pair else LongspanForSequenceClassification


def forward_flops(experiment: Experiment, task: Task) -> int:
    """Forward operations of one example of the task's length; see `models.count_flops`."""
    info, config = task.info, model_config(experiment, task)
    return count_flops(
        config, task.length, task.class_count, pair=info.pair, per_token=info.per_token
    )


def full_parameters(experiment: Experiment, task: Task) -> int:
    """Parameters of the same model with the baseline's attention, counted without making them."""
    config = model_config(dataclasses.replace(experiment, mechanism=BASELINE, options={}), task)
    with torch.device("meta"):
        return model_class(task)(config).num_parameters(only_trainable=True)
