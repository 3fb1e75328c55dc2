"""A field of a recipe is changed by its name; what cannot be is refused, and nothing is hidden."""

import re

import pytest

import tiny
from longspan.arena import get, override, run, unfit
from longspan.errors import OptionError, UnknownNameError
from longspan.results import load

REFUSED = {
    "steps": (
        1,
        OptionError,
        "'steps' names no field; write PART.FIELD=VALUE, as training.steps=100",
    ),
    "trian.steps": (
        1,
        UnknownNameError,
        "no part of an experiment called 'trian'; did you mean tr",
    ),
    "train.step": (1, UnknownNameError, "no field of train called 'step'; did you mean steps"),
    "model.layer": (1, UnknownNameError, "no field of model called 'layer'; did you mean layers"),
    "options.windw": (1, UnknownNameError, "no option of 'local' called 'windw'; did you mean win"),
    "task.trian": (1, UnknownNameError, "no option of task 'listops' called 'trian'; did you mean"),
    "training.steps": ("many", OptionError, "steps must be a whole number, got 'many'"),
    "training.batch_size": (2.5, OptionError, "batch must be a whole number, got 2.5"),
    "training.max_grad_norm": ("x", OptionError, "clip must be a number or none, got 'x'"),
    "training.learning_rate": (
        float("inf"),
        OptionError,
        "learning_rate must be a number, got inf",
    ),
    "model.width": ("x", OptionError, "width must be a whole number, got 'x'"),
    "model.norm": (3, OptionError, "norm must be text, got 3"),
    "model.dropout": (None, OptionError, "dropout must be a number, got None"),
    "task.train": (0, OptionError, "train=0; expected a whole number, 1 or more"),
    "task.max_depth": (1, OptionError, "max_depth=1; expected a whole number, 2 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_changed_is_refused(name):
    value, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        override(tiny.experiment(), {name: value})


UNFIT = [
    ("model.norm", "pr", "no norm called 'pr'; did you mean pre"),
    ("model.position", "x", "no position called 'x'; there are: learned"),
    ("model.heads", 3, "hidden_size=16 must be a multiple of num_attention_heads=3"),
    ("model.layers", 0, "num_hidden_layers must be >= 1, got 0"),
    ("model.dropout", 1.5, r"hidden_dropout_prob must be in \[0, 1\), got 1.5"),
    ("options.window", -1, "a window needs sizes >= 0"),
    ("options.window", "wide", "window must be a whole number, got 'wide'"),
    ("options.window", 1.5, "window must be a whole number, got 1.5"),
    ("options.window", None, "window must be a whole number, got None"),
]


@pytest.mark.parametrize(("name", "value", "message"), UNFIT)
def test_what_no_model_can_be_built_from_is_known_before_it_runs(name, value, message):
    reason = unfit(override(tiny.experiment(), {name: value}))
    assert reason is not None
    assert re.search(message, reason)


def test_several_fields_change_together_and_the_rest_stays():
    made = get("quick").experiment("listops", "local", 3)
    changed = override(made, {"training.steps": 7, "options.window": 8, "task.test": 9})
    assert (changed.training.steps, changed.options["window"], changed.task.options["test"]) == (
        7,
        8,
        9,
    )
    assert (changed.seed, changed.model, changed.protocol) == (3, made.model, "quick")
    assert changed.overrides == {"training.steps": 7, "options.window": 8, "task.test": 9}


def test_the_value_that_is_there_already_is_no_departure():
    made = get("quick").experiment("listops", "local", 0)
    same = override(
        made,
        {
            "training.steps": made.training.steps,
            "options.window": made.options["window"],
            "task.seed": 0,
            "training.max_grad_norm": 1,
        },
    )
    assert same.overrides == {}
    assert same.hash == made.hash


def test_a_whole_number_is_the_real_one():
    for name in ("training.learning_rate", "training.max_grad_norm", "options.temperature"):
        made = [tiny.experiment("sinkhorn", changes={name: value}) for value in (1, 1.0)]
        assert len({x.hash for x in made}) == 1
    # where the recipe has none
    bare = tiny.experiment(changes={"training.max_grad_norm": None})
    assert (
        override(bare, {"training.max_grad_norm": 1}).hash
        == override(bare, {"training.max_grad_norm": 1.0}).hash
    )


def test_departures_are_in_the_record(listops, tiny_cache, tmp_path):
    made = tiny.experiment()
    run(made, listops, tiny.paths(tmp_path, tiny_cache))
    record = load(tiny.paths(tmp_path, tiny_cache).record_file(made))
    assert record.overrides == made.overrides
    assert record.overrides["training.steps"] == 12
    assert record.training["steps"] == record.steps == 12
