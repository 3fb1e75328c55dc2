"""Evaluation of a finished run's model on another task, or on other options.

Long Range Arena's question on Path-X, for example: does a model that solves Pathfinder at 1,024
tokens solve it at 16,384?
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from longspan.arena.finished_run import check_registered, check_request, load_run
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.base import get, protocol_names
from longspan.arena.provenance import git_commit, measured_on
from longspan.config import RunConfig, TaskConfig, replace_fields
from longspan.errors import OptionError, UnknownNameError
from longspan.models import lengthen
from longspan.results import CrossEvaluation, Result, load_result, run_fields
from longspan.tasks import Task, build, configure
from longspan.tasks.base import HELD_OUT, ProgressCallback, Split
from longspan.tasks.documents.own_texts import OwnTexts
from longspan.tasks.vocabulary import describe_other_tokens
from longspan.training.inference import evaluate_timed

OPTIONS = "evaluation."  # before the names of options of the mechanism
LENGTH = "task.length"


def evaluate_elsewhere(
    record: Path,
    paths: RunPaths,
    *,
    task: str | None = None,
    changes: Mapping[str, Any] | None = None,
    split: str = "test",
    examples: int | None = None,
    batch_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> CrossEvaluation:
    """Evaluate the selected model of a run on data that it was not trained on.

    Args:
        record: record of the run.
        paths: folders of the data, and the device.
        task: task to evaluate on; None: that of the run. Another task has the options that the
            run's protocol gives it, or else its defaults.
        changes: options of the task by dotted name, such as `task.length`, and of the mechanism in
            held-out evaluation, such as `evaluation.memory`.
        split: split to score.
        examples: size of a random sample to score; None: the whole split, and of the training
            split as many examples as the run scores at its end.
        batch_size: examples per batch; None: that of the run, or as many tokens of longer inputs.
        progress: receives the progress of building the data set.

    Raises:
        UnknownNameError: there is no such task, option or split, or a plug-in is not loaded.
        OptionError: the model does not fit the task; the message lists the reasons.
        DataError: the record, the model or the data is absent, or the run's data differs.
    """
    check_request(split, examples, batch_size)
    result = load_result(record)
    check_registered(record, result)
    config = task_config(result, task, changes or {})
    options = mechanism_options(result, changes or {}, split)
    target = build(config.name, config.options)
    run = load_run(record, paths)
    _refuse(record, config, find_refusals(run.task, target))
    model = lengthen(run.model, target.length)
    # A vocabulary may be learned from the data, which may take long to build.
    target.open(paths.cache, paths.data, progress)
    _refuse(record, config, find_vocabulary_refusals(run.task, target))
    scored_split = cast(Split, split)
    rows = run.choose_rows(scored_split, examples, target)
    if batch_size is None and target.length > run.task.length:
        batch_size = max(1, run.eval_batch_size * run.task.length // target.length)
    evaluating = run.evaluating(scored_split, batch_size, model=model, options=options)
    with evaluating as (prepared, where):
        evaluation, inference = evaluate_timed(prepared, target, scored_split, rows=rows, **where)
    return CrossEvaluation(
        **_identity(result),
        **_data(target, scored_split),
        evaluated_on=config,
        score=evaluation.score,
        inference=inference,
        batch_size=where["batch_size"],
        **measured_on(str(where["device"])),
        mechanism_options=options,
    )


def evaluate_lengths(
    record: Path,
    paths: RunPaths,
    lengths: Sequence[int],
    *,
    task: str | None = None,
    changes: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> list[CrossEvaluation]:
    """Evaluate a model at several lengths (`task.length`), the longest first.

    A model that cannot read the longest is refused before it is evaluated. The length of the
    training is left out on its own task: the record has its score. The other arguments and the
    errors are those of `evaluate_elsewhere`.

    Raises:
        OptionError: no other length is left, or the changes have one too.
    """
    result, given = load_result(record), dict(changes or {})
    if LENGTH in given:
        raise OptionError(
            f"lengths are given twice: {', '.join(map(str, lengths))}, and {LENGTH}={given[LENGTH]}"
            " among the changes; omit one"
        )
    scored = {x: y for x, y in given.items() if x not in ("task.train", "task.validation")}
    configs = {x: _evaluated_config(result, task, {**scored, LENGTH: x}) for x in lengths}
    others = [x for x, config in configs.items() if not _is_as_trained(result, config)]
    if not others:
        raise OptionError(
            f"{record.stem}: expected a length other than that of training, which the record has, "
            f"got {', '.join(map(str, lengths)) or 'none'}; to score it again, omit --lengths"
        )
    return [
        evaluate_elsewhere(record, paths, task=task, changes={**given, LENGTH: x}, **arguments)
        for x in sorted(others, reverse=True)
    ]


def _data(task: Task, split: Split) -> dict[str, Any]:
    return {
        "length": task.length,
        "data_source": task.source,
        "data_checksum": task.checksum,
        "split": split,
        "available": task.size(split),
        "metric": task.metrics[0].name,
        "chance": task.chance,
    }


def _identity(result: Result) -> dict[str, Any]:
    return {
        **run_fields(CrossEvaluation, result),
        "trained_on": result.config.task,
        "trained_length": result.length,
        "dtype": result.dtype,
        "git_commit": git_commit(),
    }


def task_config(result: Result, task: str | None, changes: Mapping[str, Any]) -> TaskConfig:
    """Return the configuration of the task to evaluate on.

    Raises:
        UnknownNameError: there is no such task or option, or the run's protocol is not registered.
        OptionError: a change is none of the task, an option has an invalid value, or the run was
            trained on the same task and options.
    """
    config = _evaluated_config(result, task, changes)
    if _is_as_trained(result, config):
        raise OptionError(
            f"the run was trained on {config.task.name} with these options; name another task, or "
            "omit --task and --set"
        )
    return config.task


def _evaluated_config(result: Result, task: str | None, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a run as it is evaluated; its stages are over.

    Raises:
        UnknownNameError, OptionError: as `task_config` says.
    """
    if names := [name for name in changes if not name.startswith(("task.", OPTIONS))]:
        raise OptionError(
            "an evaluation changes options of the task, such as task.length, and of the mechanism "
            f"in held-out evaluation, such as {OPTIONS}memory; got {names[0]}"
        )
    trained = result.effective_config
    config = trained.task
    if task is not None and task != config.name:
        config = configure(task, _protocol_options(result.protocol, task))
    training = dataclasses.replace(trained.training, stages=())
    return replace_fields(dataclasses.replace(trained, task=config, training=training), changes)


def _is_as_trained(result: Result, config: RunConfig) -> bool:
    """Return whether a configuration has the task and the evaluation options of a run."""
    trained = result.effective_config
    changes = (trained.evaluation_changes, config.evaluation_changes)
    return config.task == trained.task and changes[0] == changes[1]


def mechanism_options(result: Result, changes: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the options of the mechanism in an evaluation that differ from those of training.

    They are those of the run's evaluations, with the changes; on the training split there are none.

    Raises:
        UnknownNameError: there is no such option.
        OptionError: the split is that of training, and the changes have options.
    """
    options = {name: value for name, value in changes.items() if name.startswith(OPTIONS)}
    if split in HELD_OUT:
        return replace_fields(result.effective_config, options).evaluation_changes
    if options:
        raise OptionError(
            f"{', '.join(options)}: options of evaluation are those of {' and '.join(HELD_OUT)}, "
            f"got split {split!r}; choose one of them, or omit the options"
        )
    return {}


def _protocol_options(name: str, task: str) -> dict[str, Any]:
    if name not in protocol_names():
        raise UnknownNameError(
            f"the run's protocol {name!r} is not registered here, and it may set the options of "
            f"{task}; pass its file: --import FILE"
        )
    protocol = get(name)
    if task not in protocol.tasks:
        return {}
    return dict(protocol.recipe(task).task_options)


def _refuse(record: Path, config: TaskConfig, reasons: list[str]) -> None:
    if reasons:
        raise OptionError(
            f"{record.name} cannot be evaluated on {config.name}: {'; '.join(reasons)}"
        )


def find_refusals(trained: Task, target: Task) -> list[str]:
    """Return the reasons why a model of one task cannot be evaluated on another.

    The tasks need not be open; see `find_vocabulary_refusals` for those that must be.
    """
    reasons = []
    if trained.head is not target.head:
        heads = [task.head_name for task in (target, trained)]
        reasons.append(f"its head is {heads[0]}, the model was trained with {heads[1]}")
    if target.input_features != trained.input_features:
        inputs = [_inputs(task) for task in (target, trained)]
        reasons.append(f"its inputs are {inputs[0]}, those of the model {inputs[1]}")
    kinds = [_kind_of_targets(task) for task in (target, trained)]
    if kinds[0] != kinds[1]:
        reasons.append(f"its targets are {kinds[0]}, those of the model {kinds[1]}")
    elif target.num_classes != trained.num_classes:
        reasons.append(f"it has {target.num_classes} classes, the model {trained.num_classes}")
    elif reason := _other_classes(trained, target):
        reasons.append(reason)
    return reasons


def _kind_of_targets(task: Task) -> str:
    if task.is_regression:
        return "numbers"
    return "several labels each" if task.is_multi_label else "one class each"


def _other_classes(trained: Task, target: Task) -> str | None:
    """Return how the classes or numbers of two tasks differ in meaning; None: they do not.

    Classes without names are not compared.
    """
    if isinstance(trained, OwnTexts) and isinstance(target, OwnTexts) and target.is_regression:
        here, there = ((x.description.mean, x.description.deviation) for x in (target, trained))
        if here == there:
            return None
        return (
            f"its numbers have mean {here[0]:g} and deviation {here[1]:g} in training, those of "
            f"the model {there[0]:g} and {there[1]:g}; import its rows as --test FILE of the "
            "model's training file"
        )
    if not (_names_classes(trained) and _names_classes(target)):
        return None
    for label in range(target.num_classes):
        names = target.class_name(label), trained.class_name(label)
        if names[0] != names[1]:
            return (
                f"its class {label} is {names[0]!r}, that of the model {names[1]!r}; import it "
                "with the classes of the model"
            )
    return None


def _names_classes(task: Task) -> bool:
    """Return whether each example has one class, and the classes have names."""
    has_names = type(task).class_name is not Task.class_name and not task.is_regression
    return has_names and task.head_name in ("sequence_classification", "pair_classification")


def _inputs(task: Task) -> str:
    features = task.input_features
    return "token ids" if features is None else f"{features} numbers at each position"


def find_vocabulary_refusals(trained: Task, target: Task) -> list[str]:
    """Return the reasons why the token ids of two open tasks do not mean the same."""
    if target.input_features is not None:
        return []
    sizes = target.vocab_size, trained.vocab_size
    if sizes[0] != sizes[1]:
        return [f"its vocabulary has {sizes[0]} ids, that of the model {sizes[1]}"]
    reason = describe_other_tokens(trained, target)
    return [] if reason is None else [reason]
