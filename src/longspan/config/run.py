"""Configuration of a run: one tree, shared by experiments and records.

Every field and option is present, defaults included, so a record says by itself what ran.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from longspan.config.base import setting, settings
from longspan.config.budget import Budget
from longspan.config.model import ModelConfig
from longspan.config.stages import PARTS as STAGE_PARTS
from longspan.config.stages import StartConfig, stage_ends
from longspan.config.training import TrainingConfig
from longspan.errors import OptionError, check_name
from longspan.files import to_json_types

PARTS = (*STAGE_PARTS, "evaluation")  # whose fields settings change


@settings
class TaskConfig:
    """A task and its options."""

    name: str = setting("registered name of the task")
    version: int = setting("version of the task's data and metrics")
    options: dict[str, Any] = setting("options of the task, defaults included")

    def __post_init__(self) -> None:
        """Store options as JSON reads them back; see `_store_options`."""
        _store_options(self)

    @property
    def key(self) -> str:
        """Text that is equal for equal tasks and options."""
        return json.dumps([self.name, self.options], sort_keys=True)


@settings
class MechanismConfig:
    """An attention mechanism and its options."""

    name: str = setting("registered name of the mechanism")
    options: dict[str, Any] = setting("options of the mechanism, defaults included")
    backend: str = setting("implementation to run; auto: the fastest one", "auto")

    def __post_init__(self) -> None:
        """Store options as JSON reads them back; see `_store_options`."""
        _store_options(self)


@settings
class EvaluationConfig:
    """Options of the mechanism in evaluations on validation and test.

    Transformer-XL, for example, is evaluated with a longer memory than it is trained with.
    """

    name: ClassVar[str] = "evaluation"
    options: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={
            "help": "options of the mechanism in held-out evaluation; those left out are those of "
            "training"
        },
    )

    def __post_init__(self) -> None:
        """Store options as JSON reads them back; see `_store_options`."""
        _store_options(self)


@settings
class RunConfig:
    """Everything that decides a run, except its seed."""

    task: TaskConfig = setting("task and its options")
    mechanism: MechanismConfig = setting("mechanism and its options")
    model: ModelConfig = setting("architecture")
    training: TrainingConfig = setting("training recipe")
    budget: Budget = setting("quantity held equal", Budget())
    start: StartConfig | None = setting(
        "checkpoint of the first weights; none: random initialization", None
    )
    evaluation: EvaluationConfig = dataclasses.field(
        default_factory=EvaluationConfig,
        metadata={"help": "options of the mechanism in held-out evaluation"},
    )

    def __post_init__(self) -> None:
        """Check the options of evaluations, and the stages.

        Raises:
            OptionError: the last stage changes the task or the mechanism, or a field rejects a
                value.
            UnknownNameError: a stage changes a field that does not exist, or the mechanism lacks an
                option of evaluations.
        """
        for option in self.evaluation.options:
            _check_option(self.mechanism, option)
        self.stages()

    @property
    def evaluation_changes(self) -> dict[str, Any]:
        """Options of the mechanism in held-out evaluation with other values than in training."""
        trained = self.mechanism.options
        return {k: x for k, x in self.evaluation.options.items() if trained[k] != x}

    def stages(self) -> "list[RunConfig]":
        """Return the configuration of each stage of the training; of a run without any, its own.

        Raises:
            OptionError: the last stage changes the task or the mechanism, or a field rejects its
                value.
            UnknownNameError: a stage changes a field that does not exist.
        """
        stages, ends = self.training.stages, stage_ends(self.training.stages, self.training.steps)
        if not stages:
            return [self]
        plain = replace_fields(self, {"training.stages": ()})
        configs = [
            replace_fields(
                plain, {**stage.changes_of(self.mechanism.name), "training.steps": end - start}
            )
            for stage, start, end in zip(stages, [0, *ends[:-1]], ends, strict=True)
        ]
        if (configs[-1].task, configs[-1].mechanism) != (self.task, self.mechanism):
            raise OptionError(
                "the last stage has the task and the mechanism of the run; set their options for "
                f"the run, and omit {', '.join(stages[-1].changes)}"
            )
        return configs


def _store_options(config: TaskConfig | MechanismConfig | EvaluationConfig) -> None:
    """Store options as JSON reads them back.

    Raises:
        OptionError: an option has the name of a field, so both would have one dotted name, or a
            value that JSON cannot hold; the message lists every reason.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    reasons = [
        f"option {name} of {config.name!r} has the name of a field; rename it"
        for name in sorted(fields & config.options.keys())
    ]
    if not _is_json(config.options):
        reasons += [
            f"option {name} of {config.name!r} must be JSON with finite numbers, got {x!r:.60}"
            for name, x in config.options.items()
            if not _is_json(x)
        ]
    if reasons:
        raise OptionError("; ".join(reasons))
    object.__setattr__(config, "options", to_json_types(config.options))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return the leaves of a configuration by dotted name: `training.steps`, `task.length`.

    Options of the task and of the mechanism have the names `task.OPTION` and `mechanism.OPTION`,
    those of the mechanism in held-out evaluation `evaluation.OPTION`.
    """
    flat: dict[str, Any] = {}
    for part, fields in dataclasses.asdict(config).items():
        if fields is None:
            continue
        options = fields.pop("options", {})
        flat |= {f"{part}.{name}": to_json_types(x) for name, x in {**fields, **options}.items()}
    return flat


def replace_fields(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with fields replaced by dotted name, as `flatten` names them.

    All values are checked together, so their order makes no difference.

    Raises:
        UnknownNameError: there is no such part or field; the message suggests near names.
        OptionError: a name has no part, or a field rejects its value.
    """
    by_part: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        part, dot, field = name.partition(".")
        if not dot:
            raise OptionError(f"{name!r} names no field; use PART.FIELD, such as training.steps")
        by_part.setdefault(check_name(part, PARTS, "part of a configuration"), {})[field] = value
    if not by_part:
        return config
    parts = {
        part: _replaced(getattr(config, part), part, fields)
        for part, fields in by_part.items()
        if part != "evaluation"
    }
    if "evaluation" in by_part:
        mechanism = parts.get("mechanism", config.mechanism)
        parts["evaluation"] = _with_options(config.evaluation, mechanism, by_part["evaluation"])
    return dataclasses.replace(config, **parts)


def _replaced(record: Any, part: str, changes: Mapping[str, Any]) -> Any:
    """Return a part of a configuration with fields, or options, replaced by name."""
    options = getattr(record, "options", None)
    fields = {x: y for x, y in changes.items() if options is None or x == "backend"}
    for field in fields:
        check_name(field, [f.name for f in dataclasses.fields(record)], f"field of {part}")
    if options is not None:
        new_options = {x: y for x, y in changes.items() if x not in fields}
        for option in new_options:
            check_name(option, options, f"option of {part} {record.name!r}")
        fields["options"] = {
            **options,
            **{x: _match_float(options[x], y) for x, y in new_options.items()},
        }
    return dataclasses.replace(record, **fields)


def _with_options(
    evaluation: EvaluationConfig, mechanism: MechanismConfig, changes: Mapping[str, Any]
) -> EvaluationConfig:
    """Return the options of evaluations with some of the mechanism's replaced."""
    for option in changes:
        _check_option(mechanism, option)
    new_options = {
        option: _match_float(mechanism.options[option], value) for option, value in changes.items()
    }
    return EvaluationConfig(options={**evaluation.options, **new_options})


def _check_option(mechanism: MechanismConfig, option: str) -> None:
    """Check that a mechanism has an option.

    Raises:
        UnknownNameError: it has none of this name; the message suggests near names.
    """
    check_name(option, mechanism.options, f"option of mechanism {mechanism.name!r}")


def _match_float(earlier: Any, value: Any) -> Any:
    """Return a value as a float if the earlier one is one: 1 and 1.0 are one configuration."""
    return float(value) if isinstance(earlier, float) and type(value) is int else value
