"""Protocols: named recipes. A score is comparable only with scores under the same protocol.

A protocol maps each of its tasks to a recipe, and names the options of each mechanism: the one
place that sets options by mechanism. A mechanism without an entry runs with its defaults. The model
adds no position encoding to a mechanism that carries positions (`Traits.carries_positions`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from longspan.arena.experiment import Experiment, override, replace_budget
from longspan.arena.protocols.choices import Choice
from longspan.arena.protocols.rows import NamedRow, refuse_budget, refuse_fixed
from longspan.arena.protocols.scopes import select_changes
from longspan.arena.protocols.starts import (
    OF_RUN,
    START_TASK,
    RunStart,
    find_run_start,
    split_start,
    start_from_checkpoint,
    start_from_run,
    start_settings,
    without_starts,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import (
    Budget,
    MechanismConfig,
    ModelConfig,
    RunConfig,
    TrainingConfig,
    replace_fields,
)
from longspan.errors import OptionError, UnknownNameError, check_name
from longspan.results.reading import check_folder_name
from longspan.tasks import TASKS, configure

MechanismOptions = Mapping[str, Mapping[str, Any]]  # options by mechanism


class Recipe(NamedTuple):
    """Recipe of one task: task options that differ from the defaults, model, training.

    `start` names the task of the protocol whose run of the same row and seed is the start, or that
    of another row: its weights are loaded by name. None: random initialization.
    """

    task_options: Mapping[str, Any]
    model: ModelConfig
    training: TrainingConfig
    start: str | RunStart | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """Named recipe: purpose, source, tasks, settings, and departures from its source.

    Attributes:
        name: key in the registry.
        summary: one sentence for readers.
        source: paper or repository that it reproduces.
        tasks: tasks that it covers.
        differs: departures from its source.
        recipe: recipe of a task.
        mechanism_options: options by mechanism, for every task.
        task_mechanism_options: options by task and mechanism, which take precedence.
        evaluation_options: options in evaluations on validation and test that differ from those of
            training, by task and mechanism.
        choices: values on which the sources disagree.
        places: source of each field that the recipe sets, by task and dotted field.
        budget: quantity held equal between mechanisms.
        grids: hyperparameter values that the source searches, by task and dotted field or "seed";
            the recipe is one combination.
        named_rows: reference rows and variants of mechanisms, which are run by name.
        rows: rows of a table that names none; empty: every mechanism.
        seeds: seeds of a table that names none.
        imports: tasks that exist as soon as they are imported, and the command that does it.
        file: file outside the package that defines it; None: a protocol of the package, or one
            without a file.
    """

    name: str
    summary: str
    source: str
    tasks: tuple[str, ...]
    differs: str
    recipe: Callable[[str], Recipe]
    mechanism_options: MechanismOptions
    task_mechanism_options: Mapping[str, MechanismOptions] = dataclasses.field(default_factory=dict)
    evaluation_options: Mapping[str, MechanismOptions] = dataclasses.field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    places: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    budget: Budget = dataclasses.field(default_factory=Budget)
    grids: Mapping[str, Mapping[str, tuple[Any, ...]]] = dataclasses.field(default_factory=dict)
    named_rows: tuple[NamedRow, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    imports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: Path | None = None

    def row(
        self,
        task: str,
        name: str,
        seed: int,
        changes: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        fitted: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Return the experiment of one row of the table: of a mechanism, or a named row.

        A run that starts from another one names it by the hash that the same changes and budget
        give it. `start.task` and `start.row` among the changes name another run to start from, or
        None; `start.checkpoint` and the other fields of `StartConfig` a given checkpoint.

        Args:
            task: task of the protocol.
            name: name of a mechanism, of a reference row or of a variant.
            seed: seed.
            changes: fields to override, by dotted name; some may be limited to a task or row, as
                `longspan.arena.protocols.scopes` describes.
            budget: quantity to hold equal; None: that of the named row, or of the protocol.
            fitted: fields that a given checkpoint decides, where no change does; its start is among
                them.

        Raises:
            UnknownNameError: the protocol has no such task, or there is no such row or field.
            OptionError: the reference row does not exist for the task, a change contradicts it or
                another change, a field rejects its value, or runs start from each other.
        """
        row_changes = self.changes(task, name, changes or {})
        start, config_changes = split_start(row_changes)
        fitted_fields = {x: y for x, y in (fitted or {}).items() if x not in row_changes}
        checkpoint, fitted_fields = split_start(fitted_fields)
        experiment = self._row(task, name, seed, config_changes, fitted_fields)
        if (named_row := self.named_row(name)) is not None:
            refuse_budget(named_row, budget)
        experiment = replace_budget(experiment, budget or experiment.config.budget)
        if checkpoint or start.keys() - set(OF_RUN):
            return start_from_checkpoint(experiment, {**checkpoint, **start})
        # Changes of a start that are not limited to a task are for this row alone.
        source_changes = without_starts(changes or {}, self.row_names)
        run_start = find_run_start(self, task, name, start, source_changes)
        if run_start is not None:
            source = self.row(run_start.task, run_start.row, seed, source_changes, budget)
            experiment = start_from_run(experiment, source, run_start.extend_positions)
        if not start or run_start == find_run_start(self, task, name, {}):
            return experiment
        return dataclasses.replace(experiment, overrides={**experiment.overrides, **start})

    def _row(
        self,
        task: str,
        name: str,
        seed: int,
        changes: Mapping[str, Any],
        fitted: Mapping[str, Any],
    ) -> Experiment:
        """Return the experiment of a row without its start."""
        reference = self.named_row(name)
        if reference is None:
            return override(self._from_scratch(task, name, seed), changes, fitted)
        self.check_row(task, name)
        _, fixed = split_start(reference.changes_on(task))
        experiment = override(self._from_scratch(task, reference.mechanism, seed), fixed)
        config = dataclasses.replace(experiment.config, budget=reference.budget or self.budget)
        overrides = {reference.key: name}
        experiment = dataclasses.replace(experiment, config=config, overrides=overrides)
        experiment = override(experiment, changes, fitted)
        refuse_fixed(reference, task, {**fitted, **experiment.overrides})
        return experiment

    def changes(self, task: str, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes that apply to a row on a task, by dotted name of the field.

        Raises:
            UnknownNameError: the protocol has no such task, or there is no such row or field.
            OptionError: two changes of a field contradict each other.
        """
        reference = self.named_row(name)
        self.check_task(task)
        mechanism = name if reference is None else reference.mechanism
        rows = self.row_names
        return select_changes(changes, task=task, row=name, mechanism=mechanism, rows=rows)

    @property
    def row_names(self) -> list[str]:
        """Names of all rows: mechanisms, reference rows and variants."""
        return [*MECHANISMS, *(row.name for row in self.named_rows)]

    @property
    def default_rows(self) -> list[str]:
        """Rows of a table that names none."""
        return list(self.rows or MECHANISMS)

    @property
    def missing_imports(self) -> dict[str, str]:
        """Reason and remedy for each task of the protocol that is not imported."""
        return {
            name: f"not imported; run {command}"
            for name, command in self.imports.items()
            if name not in TASKS
        }

    @property
    def optional_imports(self) -> dict[str, str]:
        """Reason and remedy for each task that is not imported and can be left out.

        Other tasks do not start from it, and some of them need no import.
        """
        missing = self.missing_imports
        if not missing or self.imports.keys() >= set(self.tasks):
            return {}
        starts = {start_settings(self.recipe(x).start).get(START_TASK) for x in self.tasks}
        return {name: reason for name, reason in missing.items() if name not in starts}

    @property
    def available_tasks(self) -> tuple[str, ...]:
        """Tasks without those that are left out because they are not imported."""
        optional = self.optional_imports
        return tuple(name for name in self.tasks if name not in optional)

    def check_task(self, name: str) -> str:
        """Return the name of a task of the protocol.

        Raises:
            UnknownNameError: the protocol does not have it; the message names protocols that do, or
                suggests near names. Or it is not imported; the message has the command.
        """
        if name in self.missing_imports:
            raise UnknownNameError(
                f"protocol {self.name!r} needs {name}, which is {self.missing_imports[name]}"
            )
        if name in self.tasks or name not in TASKS:
            # An import may be meant, which is a task of another protocol.
            return check_name(name, self.tasks, f"task of protocol {self.name!r}", TASKS)
        owners = sorted(x.name for x in PROTOCOLS.values() if name in x.tasks)
        owners = owners or sorted(x for x, make in GENERIC.items() if name in make().tasks)
        if not owners:
            raise UnknownNameError(
                f"no protocol has task {name!r}; write one that does, and add --protocol FILE"
            )
        first = "quick" if "quick" in owners else owners[0]
        raise UnknownNameError(
            f"protocol {self.name!r} has no task {name!r}; {name} is in {', '.join(owners)}: add "
            f"--protocol {first}"
        )

    def row_tasks(self, name: str) -> tuple[str, ...]:
        """Return the tasks that a row exists for: a mechanism for all, a named row for some.

        Raises:
            UnknownNameError: there is no such row.
        """
        reference = self.named_row(name)
        return self.tasks if reference is None else reference.tasks

    def check_row(self, task: str, name: str) -> None:
        """Check that a row exists for a task.

        Raises:
            UnknownNameError: there is no such row.
            OptionError: it is a row of other tasks.
        """
        row = self.named_row(name)
        if row is not None and task not in row.tasks:
            raise OptionError(f"{row.kind} {name!r} is a row of {', '.join(row.tasks)} only")

    def named_row(self, name: str) -> NamedRow | None:
        """Return a reference row or variant by name; None for a mechanism.

        Raises:
            UnknownNameError: there is no such row; the message names protocols that have it, or
                suggests near names.
        """
        rows = {row.name: row for row in self.named_rows}
        if name in rows or name in MECHANISMS:
            return rows.get(name)
        owners = [x.name for x in PROTOCOLS.values() if name in {y.name for y in x.named_rows}]
        if owners:
            raise UnknownNameError(
                f"protocol {self.name!r} has no reference row {name!r}; "
                f"{' and '.join(sorted(owners))} {'has' if len(owners) == 1 else 'have'} it"
            )
        check_name(name, [*MECHANISMS, *rows], "mechanism or reference row")
        return None

    def options_for(self, task: str, mechanism: str) -> dict[str, Any]:
        """Return the options of a mechanism that differ from its defaults."""
        task_options = self.task_mechanism_options.get(task, {}).get(mechanism, {})
        return {**self.mechanism_options.get(mechanism, {}), **task_options}

    def evaluation_options_for(self, task: str, mechanism: str) -> dict[str, Any]:
        """Return the options of a mechanism in held-out evaluation, which others do not have."""
        return dict(self.evaluation_options.get(task, {}).get(mechanism, {}))

    def config(self, task: str, mechanism: str) -> RunConfig:
        """Return the whole configuration of a run, without its start.

        Raises:
            UnknownNameError: the protocol has no such task, or there is no such mechanism.
        """
        self.check_task(task)
        check_name(mechanism, MECHANISMS, "mechanism")
        recipe = self.recipe(task)
        defaults = MechanismConfig(name=mechanism, options=options_of(mechanism))
        config = RunConfig(
            task=configure(task, dict(recipe.task_options)),
            mechanism=defaults,
            model=recipe.model,
            training=recipe.training,
            budget=self.budget,
        )
        changes = {f"mechanism.{x}": y for x, y in self.options_for(task, mechanism).items()}
        evaluation = self.evaluation_options_for(task, mechanism)
        changes |= {f"evaluation.{x}": y for x, y in evaluation.items()}
        if MECHANISMS[mechanism].traits.carries_positions:
            changes["model.position"] = "none"
        return replace_fields(config, changes)

    def experiment(self, task: str, mechanism: str, seed: int) -> Experiment:
        """Return the experiment of one run of a mechanism.

        Raises:
            UnknownNameError: the protocol has no such task, or there is no such mechanism.
        """
        self.check_task(task)
        return self.row(task, check_name(mechanism, MECHANISMS, "mechanism"), seed)

    def _from_scratch(self, task: str, mechanism: str, seed: int) -> Experiment:
        return Experiment(protocol=self.name, config=self.config(task, mechanism), seed=seed)


PROTOCOLS: dict[str, Protocol] = {}
# Protocols of all registered tasks of a kind, made anew whenever they are asked for.
GENERIC: dict[str, Callable[[], Protocol]] = {}


def register(protocol: Protocol) -> Protocol:
    """Register a protocol under its name.

    Raises:
        OptionError: the name is taken, or that of another folder of a runs folder.
    """
    check_folder_name("protocol", protocol.name)
    if protocol.name in protocol_names():
        raise OptionError(f"protocol {protocol.name!r} is already registered; choose another name")
    PROTOCOLS[protocol.name] = protocol
    return protocol


def protocol_names() -> list[str]:
    """Return the names of all protocols."""
    return [*PROTOCOLS, *GENERIC]


def get(name: str) -> Protocol:
    """Return a protocol by name.

    Raises:
        UnknownNameError: there is no such protocol; the message suggests near names.
    """
    check_name(name, protocol_names(), "protocol")
    return PROTOCOLS[name] if name in PROTOCOLS else GENERIC[name]()
