"""`longspan eval`: scoring of saved models, on their own task or on another."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.analyzing import measure_each, measure_runs
from longspan.cli.common import print_json, print_text
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

if TYPE_CHECKING:
    from longspan.arena import RunPaths
    from longspan.results import CrossEvaluation, Inference, Score
    from longspan.training.evaluate import Evaluation


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
        "Lengths to score at: 256,1024,4096 (task.length).",
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
    """Score the saved models of runs again, without dropout, and time them.

    On validation and test the mechanism has the options that the run was evaluated with
    (evaluation.OPTION of its configuration). With --task, --set or --lengths the model is evaluated
    on other data or with other options than in the run, such as longer inputs or a longer memory.
    That score is saved in the folder `evaluations` next to the record, and `longspan report` lists
    it apart from the scores of trained models. Of several runs, some may fail.
    """
    from longspan.arena.cross_evaluation import evaluate_elsewhere, evaluate_lengths

    requested = {"split": split, **vars(sample)}
    if data.lengths is None and data.task is None and not changes:
        _evaluate_runs(records, folders, requested, as_json)
        return
    requested |= {"changes": changes, "task": data.task}
    evaluate_one: Callable[..., Any] = evaluate_elsewhere
    if data.lengths is not None:
        evaluate_one = partial(evaluate_lengths, lengths=data.lengths)
    one = partial(evaluate_one, **requested)
    measure_runs(records, folders, one, None, _summary, as_json)


def _evaluate_runs(
    records: list[Path], folders: DeviceOptions, requested: dict[str, Any], as_json: bool
) -> None:
    """Evaluate runs on their own data; print the scores."""
    from longspan.arena.finished_run import evaluate_run

    def measure(path: Path, paths: "RunPaths", **_: Any) -> "tuple[Evaluation, Inference]":
        return evaluate_run(path, paths=paths, **requested)

    measured, num_failed = measure_each(records, folders, measure)
    split = requested["split"]
    if as_json:
        print_json(
            [
                {
                    "run": path.stem,
                    "split": split,
                    **asdict(one.score),
                    "inference": asdict(inference),
                }
                for path, (one, inference) in measured
            ]
        )
    else:
        for path, (one, inference) in measured:
            print_text(f"{path.stem}: {split} {_describe(one.score, inference)}")
    if num_failed:
        raise typer.Exit(1)


def _summary(one: "CrossEvaluation") -> str:
    """Return the run, and its score elsewhere."""
    score = _describe(one.score, one.inference, one.available)
    return f"{one.run_stem}, {_describe_setup(one)}: {one.split} {score}"


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
