"""Final models: trained on all texts of an import, as an earlier run was on its training texts."""

from pathlib import Path

from longspan.arena.experiment import Experiment, override, replace_budget
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import data_mismatch
from longspan.config import Budget
from longspan.errors import DataError, OptionError
from longspan.results import Result, load_result
from longspan.tasks import build


def load_earlier(experiment: Experiment, paths: RunPaths, command: str) -> tuple[Path, Result]:
    """Return the record of the run that a final model repeats on all texts, and its content.

    Args:
        experiment: experiment of that run.
        paths: folders of the run's data and results.
        command: command that makes the run, for the message.

    Raises:
        OptionError: there is no such run.
        DataError: it was trained on other texts.
    """
    record = paths.record_file(experiment)
    if not record.exists():
        raise OptionError(
            f"--all takes the number of steps from an earlier run with the same options, and "
            f"{record} does not exist; run {command} first, with these options and without --all"
        )
    result = load_result(record)
    task = build(experiment.task, experiment.config.task.options)
    task.open(paths.cache, paths.data)
    if reason := data_mismatch(result, task.checksum, record):
        raise DataError(reason)
    return record, result


def final_experiment(experiment: Experiment, earlier: Result) -> Experiment:
    """Return the experiment that trains on all texts, with nothing held out.

    Seed and options are those of the earlier run, as its budget changed them; it has as many steps
    as that run had at its best checkpoint, over which the schedule of the learning rate extends.
    """
    steps = earlier.selected_step or earlier.steps
    warmup = earlier.effective_config.training.warmup_steps
    resolved = earlier.resolved_budget.changes if earlier.resolved_budget else {}
    changes = {
        **resolved,
        "task.train_on": "all",
        "training.steps": steps,
        "training.warmup_steps": min(warmup, steps),
        "training.selection": "last",
        "training.patience": None,
        "training.stop_at": None,
    }
    return override(replace_budget(experiment, Budget()), changes)
