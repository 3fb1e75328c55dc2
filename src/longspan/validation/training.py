"""Rules for the training of a result: budget, curve, selection, search, speed."""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from longspan.arena.budget_resolution import MICROBATCHES, scale_steps
from longspan.arena.search import SEED
from longspan.arena.stages import most_steps, stage_flops, training_flops
from longspan.attention import MECHANISMS
from longspan.config import TrainingConfig, flatten
from longspan.errors import LongspanError
from longspan.metrics import get_metric
from longspan.results import Point, Result, TrialRecord, Tuning
from longspan.tasks import build
from longspan.training.schedule import compute_learning_rate, ends_training, scheduled_steps
from longspan.validation.findings import RUN_AGAIN, Finding, RecordFile, is_close, is_whole

_MAX_REEVALUATION = 0.02  # relative; rounding on another device may flip a few examples


def check_budget(file: RecordFile[Result]) -> Iterable[Finding]:
    """Derive the changes by the budget from its measurements again."""
    resolved = file.record.resolved_budget
    if file.record.mechanism not in MECHANISMS:
        return []  # the rule for recipes names it
    try:
        expected = _budget_changes(file.record, resolved.measurements if resolved else {})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        expected = f"measurements of a budget of {file.record.config.budget} ({error!r})"
    return file.compare("resolved_budget.changes", resolved and resolved.changes, expected)


def _budget_changes(record: Result, measurements: dict[str, Any]) -> Any:
    config, kind, limit = record.config, record.config.budget.kind, record.config.budget.limit
    if limit is None:
        return None
    if kind == "memory":
        option = MECHANISMS[record.mechanism].size_option
        fitting = [size for size, needed in measurements["candidates"] if needed <= limit]
        return {f"mechanism.{option}": fitting[-1]} if option else {}
    if kind == "microbatch":
        fitting = [number for number, needed in measurements["candidates"] if needed <= limit]
        return {MICROBATCHES: min(fitting)}
    mean, count = measurements[f"{kind}_per_step"], max(1, len(config.training.stages))
    costs = measurements.get("stages", [mean] * count)
    if kind == "flops":
        costs = _stage_flops(record, costs)
    return scale_steps(config.training, most_steps(config.training, costs, limit))


def _stage_flops(record: Result, recorded: list[float]) -> list[float]:
    """Return the FLOPs of a training step in each stage.

    They are those in the record where the task of stages cannot be built.
    """
    config = record.config
    if not config.training.stages:
        return [training_flops(record.flops, config.training.batch_size)]
    try:
        return [*stage_flops(config, build(config.task.name, config.task.options))]
    except LongspanError:
        return recorded


class _Stage(NamedTuple):
    """Steps of a stage, and the recipe of its learning rates, whose step 0 is `start`."""

    config: TrainingConfig
    first: int
    last: int
    schedule: TrainingConfig
    start: int

    def evaluations(self) -> list[int]:
        """Return the steps of the run that the stage evaluates after."""
        steps, every = self.config.steps, self.config.evaluate_every
        return [self.first + min(step, steps) for step in range(every, steps + every, every)]


def _scheduled_stages(record: Result) -> list[_Stage]:
    """Return the stages of a run, in their order; one for a run without any."""
    configs = [config.training for config in record.effective_config.stages()]
    ends = list(itertools.accumulate(config.steps for config in configs))
    stages = []
    for config, first, last in zip(configs, [0, *ends[:-1]], ends, strict=True):
        schedule, start = scheduled_steps(config, first, ends[-1])
        stages.append(_Stage(config, first, last, schedule, start))
    return stages


def _last_step(record: Result) -> int:
    """Return the step of the first evaluation that ends the training, or the last of the recipe."""
    training, metric = record.effective_config.training, get_metric(record.selection_metric)
    ends = (
        point.step
        for number, point in enumerate(record.curve, 1)
        if ends_training(training, metric, record.curve[:number])
    )
    return min(next(ends, training.steps), training.steps)


def _check_curve(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require every evaluation up to the last step, in order, at the scheduled learning rate."""
    record, last = file.record, _last_step(file.record)
    yield from file.compare("steps", record.steps, last, RUN_AGAIN)
    stages, steps = _scheduled_stages(record), [point.step for point in record.curve]
    if steps != [step for stage in stages for step in stage.evaluations() if step <= last]:
        expected = " and ".join(
            f"every {stage.config.evaluate_every} steps up to {min(stage.last, last)}"
            for stage in stages
        )
        yield file.finding("curve", f"steps {steps!r:.60}", expected, RUN_AGAIN)
    seconds = [0.0, *(point.seconds for point in record.curve)]
    if any(b <= a for a, b in itertools.pairwise(seconds)):
        yield file.finding("curve", f"{seconds!r:.60}", "increasing seconds")
    yield from file.compare("seconds", record.seconds, seconds[-1])
    for point in record.curve:
        stage = next((x for x in stages if point.step <= x.last), stages[-1])
        rate = compute_learning_rate(stage.schedule, point.step - 1 - stage.start)
        remedy = "restore the learning rate, schedule and warmup that ran"
        field = f"curve.learning_rate at step {point.step}"
        if findings := file.compare(field, point.learning_rate, rate, remedy):
            yield from findings
            break


def _check_selection(file: RecordFile[Result]) -> Iterator[Finding]:
    """Select the checkpoint again from the curve, and compare its score on validation."""
    record, rule = file.record, file.record.config.training.selection
    if record.selected_on == "test" and rule != "last":
        remedy = "compare it only with scores that were selected on test"
        yield file.finding("selected_on", "test", "validation", remedy, "warning")
    metric = record.selection_metric
    first = _scheduled_stages(record)[-1].first  # the last stage selects
    points = [x for x in record.curve if metric in x.validation_metrics and x.step > first]
    if not points or "validation" not in record.scores:
        return
    selected = points[-1] if rule == "last" else max(points, key=lambda p: _merit(record, p))
    if record.selected_step is None:
        remedy = "run it again to name the checkpoint"
        yield file.finding("selected_step", "none", selected.step, remedy, "warning")
    else:
        yield from file.compare("selected_step", record.selected_step, selected.step)
    value = record.scores["validation"].metrics.get(metric, math.nan)
    in_curve = selected.validation_metrics[metric]
    if not is_close(value, in_curve):
        is_near = math.isclose(value, in_curve, rel_tol=_MAX_REEVALUATION)
        field, expected = f"scores.validation.metrics.{metric}", f"{in_curve}, in the curve"
        yield file.finding(field, value, expected, severity="warning" if is_near else "error")


def _merit(record: Result, point: Point) -> tuple[float, float]:
    """Return what selection maximizes: the metric of the curve, then the negative loss."""
    metric = get_metric(record.selection_metric)
    value = metric.signed(point.validation_metrics[metric.name])
    return value, -(point.validation_loss or 0.0)


def _check_tuning(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require a complete search on validation that selected this configuration."""
    record, tuning = file.record, file.record.tuning
    if tuning is None:
        return
    yield from file.compare("selected_on", record.selected_on, "validation", RUN_AGAIN)
    config = flatten(record.config) | {SEED: record.seed}
    for name, value in tuning.chosen.items():
        yield from file.compare(f"tuning.chosen.{name}", value, config.get(name))
    combinations = {_key(trial.changes, trial.seed) for trial in tuning.trials}
    size = math.prod(map(len, tuning.grid.values()))
    yield from file.compare("tuning.trials", len(combinations), size)
    key = record.config_hash, record.seed
    matches = [x for x in tuning.trials if (x.config_hash, x.seed) == key]
    validation = record.scores.get("validation")
    if [trial.metrics for trial in matches] != [validation and validation.metrics]:
        expected = f"a trial {record.config_hash} with seed {record.seed} and these metrics"
        yield file.finding("scores.validation", validation, expected)
    elif matches[0] not in (best := _best_trials(record, tuning)):
        expected = f"{[trial.changes for trial in best[:1]]}, the best on validation"
        yield file.finding("tuning.chosen", tuning.chosen, expected)


def _best_trials(record: Result, tuning: Tuning) -> list[TrialRecord]:
    """Return the trials of the best combination, or the best trial, by the rule of the search."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in tuning.trials:
        seed = trial.seed if tuning.rule.startswith("best-run") else None
        groups.setdefault(_key(trial.changes, seed), []).append(trial)

    def merit(group: list[TrialRecord]) -> tuple[float, float]:
        values = [trial.metrics[record.metric] for trial in group if trial.metrics]
        losses = [trial.loss or 0.0 for trial in group]
        return record.main.signed(statistics.fmean(values)), -statistics.fmean(losses)

    complete = [group for group in groups.values() if all(trial.metrics for trial in group)]
    return max(complete, key=merit, default=[])


def _key(changes: dict[str, Any], seed: int | None) -> str:
    return json.dumps([changes, seed], sort_keys=True)


def _check_speed(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require a whole number of trained tokens, and less waiting for data than training."""
    record, tokens = file.record, file.record.tokens_per_second * file.record.seconds
    if not is_whole(tokens):
        expected = "a whole number of tokens in the seconds of training"
        yield file.finding("tokens_per_second", f"{tokens:,.6f}", expected)
    if not 0 <= (record.data_wait_seconds or 0.0) <= record.seconds:
        expected = f"0 to {record.seconds}, the seconds of training"
        yield file.finding("data_wait_seconds", record.data_wait_seconds, expected)


RULES = (check_budget, _check_curve, _check_selection, _check_tuning, _check_speed)
