"""Stages of a run: the checkpoint of the first one's weights, and what differs while each lasts.

Longformer (Beltagy et al. 2020, appendix B) doubles windows and lengths from stage to stage,
Shortformer (Press et al. 2021, section 3) trains on short inputs first.
"""

import dataclasses
import itertools
from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt, Strict

from longspan.config.base import defaults_of, setting, settings
from longspan.errors import OptionError, check_name

_EXTENSIONS = ("tile", "keep", "interpolate")  # of learned positions, as `longify` has them
PARTS = ("task", "mechanism", "model", "training")  # of a configuration; else a mechanism
# Fields that are of the whole run. Dropout alone changes no shape and no weight of the model.
_OF_RUN = (
    *("steps", "stages", "schedule_over", "selection", "precision", "gradient_checkpointing"),
    *("stop_at", "patience", "train_eval_examples", "word_vectors"),
)
_OF_MODEL = ("model.hidden_dropout_prob", "model.attention_dropout")


@settings
class StartConfig:
    """Checkpoint that a run starts from: of another run of its protocol, or a given one.

    The folder of a given checkpoint is no part of the identity: its weights and tokenizer are.
    """

    task: str | None = setting(
        "task of the protocol whose run of that row and seed is the start", None
    )
    run: str | None = setting("hash of that run's configuration", None)
    checkpoint: str | None = setting("sha256 of the weights of a given checkpoint", None)
    tokenizer: str | None = setting(
        "sha256 of the tokenizer of a given checkpoint, if texts are encoded with it: the folder "
        "that task.vocabulary names is then no part of the run's identity",
        None,
    )
    positions: PositiveInt = setting("maximum number of tokens of the checkpoint")
    vocabulary: PositiveInt = setting("token ids of the checkpoint")
    extend_positions: str | None = setting(
        "how learned positions are extended to longer inputs: tile, keep or interpolate; none: "
        "inputs are no longer",
        None,
    )
    fields: dict[str, Any] | None = setting(
        "fields of a given checkpoint's configuration that the model has and no recipe sets", None
    )

    def __post_init__(self) -> None:
        """Check that there is one checkpoint, and how positions are extended.

        Raises:
            OptionError: there is none, or there are two.
            UnknownNameError: positions are not extended so; the message suggests near names.
        """
        if self.extend_positions is not None:
            check_name(self.extend_positions, _EXTENSIONS, "method to extend learned positions")
        of_run = self.task is not None and self.run is not None
        partial = (self.task is None) != (self.run is None)
        if partial or of_run == (self.checkpoint is not None):
            raise OptionError(
                "a start is either task and run, or checkpoint; got "
                f"task={self.task!r}, run={self.run!r}, checkpoint={self.checkpoint!r}"
            )


@settings
class StageConfig:
    """One stage: its share of the steps, and the fields that differ from those of the run.

    The last stage has the task and the mechanism of the run, since its model is the result.
    """

    steps: PositiveInt = setting("steps, in proportion to those of the other stages")
    changes: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={
            "help": "fields by dotted name: task.length, training.batch_size; mechanism.window, or "
            "local.window of one mechanism"
        },
    )
    keep_optimizer: bool = setting(
        "keep the optimizer's moments of the stage before; false: they start at zero", True
    )

    def changes_of(self, mechanism: str) -> dict[str, Any]:
        """Return the changes of a run of one mechanism, whose options are `mechanism.OPTION`."""
        changes = {}
        for name, value in self.changes.items():
            part, _, field = name.partition(".")
            if part in PARTS:
                changes[name] = value
            elif part == mechanism:
                changes[f"mechanism.{field}"] = value
        return changes

    def __post_init__(self) -> None:
        """Check the names of the changed fields.

        Raises:
            OptionError: a field is of the whole run; the message lists every reason.
        """
        reasons = []
        for name in self.changes:
            part, _, field = name.partition(".")
            if part == "model" and name not in _OF_MODEL:
                reasons.append(f"a stage changes no {name}; of the model only dropout can change")
            elif (part == "training" and field in _OF_RUN) or (part == "evaluation" and field):
                reasons.append(f"a stage changes no {name}; set it for the whole run")
            elif part in ("start", "budget") or not field:
                reasons.append(
                    "a stage changes task.OPTION, training.FIELD, mechanism.OPTION or "
                    f"MECHANISM.OPTION of one mechanism, got {name!r}"
                )
        if reasons:
            raise OptionError("; ".join(reasons))


_DEFAULTS = defaults_of(StageConfig)


# JSON has lists in place of tuples.
_Stage = Annotated[
    StageConfig, BeforeValidator(lambda x: StageConfig(**x) if isinstance(x, dict) else x)
]
Stages = Annotated[tuple[_Stage, ...], Strict(False)]


def stage_ends(stages: tuple[StageConfig, ...], steps: int) -> list[int]:
    """Return the step at which each stage of a run ends; the last one is that of the run.

    Raises:
        OptionError: there are more stages than steps.
    """
    if len(stages) > steps:
        raise OptionError(f"{len(stages)} stages need as many steps, got {steps}; raise the steps")
    total = sum(stage.steps for stage in stages)
    sums = itertools.accumulate(stage.steps for stage in stages)
    ends = [round(steps * done / total) for done in sums]
    # Every stage has a step, however small its share.
    for number in range(len(ends)):
        earlier = ends[number - 1] if number else 0
        later = len(ends) - number - 1
        ends[number] = min(max(ends[number], earlier + 1), steps - later)
    return ends


def stage_values(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of stages by name: `stage.1.steps`, `stage.1.task.length`.

    Fields at their defaults are left out.

    Args:
        stages: stages, as `flatten` returns them in `training.stages`.
    """
    values: dict[str, Any] = {}
    for number, stage in enumerate(stages, start=1):
        fields = {name: x for name, x in stage.items() if x != _DEFAULTS.get(name)}
        fields |= fields.pop("changes", {})
        values |= {f"stage.{number}.{field}": x for field, x in fields.items()}
    return values
