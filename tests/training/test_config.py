"""Validation of training configurations."""

import dataclasses

import pytest

from longspan.config import StageConfig, TrainingConfig
from longspan.errors import OptionError

VALID = {
    "steps": 10,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "schedule": "linear",
    "evaluate_every": 5,
}
REJECTED = {
    "steps": {0: "steps must be at least 1, got 0", 1.5: "should be a valid integer, got 1.5"},
    "batch_size": {-1: "batch_size must be at least 1", True: "valid integer, got True"},
    "evaluate_every": {0: "evaluate_every must be at least 1"},
    "eval_batch_size": {0: "eval_batch_size must be at least 1"},
    "train_eval_examples": {-1: "train_eval_examples must be at least 0"},
    "checkpoint_every": {0: "checkpoint_every must be at least 1"},
    "warmup_steps": {-1: "warmup_steps must be at least 0, got -1", "x": "integer, got 'x'"},
    "gradient_accumulation_steps": {
        0: "between 1 and batch_size=4, got 0",
        5: "between 1 and batch_size=4, got 5",
    },
    "learning_rate": {
        0.0: "learning_rate must be positive, got 0",
        float("nan"): "learning_rate should be a finite number, got nan",
        float("inf"): "learning_rate should be a finite number, got inf",
        "fast": "learning_rate should be a valid number, got 'fast'",
    },
    "schedule": {
        "lin": "schedule should be 'linear', 'cosine', 'cubic', 'rsqrt', 'constant' or "
        "'one_cycle', got 'lin'"
    },
    "precision": {"bf15": "precision should be 'no', 'bf16' or 'fp16', got 'bf15'"},
    "selection": {"test": "selection should be 'best validation' or 'last', got 'test'"},
    "word_vectors": {"pca": "word_vectors should be 'random' or 'lsa', got 'pca'"},
    "weight_decay": {-0.1: "weight_decay must be at least 0"},
    "adam_epsilon": {0.0: "adam_epsilon must be positive"},
    "adam_betas": {
        (0.9, 1.0): r"adam_betas must be in \[0, 1\), got \(0.9, 1.0\)",
        (0.9,): r"adam_betas.1 is missing",
        0.9: "adam_betas should be a valid tuple, got 0.9",
    },
    "stop_at": {
        float("nan"): "stop_at should be a finite number",
        "x": "stop_at should be a valid",
    },
    "patience": {0: "patience must be at least 1", 1.5: "patience should be a valid integer"},
    "schedule_over": {"all": "schedule_over should be 'stage' or 'run', got 'all'"},
    "stages": {3: "stages should be a valid tuple, got 3"},
    "max_grad_norm": {0.0: "max_grad_norm must be positive or none, got 0", "x": "valid number"},
    "gradient_checkpointing": {1: "gradient_checkpointing should be a valid boolean, got 1"},
}
CASES = [(name, value) for name, values in REJECTED.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_invalid_value_is_rejected_with_field_name(name, value):
    with pytest.raises(OptionError, match=REJECTED[name][value]):
        TrainingConfig(**{**VALID, name: value})


def test_every_field_has_rejected_value_and_help_text():
    fields = dataclasses.fields(TrainingConfig)
    assert {field.name for field in fields} == set(REJECTED)
    assert all(field.metadata["help"] for field in fields)


def test_message_lists_all_reasons():
    with pytest.raises(OptionError, match=r"steps .*; batch_size .*; max_grad_norm "):
        TrainingConfig(**{**VALID, "steps": 0, "batch_size": 0, "max_grad_norm": -1.0})
    with pytest.raises(OptionError, match=r"steps .*; max_grad_norm "):
        TrainingConfig(**{**VALID, "steps": "x", "max_grad_norm": "y"})


def test_adam_betas_from_json_list_are_equal():
    assert TrainingConfig(**VALID, adam_betas=[0.9, 0.98]) == TrainingConfig(
        **VALID, adam_betas=(0.9, 0.98)
    )


def test_score_that_ends_a_training_is_of_one_stage():
    stages = (StageConfig(steps=1), StageConfig(steps=1))
    with pytest.raises(OptionError, match="stop_at ends a training of one stage; omit it, or the"):
        TrainingConfig(**VALID, stages=stages, stop_at=0.5)
    with pytest.raises(OptionError, match="patience ends a training of one stage; omit it, or"):
        TrainingConfig(**VALID, stages=stages, patience=2)
    with pytest.raises(OptionError, match=r"a stage changes no training\.stop_at; set it for the"):
        StageConfig(steps=1, changes={"training.stop_at": 0.5})
