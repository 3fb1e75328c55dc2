"""A recipe that cannot be trained is refused, with every reason."""

import dataclasses

import pytest

from longspan.config import TrainingConfig
from longspan.errors import OptionError

GOOD = {
    "steps": 10,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "warmup_steps": 2,
    "schedule": "linear",
    "evaluate_every": 5,
}
REFUSED = {
    "steps": {0: "steps must be at least 1, got 0", 1.5: "should be a valid integer, got 1.5"},
    "batch_size": {-1: "batch_size must be at least 1", True: "valid integer, got True"},
    "evaluate_every": {0: "evaluate_every must be at least 1"},
    "eval_batch_size": {0: "eval_batch_size must be at least 1"},
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
    "schedule": {"lin": "schedule should be 'linear', 'cosine', 'rsqrt' or 'constant', got 'lin'"},
    "precision": {"bf15": "precision should be 'no', 'bf16' or 'fp16', got 'bf15'"},
    "selection": {"test": "selection should be 'best validation' or 'last', got 'test'"},
    "weight_decay": {-0.1: "weight_decay must be at least 0"},
    "adam_epsilon": {0.0: "adam_epsilon must be positive"},
    "adam_betas": {
        (0.9, 1.0): r"adam_betas must be in \[0, 1\), got \(0.9, 1.0\)",
        (0.9,): r"adam_betas.1 is missing",
        0.9: "adam_betas should be a valid tuple, got 0.9",
    },
    "max_grad_norm": {0.0: "max_grad_norm must be positive or none, got 0", "x": "valid number"},
    "gradient_checkpointing": {1: "gradient_checkpointing should be a valid boolean, got 1"},
}
CASES = [(name, value) for name, values in REFUSED.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_value_that_cannot_be_used_is_named(name, value):
    with pytest.raises(OptionError, match=REFUSED[name][value]):
        TrainingConfig(**{**GOOD, name: value})


def test_every_field_has_a_refusal_and_a_help_text():
    fields = dataclasses.fields(TrainingConfig)
    assert {field.name for field in fields} == set(REFUSED)
    assert all(field.metadata["help"] for field in fields)


def test_all_reasons_come_at_once():
    with pytest.raises(OptionError, match=r"steps .*; batch_size .*; max_grad_norm "):
        TrainingConfig(**{**GOOD, "steps": 0, "batch_size": 0, "max_grad_norm": -1.0})
    with pytest.raises(OptionError, match=r"steps .*; max_grad_norm "):
        TrainingConfig(**{**GOOD, "steps": "x", "max_grad_norm": "y"})


def test_averages_read_back_from_json_are_the_same_recipe():
    assert TrainingConfig(**GOOD, adam_betas=[0.9, 0.98]) == TrainingConfig(
        **GOOD, adam_betas=(0.9, 0.98)
    )
