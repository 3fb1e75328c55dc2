"""`longspan eval`: scoring of saved models, on their own task or on another."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longspan.cli.activity import Activity
from longspan.cli.analyzing import measure_runs
from longspan.cli.common import err, print_json, print_note, print_text
from longspan.cli.options import (
    BatchSize,
    DeviceOptions,
    Integers,
    Json,
    Pairs,
    Records,
    SplitName,
    field,
    option,
    options,
)
from longspan.errors import OptionError
from longspan.memory import keep_freed_memory

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import CrossEvaluation, Inference, Score


@options
class SampleOptions:
    """Examples to score, as keyword arguments of evaluations."""

    examples: int | None = field(
        "Size of a random sample to score.", "all; of train as many as validation has"
    )
    batch_size: BatchSize = None


@options
class DataOptions:
    """Data to score in place of that of the run."""

    task: str | None = field("Task that the model was not trained on.", "the run's")
    lengths: Integers = field(
        "Lengths to score at, of one run or of several: 256,1024,4096 (task.length).",
        "that of the run",
    )


def evaluate(
    records: Records,
    sample: SampleOptions,
    changes: Annotated[
        Pairs,
        option(
            "Override an option of the task (task.length=4096), or of the mechanism on "
            "validation and test (evaluation.memory=3800).",
            flag="--set",
        ),
    ],
    folders: DeviceOptions,
    data: DataOptions,
    split: SplitName = "test",
    as_json: Json = False,
) -> None:
    """Score the saved model of a run again, without dropout, and time it.

    On validation and test the mechanism has the options that the run was evaluated with
    (evaluation.OPTION of its configuration). With --task or --set the model is evaluated on other
    data or with other options than in the run, such as longer inputs or a longer memory. That score
    is saved in the folder `evaluations` next to the record, and `longspan report` lists it apart
    from the scores of trained models.
    """
    if data.lengths is not None:
        from longspan.arena.cross_evaluation import evaluate_lengths

        one = partial(evaluate_lengths, changes=changes, split=split, **vars(data), **vars(sample))
        measure_runs(records, folders, one, None, _summary, as_json)
        return
    if len(records) > 1:
        raise OptionError("eval takes the record of one run; several need --lengths 256,1024")
    keep_freed_memory()  # as the run that is timed again
    paths = folders.run_paths()
    if data.task is not None or changes:
        _evaluate_elsewhere(records[0], paths, data.task, changes, split, sample, as_json)
    else:
        _evaluate_run(records[0], paths, split, sample, as_json)


def _evaluate_run(
    record: Path, paths: "RunPaths", split: str, sample: SampleOptions, as_json: bool
) -> None:
    """Evaluate on the data of the run; print the score."""
    from longspan.arena.finished_run import evaluate_run

    with Activity(err, f"evaluating {split} of {record.stem}"):
        evaluation, inference = evaluate_run(record, split, paths, **vars(sample))
    if as_json:
        score, cost = dataclasses.asdict(evaluation.score), dataclasses.asdict(inference)
        print_json({"split": split, **score, "inference": cost})
    else:
        print_text(f"{split}: {_describe(evaluation.score, inference)}")


def _summary(one: "CrossEvaluation") -> str:
    """Return the run, and its score at a length."""
    score = _describe(one.score, one.inference, one.available)
    return f"{one.run_stem}, {_describe_setup(one)}: {one.split} {score}"


def _evaluate_elsewhere(
    record: Path,
    paths: "RunPaths",
    task: str | None,
    changes: dict[str, Any],
    split: str,
    sample: SampleOptions,
    as_json: bool,
) -> None:
    """Evaluate on another task or other options; save and print the evaluation."""
    from longspan.arena.cross_evaluation import evaluate_elsewhere

    with Activity(err, f"evaluating {record.stem} on {split} of {task or 'its task'}") as activity:
        evaluation = evaluate_elsewhere(
            record,
            paths,
            task=task,
            changes=changes,
            split=split,
            progress=activity.on_build,
            **vars(sample),
        )
    print_note("evaluation:", evaluation.save(record.parent))
    if as_json:
        print_json(dataclasses.asdict(evaluation))
    else:
        print_text(_describe_setup(evaluation))
        print_text(
            f"{split}: {_describe(evaluation.score, evaluation.inference, evaluation.available)}"
        )


def _describe_setup(evaluation: "CrossEvaluation") -> str:
    changed = [f"{name}={value}" for name, value in evaluation.changed_options.items()]
    options = f" ({', '.join(changed)})" if changed else ""
    return (
        f"trained on {evaluation.trained_on.name} with up to {evaluation.trained_length:,} tokens, "
        f"evaluated on {evaluation.evaluated_on.name}{options} with up to {evaluation.length:,}"
    )


def _describe(score: "Score", inference: "Inference", available: int | None = None) -> str:
    from longspan.metrics import get_metric
    from longspan.report.numbers import metric_name

    metrics = ", ".join(
        f"{metric_name(get_metric(name), unit=False)} {get_metric(name).format(value)}"
        for name, value in score.metrics.items()
    )
    main = get_metric(next(iter(score.metrics)))
    baseline = score.majority_baseline
    majority = "" if baseline is None else f" (majority class {main.format(baseline)})"
    sampled = available is not None and available != score.num_examples
    of = f" of {available:,}" if sampled else ""
    unit = f" {main.loss_unit}" if main.loss_unit else ""
    return (
        f"{metrics}, loss {score.loss:.4f}{unit}, {score.num_examples:,}{of} examples{majority}, "
        f"{inference.examples_per_second:.4g} examples/s"
    )
