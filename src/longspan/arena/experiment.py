"""Experiments: a protocol's configuration with a seed."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longspan.attention import MECHANISMS, options_of
from longspan.attention.build import check_mechanism
from longspan.bounds import LARGEST_SEED, check_range
from longspan.config import (
    Budget,
    RunConfig,
    flatten,
    replace_fields,
    setting,
    settings,
)
from longspan.config.base import defaults_of
from longspan.config.model import expand_scale
from longspan.config.stages import PARTS, stage_values
from longspan.errors import check_name
from longspan.files import to_json_types
from longspan.results import find_named_row
from longspan.results.record import record_stem
from longspan.tasks import TASKS

# Version of all defaults together: those of settings, and of the options of mechanisms and tasks.
# A changed default needs the next version; a new field or option needs none.
DEFAULTS_VERSION = 1


@settings
class Experiment:
    """One run to be made: protocol, configuration, seed."""

    protocol: str = setting("name of the protocol")
    config: RunConfig = setting("everything that decides the run, except its seed")
    seed: int = setting("seed of weights, batch order and dropout")
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)  # by dotted name
    checkpoint: Path | None = setting("folder of the checkpoint that the start names", None)
    source: "Experiment | None" = setting("run whose weights it starts from", None)

    def __post_init__(self) -> None:
        """Check names against the registries.

        Raises:
            UnknownNameError: there is no such task, mechanism or option.
            OptionError: the seed is out of range.
        """
        check_range("seed", self.seed, 0, LARGEST_SEED)
        task, mechanism = self.config.task, self.config.mechanism
        check_name(task.name, TASKS, "task")
        check_mechanism(mechanism.name, mechanism.options)
        fields = [field.name for field in dataclasses.fields(TASKS[task.name].Options)]
        for option in task.options:
            check_name(option, fields, f"option of task {task.name!r}")
        for name in (x for stage in self.config.training.stages for x in stage.changes):
            part, _, option = name.partition(".")
            if part not in PARTS:  # a mechanism's, which another one need not have
                check_name(part, MECHANISMS, "mechanism")
                check_name(option, options_of(part), f"option of mechanism {part!r}")

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.config.task.name

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""
        return self.config.mechanism.name

    @property
    def row_name(self) -> str:
        """Name of the reference row or variant, else of the mechanism."""
        return find_named_row(self.overrides) or self.mechanism

    @property
    def hash(self) -> str:
        """Ten hex digits that name the configuration."""
        return hash_config(self.config)

    @property
    def name(self) -> str:
        """`<row>-<hash>-<seed>`, the stem of the record's file."""
        return record_stem(self.row_name, self.hash, self.seed)

    @property
    def sources(self) -> "list[Experiment]":
        """Runs that this one needs, in their order."""
        return [] if self.source is None else [*self.source.sources, self.source]

    def with_seed(self, seed: int) -> "Experiment":
        """Return the experiment, and the runs that it needs, under another seed."""
        source = self.source and self.source.with_seed(seed)
        return dataclasses.replace(self, seed=seed, source=source)


def hash_config(config: RunConfig) -> str:
    """Return ten hex digits that name a configuration, the same in every process.

    They cover what differs from the defaults, so that new fields and options with a default change
    no hash, and `DEFAULTS_VERSION`.

    Raises:
        UnknownNameError: the task or the mechanism is not registered.
    """
    parts = {part: defaults_of(getattr(config, part)) for part in ("model", "training", "budget")}
    if config.start is not None:
        parts["start"] = defaults_of(config.start)
    for part, options in _default_options(config).items():
        parts[part] = {**defaults_of(getattr(config, part)), **options}
    defaults = {
        f"{part}.{name}": to_json_types(x)
        for part, fields in parts.items()
        for name, x in fields.items()
    }
    values = identity(config).items()
    tree = {name: x for name, x in values if name not in defaults or x != defaults[name]}
    text = json.dumps([DEFAULTS_VERSION, tree], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def identity(config: RunConfig) -> dict[str, Any]:
    """Return the values that decide a run by dotted name, those of stages as `stage.1.task.length`.

    The folder of a tokenizer does not, where `start` has its digest; nor do options of evaluations
    that are those of training.

    Raises:
        UnknownNameError: the task or the mechanism is not registered.
    """
    values = flatten(add_default_options(config))
    values |= stage_values(values.pop("training.stages"))
    if config.start is not None and config.start.tokenizer is not None:
        values.pop("task.vocabulary", None)
    changed = config.evaluation_changes
    # What equals the options of the last stage may differ from those of an earlier one.
    if config.training.stages and any(stage.evaluation_changes for stage in config.stages()):
        changed = config.evaluation.options
    return {
        name: x
        for name, x in values.items()
        if not name.startswith("evaluation.") or name.partition(".")[2] in changed
    }


def add_default_options(config: RunConfig) -> RunConfig:
    """Return a configuration with the options that are newer than it, at their defaults.

    Raises:
        UnknownNameError: the task or the mechanism is not registered.
    """
    configs = {part: getattr(config, part) for part in ("task", "mechanism")}
    parts = {
        part: dataclasses.replace(configs[part], options={**options, **configs[part].options})
        for part, options in _default_options(config).items()
    }
    return dataclasses.replace(config, **parts)


def _default_options(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the default options of the task and of the mechanism."""
    task = TASKS[check_name(config.task.name, TASKS, "task")]
    return {"task": defaults_of(task.Options), "mechanism": options_of(config.mechanism.name)}


def override(
    experiment: Experiment, changes: Mapping[str, Any], fitted: Mapping[str, Any] | None = None
) -> Experiment:
    """Replace fields of the configuration by dotted name: `training.steps`, `task.length`.

    Changes that make a difference are kept in `overrides`, and so in the record; of `model.scale`
    the fields that it changes.

    Args:
        experiment: experiment to change.
        changes: values of fields.
        fitted: values of other fields that a checkpoint decides; they are no overrides. All values
            are checked together.

    Raises:
        UnknownNameError: there is no such part or field; the message suggests near names.
        OptionError: a name has no part, or a field rejects its value.
    """
    fitted = fitted or {}
    of_model = {name: x for name, x in fitted.items() if name.startswith("model.")}
    changes = expand_scale(replace_fields(experiment.config, of_model).model, changes)
    config = replace_fields(experiment.config, {**fitted, **changes})
    before, after = flatten(experiment.config), flatten(config)
    differences = {name: after[name] for name in changes if _before(before, name) != after[name]}
    # Reject values that the task rejects.
    TASKS[config.task.name].Options(**config.task.options)
    return dataclasses.replace(
        experiment, config=config, overrides={**experiment.overrides, **differences}
    )


def _before(flat: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field; an option of evaluations that is not set is that of training."""
    part, _, option = name.partition(".")
    return flat[f"mechanism.{option}"] if part == "evaluation" and name not in flat else flat[name]


def replace_budget(experiment: Experiment, budget: Budget) -> Experiment:
    """Return the experiment under another budget; a different one is kept in `overrides`."""
    if budget == experiment.config.budget:
        return experiment
    return dataclasses.replace(
        experiment,
        config=dataclasses.replace(experiment.config, budget=budget),
        overrides={**experiment.overrides, "budget": str(budget)},
    )
