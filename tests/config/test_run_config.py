"""Configuration tree: dotted names, replacement of fields, and a stable hash."""

import dataclasses
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

import tiny
from longspan.arena.experiment import hash_config
from longspan.config import (
    Budget,
    MechanismConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
    flatten,
    replace_fields,
)
from longspan.errors import LongspanError, OptionError, UnknownNameError

CONFIG = RunConfig(
    task=TaskConfig(name="listops", version=1, options={"train": 200, "end": False}),
    mechanism=MechanismConfig(
        name="sinkhorn", options={"block": 8, "temperature": 0.7, "sortcut": None, "sizes": (1, 2)}
    ),
    model=ModelConfig(**tiny.MODEL),
    training=TrainingConfig(
        steps=12,
        batch_size=4,
        learning_rate=0.01,
        warmup_steps=2,
        schedule="linear",
        evaluate_every=4,
    ),
)


def test_flatten_names_every_leaf():
    flat = flatten(CONFIG)
    assert flat["task.name"] == "listops"
    assert flat["task.version"] == 1
    assert flat["task.train"] == 200
    assert flat["mechanism.name"] == "sinkhorn"
    assert flat["mechanism.backend"] == "auto"
    assert flat["mechanism.block"] == 8
    assert flat["mechanism.sizes"] == [1, 2]
    assert flat["training.adam_betas"] == [0.9, 0.999]
    assert (flat["budget.kind"], flat["budget.limit"]) == ("steps", None)
    parts = {"model": ModelConfig, "training": TrainingConfig, "budget": Budget}
    fields = {f"{part}.{f.name}" for part, kind in parts.items() for f in dataclasses.fields(kind)}
    assert {name for name in flat if name.partition(".")[0] in parts} == fields
    assert json.loads(json.dumps(flat)) == flat


SIZES, FRACTIONS = st.integers(1, 10**6), st.floats(1e-6, 0.9)
VALUES = {
    "task.train": SIZES,
    "task.end": st.booleans(),
    "mechanism.block": SIZES,
    "mechanism.temperature": FRACTIONS,
    "mechanism.sortcut": st.none() | SIZES,
    "mechanism.sizes": st.lists(SIZES),
    "mechanism.backend": st.sampled_from(["auto", "torch", "reference"]),
    "model.hidden_size": SIZES,
    "model.attention_head_size": st.none() | SIZES,
    "model.norm": st.sampled_from(["pre", "post"]),
    "model.hidden_dropout_prob": FRACTIONS,
    "training.steps": SIZES,
    "training.learning_rate": FRACTIONS,
    "training.max_grad_norm": st.none() | FRACTIONS,
    "training.adam_betas": st.lists(FRACTIONS, min_size=2, max_size=2),
    "training.gradient_checkpointing": st.booleans(),
    "training.schedule": st.sampled_from(
        ["linear", "cosine", "cubic", "rsqrt", "constant", "one_cycle"]
    ),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_flatten_shows_replaced_fields_and_replacement_is_reversible(changes):
    before = flatten(CONFIG)
    changed = replace_fields(CONFIG, changes)
    assert flatten(changed) == {**before, **changes}
    assert (hash_config(changed) == hash_config(CONFIG)) == (flatten(changed) == before)
    back = replace_fields(changed, {name: before[name] for name in changes})
    assert back == CONFIG
    assert hash_config(back) == hash_config(CONFIG)


REJECTED = {
    "mechanism.name": ("full", UnknownNameError, "no option of mechanism 'sinkhorn' called 'name'"),
    "task.version": (2, UnknownNameError, "no option of task 'listops' called 'version'"),
    "budget.limit": (2, UnknownNameError, "no part of a configuration called 'budget'"),
    "training.": (1, UnknownNameError, "no field of training called ''"),
    "mechanism.backend": (3, OptionError, "backend should be a valid string, got 3"),
    "mechanism.temperature": (float("nan"), OptionError, "temperature of 'sinkhorn' must be JSON"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_unknown_fields_and_invalid_values_are_rejected(name):
    value, kind, message = REJECTED[name]
    with pytest.raises(LongspanError, match=message) as caught:
        replace_fields(CONFIG, {name: value})
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize("kind", [TaskConfig, MechanismConfig])
def test_option_with_name_of_field_is_rejected(kind):
    fields = {"name": "x", **({"version": 1} if kind is TaskConfig else {})}
    message = "option name of 'x' has the name of a field; rename it; option options of 'x' has"
    with pytest.raises(OptionError, match=message):
        kind(**fields, options={"name": 1, "options": 2, "length": 3})


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {1, 2}, object()])
def test_option_not_representable_in_json_is_rejected(value):
    with pytest.raises(OptionError, match="option a of 'x' must be JSON with finite num"):
        MechanismConfig(name="x", options={"a": value})


def test_options_are_copied():
    options = {"sizes": [1, 2]}
    config = MechanismConfig(name="x", options=options)
    options["sizes"].append(3)
    options["other"] = 1
    assert config.options == {"sizes": [1, 2]}


def test_equal_tasks_have_equal_keys():
    one = TaskConfig(name="x", version=1, options={"a": 1, "b": 2})
    two = TaskConfig(name="x", version=1, options={"b": 2, "a": 1})
    assert one.key == two.key
    assert one.key != dataclasses.replace(one, options={"a": 1, "b": 3}).key


def test_hash_is_known_value():
    """Pin the hash: it names record files and is the same in every process and version."""
    assert hash_config(CONFIG) == "59524b888a"


def test_integer_and_equal_float_limit_have_same_hash():
    one, real = (
        dataclasses.replace(CONFIG, budget=Budget(kind="flops", limit=limit)) for limit in (1, 1.0)
    )
    assert hash_config(one) == hash_config(real) != hash_config(CONFIG)
