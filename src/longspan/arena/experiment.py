"""An experiment: everything that decides a run, as one frozen tree saved with its result."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args, no_type_check

from longspan.arena.budget import Budget
from longspan.attention import MECHANISMS, options_of
from longspan.errors import OptionError, check_name, mistyped_fields
from longspan.fields import setting
from longspan.results import config_hash
from longspan.tasks import TASKS
from longspan.training import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Which task, and the options that differ from its defaults."""

    name: str = setting("a registered task")
    options: Mapping[str, Any] = setting("options of the task")

    @property
    def key(self) -> str:
        """What two specifications of one task with the same options have in common."""
        return repr((self.name, sorted(self.options.items(), key=str)))

    def complete(self) -> dict[str, Any]:
        """All options, defaults included."""
        return dataclasses.asdict(TASKS[self.name].Options(**self.options))


# `mistyped_fields` checks the types of fields, with words for people.
@no_type_check
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The encoder; the mechanism and its options stand beside it in the experiment."""

    width: int = setting("model width")
    layers: int = setting("layers")
    heads: int = setting("heads per layer")
    head_dim: int | None = setting("width of a head; none: the model's width / heads", None)
    feed_forward: int = setting("width of the feed-forward layer")
    classifier: int = setting("width of the classifier's hidden layer")
    position: str = setting("learned, sinusoidal, rotary or none", "learned")
    norm: str = setting("pre or post", "pre")
    pooling: str = setting("mean, cls or first", "mean")
    pair_head: str = setting("interaction or concatenate", "interaction")
    dropout: float = setting("dropout of embeddings and blocks", 0.1)
    attention_dropout: float = setting("dropout of the mechanism's output", 0.1)
    initializer: float = setting("standard deviation of the initial weights", 0.07)

    def __post_init__(self) -> None:
        """Refuse values of another type; the model itself checks the rest."""
        if reasons := mistyped_fields(self):
            raise OptionError("; ".join(reasons))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run of a protocol: (task, mechanism, seed) and the recipe."""

    protocol: str
    task: TaskSpec
    mechanism: str
    options: Mapping[str, Any]
    model: ModelSpec
    train: TrainConfig
    seed: int
    backend: str = "auto"
    budget: Budget = dataclasses.field(default_factory=Budget)
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse unknown names, with near ones, and what is no seed."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise OptionError(f"a seed is a whole number, 0 or more, got {self.seed!r}")
        check_name(self.task.name, TASKS, "task")
        check_name(self.mechanism, MECHANISMS, "mechanism")
        for option in self.options:
            check_name(option, options_of(self.mechanism), f"option of {self.mechanism!r}")
        fields = [field.name for field in dataclasses.fields(TASKS[self.task.name].Options)]
        for option in self.task.options:
            check_name(option, fields, f"option of task {self.task.name!r}")

    def config(self) -> dict[str, Any]:
        """What tells one experiment from another: all but the seed, defaults included."""
        # Equal steps are what the recipe itself says: they add nothing to tell.
        held = {"budget": dataclasses.asdict(self.budget)} if self.budget != Budget() else {}
        return {
            **held,
            "task": {
                "name": self.task.name,
                "version": TASKS[self.task.name].info.version,
                "options": self.task.complete(),
            },
            "mechanism": self.mechanism,
            "options": {**options_of(self.mechanism), **self.options},
            "backend": self.backend,
            "model": dataclasses.asdict(self.model),
            "train": dataclasses.asdict(self.train),
        }

    @property
    def hash(self) -> str:
        """Ten hex digits naming the configuration."""
        return config_hash(self.config())

    @property
    def name(self) -> str:
        """`<mechanism>-<hash>-<seed>`, the stem of the record's file."""
        return f"{self.mechanism}-{self.hash}-{self.seed}"


PARTS = ("task", "options", "model", "train")


def override(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Change fields by dotted name: `train.steps`, `model.layers`, `task.length`, `options.window`.

    What differs then is kept in `overrides`, and so in the result.

    Raises:
        UnknownNameError: no such part or field (with near names).
        OptionError: a name without a part, or a value that the field refuses.
    """
    overrides, before = dict(experiment.overrides), experiment.config()
    for name, value in changes.items():
        part, dot, field = name.partition(".")
        if not dot:
            raise OptionError(
                f"{name!r} names no field; write PART.FIELD=VALUE, as train.steps=100"
            )
        experiment = _changed(
            experiment, check_name(part, PARTS, "part of an experiment"), field, value
        )
        if (after := experiment.config()) != before:
            overrides[name] = value
        before = after
    return dataclasses.replace(experiment, overrides=overrides)


def under(experiment: Experiment, budget: Budget) -> Experiment:
    """The experiment under another budget; one that differs is kept in `overrides`."""
    if budget == experiment.budget:
        return experiment
    overrides = {**experiment.overrides, "budget": str(budget)}
    return dataclasses.replace(experiment, budget=budget, overrides=overrides)


def _changed(experiment: Experiment, part: str, field: str, value: Any) -> Experiment:
    if part == "task":
        options = {**experiment.task.options, field: value}
        return dataclasses.replace(
            experiment, task=dataclasses.replace(experiment.task, options=options)
        )
    if part == "options":
        default = options_of(experiment.mechanism).get(field)
        options = {**experiment.options, field: _number(value, type(default))}
        return dataclasses.replace(experiment, options=options)
    record = getattr(experiment, part)
    names = {f.name: f for f in dataclasses.fields(record)}
    check_name(field, names, f"field of {part}")
    value = _number(value, names[field].type)
    return dataclasses.replace(experiment, **{part: dataclasses.replace(record, **{field: value})})


def _number(value: Any, declared: Any) -> Any:
    """A whole number as the type says it: 1 and 1.0 are one configuration, with one hash."""
    takes = (declared, *get_args(declared))
    return float(value) if type(value) is int and float in takes and int not in takes else value
