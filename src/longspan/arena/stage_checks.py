"""Checks of the stages of a run, and of their evaluations, before the first one begins."""

import itertools

from longspan.arena.model import model_config
from longspan.arena.stage_tasks import stage_task
from longspan.attention.allocation import sizes_alone
from longspan.attention.other_options import OtherOptions
from longspan.config import RunConfig, flatten
from longspan.errors import LongspanError, OptionError
from longspan.models.attention_layer import build_mechanism
from longspan.models.config_checks import layered_refusals
from longspan.models.conversion.family import POSITIONS
from longspan.tasks import Task

Shapes = dict[str, tuple[int, ...]]


def check_stages(config: RunConfig, task: Task) -> None:
    """Refuse stages whose model cannot be built, or cannot take over the weights before it.

    The end of a run shows that late, after all stages before it.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.

    Raises:
        OptionError: the message names the stage.
    """
    stages = config.stages()
    if len(stages) == 1:
        return
    shapes = [_shapes(number, stage, task) for number, stage in enumerate(stages, 1)]
    for number, (before, after) in enumerate(itertools.pairwise(shapes), 2):
        different = sorted(x for x in before.keys() | after.keys() if before.get(x) != after.get(x))
        if different:
            values = [flatten(stage) for stage in stages[number - 2 : number]]
            fields = [
                name
                for name, value in values[1].items()
                if name.startswith(("task.", "mechanism.")) and value != values[0].get(name)
            ]
            raise OptionError(
                f"stage {number} has other weights than the one before it, such as {different[0]} "
                f"of {config.mechanism.name}: {_text(after, different[0])}, not "
                f"{_text(before, different[0])}; the stages differ in {', '.join(fields)}. Keep "
                "what decides shapes, or choose a mechanism whose weights depend on no length"
            )


def check_evaluations(config: RunConfig, task: Task) -> None:
    """Refuse options that the evaluations of a stage cannot have.

    Args:
        config: configuration of the run.
        task: its task, which need not be open.

    Raises:
        OptionError: a value is invalid, a list has not one value for each layer, or an option
            changes a parameter or a buffer.
        UnknownNameError: the mechanism has no such option.
    """
    for stage in config.stages():
        if not (changes := stage.evaluation_changes):
            continue
        model = model_config(stage, stage_task(stage, task))
        if reasons := layered_refusals(stage.mechanism.name, changes, model.num_hidden_layers):
            raise OptionError(f"evaluation: {'; '.join(reasons)}")
        OtherOptions(build_mechanism(model, layer=0), changes)


def _shapes(number: int, stage: RunConfig, task: Task) -> Shapes:
    """Return the shapes of the parameters of a stage but the positions, which a stage extends.

    Raises:
        OptionError: the model cannot be built.
    """
    try:
        own = stage_task(stage, task)
        with sizes_alone():
            model = own.head(model_config(stage, own))
    except LongspanError as error:
        raise OptionError(f"stage {number}: {error}") from None
    parameters = model.named_parameters()
    return {name: tuple(x.shape) for name, x in parameters if not name.endswith(POSITIONS)}


def _text(shapes: Shapes, name: str) -> str:
    return str(shapes[name]) if name in shapes else "none"
