"""Tasks of the stages of a training."""

from longspan.config import RunConfig
from longspan.tasks import Task, build


def stage_task(config: RunConfig, task: Task) -> Task:
    """Return the task of a stage, open on the data of the run's task if that is open.

    Args:
        config: configuration of the stage.
        task: task of the run.

    Raises:
        OptionError: the options of the stage are invalid, or need other data than those of the run.
    """
    made = build(config.task.name, config.task.options)
    if made.options == task.options:
        return task
    made.share_data(task)
    return made
