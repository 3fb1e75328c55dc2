"""What a protocol is: a named recipe. A number means nothing without the one it was obtained under.

A protocol is a function from a task to the parts of an experiment, and the options that each
mechanism runs with: the one place where settings are chosen per mechanism; a mechanism that a
protocol does not list runs with its own defaults.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from longspan.arena.budget import Budget
from longspan.arena.experiment import Experiment, ModelSpec, TaskSpec
from longspan.attention import MECHANISMS
from longspan.errors import OptionError, check_name
from longspan.training import TrainConfig

Parts = tuple[TaskSpec, ModelSpec, TrainConfig]
Settings = Mapping[str, Mapping[str, Any]]  # options by mechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """A value that the sources leave open or give in several ways: which is taken here, and why."""

    tasks: tuple[str, ...]
    field: str  # dotted: train.steps; options.MECHANISM.NAME for an option
    value: Any
    source: str
    instead: tuple[tuple[Any, str], ...] = ()  # other values and who gives them; none: silence
    why: str

    def __str__(self) -> str:
        """One line: the value, the others, the reason."""
        said: dict[str, list[str]] = {}
        for value, source in self.instead:
            said.setdefault(source, []).append(str(value))
        others = "".join(f"; not {' or '.join(said[source])} ({source})" for source in said)
        return f"{self.value} ({self.source}){others}: {self.why}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """A recipe: what it is for, where it comes from, what it covers, what it does not copy."""

    name: str
    summary: str
    source: str
    tasks: tuple[str, ...]
    differs: str  # from its source, in words
    parts: Callable[[str], Parts]
    settings: Settings
    exceptions: Mapping[str, Settings] = dataclasses.field(default_factory=dict)  # by task
    choices: tuple[Choice, ...] = ()
    budget: Budget = dataclasses.field(default_factory=Budget)  # what is held equal
    # By task and dotted field (or "seed"): the values that the source tries, of which the recipe
    # is one combination.
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]] = dataclasses.field(default_factory=dict)

    def options(self, task: str, mechanism: str) -> dict[str, Any]:
        """The options of a mechanism that differ from its defaults."""
        own = self.exceptions.get(task, {}).get(mechanism, {})
        return {**self.settings.get(mechanism, {}), **own}

    def experiment(self, task: str, mechanism: str, seed: int) -> Experiment:
        """The whole configuration of one run.

        Raises:
            UnknownNameError: no such task in this protocol, or no such mechanism.
        """
        check_name(task, self.tasks, f"task of protocol {self.name!r}")
        check_name(mechanism, MECHANISMS, "mechanism")
        spec, model, train = self.parts(task)
        return Experiment(
            protocol=self.name,
            task=spec,
            mechanism=mechanism,
            options=self.options(task, mechanism),
            model=model,
            train=train,
            seed=seed,
            budget=self.budget,
        )


PROTOCOLS: dict[str, Protocol] = {}


def register(protocol: Protocol) -> Protocol:
    """Make a protocol known by its name.

    Raises:
        OptionError: the name is taken.
    """
    if protocol.name in PROTOCOLS:
        raise OptionError(f"protocol {protocol.name!r} is already there")
    PROTOCOLS[protocol.name] = protocol
    return protocol


def get(name: str) -> Protocol:
    """A protocol by name.

    Raises:
        UnknownNameError: there is none (with near names).
    """
    return PROTOCOLS[check_name(name, PROTOCOLS, "protocol")]
