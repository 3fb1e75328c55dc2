"""Strict validation of settings at construction."""

import dataclasses

import pytest

from longspan.config import Budget, ModelConfig, TrainingConfig, help_of, setting, settings
from longspan.config.base import decides_data
from longspan.errors import OptionError
from longspan.tasks import build

MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "classifier_hidden_size": 16,
}
TRAINING = {
    "steps": 12,
    "batch_size": 4,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "schedule": "linear",
    "evaluate_every": 4,
}


@settings
class Sample:
    """Settings for these tests."""

    count: int = setting("number of things")
    rate: float | None = setting("rate of things; none: no rate", None)
    names: list[str] = setting("names of things", dataclasses.MISSING)


REJECTED = {
    "text for an integer": ({"steps": "3"}, "steps should be a valid integer, got '3'"),
    "boolean for an integer": ({"steps": True}, "steps should be a valid integer, got True"),
    "fraction for an integer": ({"steps": 2.5}, "steps should be a valid integer, .*got 2.5"),
    "whole float for an integer": ({"steps": 2.0}, "steps should be a valid integer, got 2.0"),
    "text for a float": ({"learning_rate": "1"}, "learning_rate should be a valid number, got '1'"),
    "boolean for a float": (
        {"learning_rate": True},
        "learning_rate should be a valid number, got True",
    ),
    "none for a float": ({"learning_rate": None}, "should be a valid number, got None"),
    "nan": ({"learning_rate": float("nan")}, "learning_rate should be a finite number, got nan"),
    "infinity": ({"max_grad_norm": float("inf")}, "max_grad_norm should be a finite number"),
    "integer for a boolean": ({"gradient_checkpointing": 1}, "should be a valid boolean, got 1"),
    "other choice": ({"schedule": "lin"}, "schedule should be 'linear', 'cosine', .*got 'lin'"),
    "short tuple": ({"adam_betas": (0.9,)}, "adam_betas.1 is missing|adam_betas"),
    "unknown field": ({"stepz": 3}, "stepz is not a known field"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_values_of_wrong_type_are_rejected(case):
    changes, message = REJECTED[case]
    with pytest.raises(OptionError, match=message):
        TrainingConfig(**{**TRAINING, **changes})


def test_message_lists_every_reason():
    changes = {"steps": "3", "batch_size": True, "warmup": 3, "precision": "fp8"}
    kept = {name: x for name, x in TRAINING.items() if name != "schedule"}
    with pytest.raises(OptionError) as caught:
        TrainingConfig(**{**kept, **changes})
    reasons = str(caught.value).split("; ")
    assert len(reasons) == 5
    for reason in (
        "steps should be a valid integer, got '3'",
        "batch_size should be a valid integer, got True",
        "schedule is missing",
        "warmup is not a known field",
    ):
        assert reason in reasons
    assert "\n" not in str(caught.value)
    with pytest.raises(OptionError, match=r"^steps is missing; batch_size is missing; learning_r"):
        TrainingConfig()


def test_message_lists_every_value_out_of_range():
    changes = {
        "steps": 0,
        "warmup_steps": -1,
        "learning_rate": 0.0,
        "adam_epsilon": 0.0,
        "gradient_accumulation_steps": 5,
        "adam_betas": (0.9, 1.0),
        "max_grad_norm": -1.0,
        "weight_decay": -0.1,
        "eval_batch_size": 0,
    }
    with pytest.raises(OptionError) as caught:
        TrainingConfig(**{**TRAINING, **changes})
    assert sorted(str(caught.value).split("; ")) == [
        "adam_betas must be in [0, 1), got (0.9, 1.0)",
        "adam_epsilon must be positive, got 0.0",
        "eval_batch_size must be at least 1, got 0",
        "gradient_accumulation_steps must be between 1 and batch_size=4, got 5",
        "learning_rate must be positive, got 0.0",
        "max_grad_norm must be positive or none, got -1.0",
        "steps must be at least 1, got 0",
        "warmup_steps must be at least 0, got -1",
        "weight_decay must be at least 0, got -0.1",
    ]


def test_integers_and_lists_are_converted_for_fields_of_floats_and_tuples():
    config = TrainingConfig(**{**TRAINING, "learning_rate": 1, "max_grad_norm": 2})
    assert (type(config.learning_rate), type(config.max_grad_norm)) == (float, float)
    assert config == TrainingConfig(**{**TRAINING, "learning_rate": 1.0, "max_grad_norm": 2.0})
    assert TrainingConfig(**TRAINING, adam_betas=[0.9, 0.98]).adam_betas == (0.9, 0.98)


def test_settings_are_frozen_and_keyword_only():
    config = ModelConfig(**MODEL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 8
    with pytest.raises(TypeError):
        ModelConfig(*MODEL.values())


def test_replaced_values_and_those_inside_lists_are_validated():
    config = ModelConfig(**MODEL)
    assert dataclasses.replace(config, hidden_size=8).hidden_size == 8
    with pytest.raises(OptionError, match="hidden_size should be a valid integer, got '8'"):
        dataclasses.replace(config, hidden_size="8")
    with pytest.raises(OptionError, match=r"count is missing; names.1 should be a valid string"):
        Sample(names=["a", 3])


def test_reasons_of_unions_and_patterns_name_the_value_once():
    with pytest.raises(OptionError) as caught:
        build("hyperpartisan", {"global_tokens": "weird"})
    assert str(caught.value) == (
        "global_tokens should be 'none' or 'first', or a valid integer, got 'weird'"
    )
    with pytest.raises(OptionError, match=r"^metric should match pattern '\^\(mrr\|.*got 'rouge'"):
        build("aan_retrieval", {"metric": "rouge"})


@pytest.mark.parametrize("kind", [ModelConfig, TrainingConfig, Budget, Sample])
def test_every_field_has_a_help_text(kind):
    help_texts = help_of(kind)
    assert set(help_texts) == {field.name for field in dataclasses.fields(kind)}
    assert all(help_texts.values())


def test_override_of_an_option_decides_the_data_as_its_base_does():
    @settings
    class Base:
        windows: int = setting("cut out of the data", 1, in_data=False)
        documents: int = setting("in the data", 1)

    @settings
    class Override(Base):
        windows: int = setting("cut out of the data", 2)
        documents: int = setting("in the data", 2)

    @settings
    class Reversal(Override):
        windows: int = setting("cut when the data is built", 3, in_data=True)

    decided = [(decides_data(x, "windows"), decides_data(x, "documents")) for x in (Base, Override)]
    assert decided == [(False, True), (False, True)]
    assert decides_data(Reversal, "windows")
