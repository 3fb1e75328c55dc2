"""A recipe that cannot be trained is refused, with every reason."""

import dataclasses

import pytest

from longspan.errors import OptionError
from longspan.training import TrainingConfig

GOOD = {
    "steps": 10,
    "batch": 4,
    "learning_rate": 1e-3,
    "warmup": 2,
    "schedule": "linear",
    "evaluate_every": 5,
}
REFUSED = {
    "steps": {0: "steps must be at least 1, got 0", 1.5: "must be a whole number, got 1.5"},
    "batch": {-1: "batch must be at least 1", True: "must be a whole number, got True"},
    "evaluate_every": {0: "evaluate_every must be at least 1"},
    "evaluation_batch": {0: "evaluation_batch must be at least 1"},
    "checkpoint_every": {0: "checkpoint_every must be at least 1"},
    "warmup": {-1: "warmup must be at least 0, got -1", "x": "must be a whole number, got 'x'"},
    "accumulate": {0: r"between 1 and batch=4, got 0", 5: "between 1 and batch=4, got 5"},
    "learning_rate": {
        0.0: "learning_rate must be positive, got 0",
        float("nan"): "learning_rate must be a number, got nan",
        float("inf"): "learning_rate must be a number, got inf",
        "fast": "learning_rate must be a number, got 'fast'",
    },
    "schedule": {"lin": "schedule must be one of linear, cosine, rsqrt, constant, got 'lin'"},
    "precision": {"bf15": "precision must be one of no, bf16, fp16, got 'bf15'"},
    "selection": {"test": "selection must be one of best validation, last, got 'test'"},
    "weight_decay": {-0.1: "weight_decay must be at least 0"},
    "epsilon": {0.0: "epsilon must be positive"},
    "betas": {
        (0.9, 1.0): r"betas must be in \[0, 1\), got \(0.9, 1.0\)",
        (0.9,): "betas must be 2 of: a number",
        0.9: "betas must be 2 of: a number, got 0.9",
    },
    "clip": {0.0: "clip must be positive or none, got 0", "x": "clip must be a number or none"},
    "gradient_checkpointing": {1: "gradient_checkpointing must be true or false, got 1"},
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
    with pytest.raises(OptionError, match=r"steps .*; batch .*; clip "):
        TrainingConfig(**{**GOOD, "steps": 0, "batch": 0, "clip": -1.0})
    with pytest.raises(OptionError, match=r"steps .*; clip "):
        TrainingConfig(**{**GOOD, "steps": "x", "clip": "y"})


def test_averages_read_back_from_json_are_the_same_recipe():
    assert TrainingConfig(**GOOD, betas=[0.9, 0.98]) == TrainingConfig(**GOOD, betas=(0.9, 0.98))
