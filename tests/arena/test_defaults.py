"""Defaults and the configuration hash: new ones change no hash, changed ones need a version.

    python tests/arena/test_defaults.py

writes the defaults of today to `defaults.json`, as the next version of all defaults requires. Names
that the file lacks are newer than it.
"""

import dataclasses
import json
from pathlib import Path

import pytest

import tiny
from longspan.arena import experiment as experiments
from longspan.arena.experiment import DEFAULTS_VERSION, add_default_options, hash_config, identity
from longspan.arena.run_state import differences
from longspan.attention import MECHANISMS, options_of
from longspan.config import (
    Budget,
    ModelConfig,
    StageConfig,
    StartConfig,
    TrainingConfig,
    replace_fields,
    setting,
    settings,
)
from longspan.config.base import defaults_of
from longspan.config.run import EvaluationConfig, MechanismConfig
from longspan.files import to_json_types
from longspan.tasks import TASKS

WINDOW = options_of("local")["window"]
FILE = Path(__file__).with_name("defaults.json")
SETTINGS = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "stage": StageConfig,
    "budget": Budget,
    "start": StartConfig,
    "mechanism": MechanismConfig,
    "evaluation": EvaluationConfig,
}


def declared():
    """Return all defaults that hashes leave out, by name."""
    owners = {
        **{part: defaults_of(kind) for part, kind in SETTINGS.items()},
        **{f"task.{name}": defaults_of(cls.Options) for name, cls in TASKS.items()},
        **{f"mechanism.{name}": options_of(name) for name in MECHANISMS},
    }
    named = {f"{owner}.{x}": y for owner, fields in owners.items() for x, y in fields.items()}
    return to_json_types(named)


def changed_defaults(stored):
    """Return the names whose default is another one now."""
    here = declared()
    return [x for x, value in stored["defaults"].items() if x in here and here[x] != value]


def test_a_changed_default_needs_the_next_version():
    stored = json.loads(FILE.read_text())
    assert stored["version"] == DEFAULTS_VERSION, "python tests/arena/test_defaults.py"
    assert not changed_defaults(stored), "raise DEFAULTS_VERSION in arena/experiment.py"
    assert len(stored["defaults"]) > 300


@pytest.mark.parametrize(
    "name", ["training.selection", "task.listops.max_depth", "mechanism.local.window"]
)
def test_a_change_is_found(name):
    stored = json.loads(FILE.read_text())
    changed = {**stored["defaults"], name: "another"}
    assert changed_defaults({**stored, "defaults": changed}) == [name]


def test_the_version_is_part_of_the_hash(monkeypatch):
    config = tiny.experiment().config
    before = hash_config(config)
    monkeypatch.setattr(experiments, "DEFAULTS_VERSION", DEFAULTS_VERSION + 1)
    assert hash_config(config) != before


@pytest.fixture
def newer_version(monkeypatch):
    """Add an option to `local`, one to `listops` and a field of models."""

    class Newer(MECHANISMS["local"]):
        def __init__(
            self,
            *,
            heads: int | None = None,
            window: int = WINDOW,
            sink_tokens: int = 0,
            sink_logit: bool = False,
            tint: str = "blue",
            causal: bool = False,
        ):
            """Do nothing."""

    @settings
    class Options(TASKS["listops"].Options):
        shade: int = setting("a new option", 3)

    @settings
    class Model(ModelConfig):
        sparkle: float = setting("a new field", 0.5)

    def make():
        monkeypatch.setitem(MECHANISMS, "local", Newer)
        monkeypatch.setattr(TASKS["listops"], "Options", Options)
        return Model

    return make


def test_new_options_and_fields_change_no_hash(newer_version):
    config = tiny.experiment().config
    before = hash_config(config)
    model = newer_version()(**dataclasses.asdict(config.model))
    there = dataclasses.replace(add_default_options(config), model=model)
    assert there.mechanism.options["tint"] == "blue"
    assert there.task.options["shade"] == 3
    assert hash_config(config) == hash_config(there) == before
    assert identity(config).keys() < identity(there).keys()
    for name in ("mechanism.tint", "task.shade"):
        assert (
            hash_config(replace_fields(there, {name: "green" if "tint" in name else 4})) != before
        )
    other = dataclasses.replace(there, model=dataclasses.replace(model, sparkle=0.25))
    assert hash_config(other) != before


def test_a_run_of_an_earlier_version_is_resumed(newer_version):
    """Its state has no value of a newer option; another one than the default differs."""
    config = tiny.experiment().config
    newer_version()
    here = add_default_options(config)
    assert here != config
    assert differences(config, here) == []
    changed = replace_fields(here, {"mechanism.tint": "green"})
    assert differences(config, changed) == ["mechanism.tint: 'blue' there, 'green' here"]


def test_defaults_of_an_import_are_hashed():
    """Weights of an imported corpus depend on the import: equal defaults say nothing there."""

    @settings
    class Options:
        weights: int = setting("of an import", 2, is_fixed=False)
        length: int = setting("of longspan", 8)

    assert defaults_of(Options) == {"length": 8}


if __name__ == "__main__":
    FILE.write_text(
        json.dumps({"version": DEFAULTS_VERSION, "defaults": declared()}, indent=1, sort_keys=True)
        + "\n"
    )
