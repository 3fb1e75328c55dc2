"""Records with the fields that a test sets and plausible values elsewhere."""

import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console

from longspan.config import (
    Budget,
    MechanismConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
    flatten,
)
from longspan.metrics import get_metric
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.terminal import terminal
from longspan.report.statistics.intervals import interval
from longspan.report.statistics.noise import measure_noise
from longspan.report.tables.published import PublishedFigure
from longspan.report.tables.table import Table
from longspan.results import (
    Analysis,
    ContextLoss,
    ContextUse,
    CrossEvaluation,
    DocumentRow,
    DocumentScores,
    EfficiencyRecord,
    ExampleScores,
    Failure,
    Inference,
    Measurement,
    Point,
    PositionLoss,
    Result,
    Rollout,
    Score,
    pack_scores,
    quantize,
)
from longspan.results.analysis import AttentionSpans, Span, Spectra
from longspan.results.efficiency import Limits, Sizes

MAJORITY = {"listops": 0.1745, "text": 0.5, "image": 0.1, "path_x": 0.5}
CHANCE = {"listops": 0.1, "text": 0.5, "image": 0.1, "path_x": 0.5}
OPTIONS = {"block": 64, "heads": 4}
STEPS = Budget()
MODEL = ModelConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    classifier_hidden_size=128,
)


def digest(own: RunConfig) -> str:
    """Return a hash of a configuration, whose names need not be registered."""
    text = json.dumps(flatten(own), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def config(
    mechanism: str = "bigbird",
    task: str = "listops",
    options: dict[str, Any] = OPTIONS,
    version: int = 1,
    budget: Budget = STEPS,
    **training: Any,
) -> RunConfig:
    recipe = {
        "steps": 500,
        "batch_size": 32,
        "learning_rate": 1e-4,
        "warmup_steps": 100,
        "schedule": "linear",
        "evaluate_every": 50,
    }
    return RunConfig(
        task=TaskConfig(name=task, version=version, options={"max_length": 2000}),
        mechanism=MechanismConfig(name=mechanism, options=options),
        model=MODEL,
        training=TrainingConfig(**{**recipe, **training}),
        budget=budget,
    )


def record(
    mechanism: str = "bigbird",
    task: str = "listops",
    seed: int = 0,
    score: float = 0.36,
    *,
    metric: str = "accuracy",
    options: dict[str, Any] = OPTIONS,
    version: int = 1,
    budget: Budget = STEPS,
    training: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    **changes: Any,
) -> Result:
    """Return a record; overrides of the protocol change its hash alone."""
    own = config(mechanism, task, options, version, budget, **(training or {}))
    chance = CHANCE.get(task, 0.1) if metric == "accuracy" else None
    majority = MAJORITY.get(task, 0.1) if metric == "accuracy" else None
    result = Result(
        protocol="lra-small",
        config=own,
        overrides=overrides or {},
        seed=seed,
        config_hash=digest(own) if not overrides else digest(own)[:-1] + "x",
        device="cpu",
        versions={"longspan": "0.1.0", "torch": "2.13.0"},
        git_commit="0123456789abcdef0123456789abcdef01234567",
        source_files={},
        changed_files={},
        added_files={},
        date="2026-03-01T12:00:00Z",
        data_source=f"generated {task}, seed 0",
        data_checksum="5f" * 32,
        metric=metric,
        chance=chance,
        selected_on="validation",
        selected_step=500,
        resolved_budget=None,
        tuning=None,
        family=None,
        backend_used="torch",
        num_parameters=214_154,
        full_num_parameters=214_154,
        flops=1_234_567_890,
        attended_pairs=400_000,
        length=2000,
        scores=scores(score, majority, metric=metric),
        rules={},
        example_scores=None,
        slices={},
        alarms=[],
        steps=500,
        curve=curve(score, metric=metric),
        seconds=812.4,
        data_wait_seconds=4.062,
        tokens_per_second=52_345.6789,
        peak_memory=1_610_612_736,
        inference=Inference(examples_per_second=321.0987, peak_memory=268_435_456),
        world_size=1,
        parallelism="none",
        dtype="float32",
    )
    return dataclasses.replace(result, **changes)


def scores(
    score: float, majority: float | None, examples: int = 2000, metric: str = "accuracy"
) -> dict[str, Score]:
    better = score + 0.01 if get_metric(metric).higher_is_better else score - 0.01
    parts = {"validation": (better, 1.7, 1000), "test": (score, 1.8, examples)}
    return {
        split: Score(
            metrics={metric: value},
            loss=loss,
            num_examples=number,
            num_targets=number,
            majority_baseline=majority,
        )
        for split, (value, loss, number) in parts.items()
    }


def with_train(run: Result, score: float, examples: int = 1000) -> Result:
    """Return a record with a score on a sample of the training split."""
    sampled = dataclasses.replace(
        run.scores["test"], metrics={run.metric: score}, num_examples=examples
    )
    return dataclasses.replace(run, scores={**run.scores, "train": sampled})


def cross_evaluation(run: Result, score: float, **changes: Any) -> CrossEvaluation:
    """Return an evaluation of the model of a run on Path-X."""
    found = CrossEvaluation(
        protocol=run.protocol,
        mechanism=run.mechanism,
        config_hash=run.config_hash,
        seed=run.seed,
        trained_on=run.config.task,
        trained_length=run.length,
        evaluated_on=TaskConfig(name="path_x", version=1, options={"resolution": 128}),
        length=16_384,
        data_source="generated path_x, seed 0",
        data_checksum="6e" * 32,
        split="test",
        available=20_000,
        metric="accuracy",
        chance=0.5,
        score=Score(
            metrics={"accuracy": score},
            loss=0.7,
            num_examples=400,
            num_targets=400,
            majority_baseline=0.51,
        ),
        inference=Inference(examples_per_second=3.5, peak_memory=2**20),
        batch_size=4,
        device="cpu",
        dtype="float32",
        versions={"longspan": "0.1.0"},
        git_commit=None,
        date="2026-03-02T12:00:00Z",
    )
    return dataclasses.replace(found, **changes)


def curve(
    score: float, points: int = 10, steps: int = 500, metric: str = "accuracy"
) -> list[Point]:
    start = 0.1 if get_metric(metric).higher_is_better else 8.0
    return [
        Point(
            step=steps * i // points,
            seconds=80.0 * i,
            learning_rate=1e-4,
            train_loss=None if i == 0 else 2.3 - 0.6 * (1 - math.exp(-i / 4)),
            validation_loss=2.2,
            train_metrics={},
            validation_metrics={metric: start + (score - start) * (1 - math.exp(-i / 3))},
        )
        for i in range(points + 1)
    ]


def record_of_statistics(
    mechanism: str,
    seed: int,
    statistics: Any,
    task: str = "listops",
    metric: str = "accuracy",
    **changes: Any,
) -> Result:
    """Return a record with per-example statistics of its metric, (N, K)."""
    array = np.asarray(statistics, float)
    value = get_metric(metric).aggregate(array)
    majority = 0.1 if metric == "accuracy" else None
    return record(
        mechanism,
        task,
        seed,
        value,
        metric=metric,
        scores=scores(value, majority, len(array), metric),
        example_scores=pack_scores(metric, array),
        **changes,
    )


def record_of_answers(
    mechanism: str, seed: int, right: Any, task: str = "listops", **changes: Any
) -> Result:
    """Return a record with one correct or wrong answer per example."""
    correct = np.asarray(right, float)
    return record_of_statistics(
        mechanism, seed, np.stack([correct, np.ones_like(correct)], 1), task, **changes
    )


def with_second_seed(runs: Iterable[Result]) -> list[Result]:
    """Return each run, and again with the next seed: one answer differs, or 0.1 % of a score."""
    return [one for run in runs for one in (run, _next_seed(run))]


def _next_seed(run: Result) -> Result:
    value, packed = run.score() * 1.001, run.example_scores
    if packed is not None:
        statistics = np.array(packed.unpack(), float)
        if run.metric == "accuracy":
            statistics[-1, 0] = 1 - statistics[-1, 0]
        else:
            statistics[:, 0] *= 1.001
        value, packed = run.main.aggregate(statistics), pack_scores(run.metric, statistics)
    changed = {
        split: dataclasses.replace(part, metrics={run.metric: value})
        for split, part in run.scores.items()
    }
    return dataclasses.replace(
        run, seed=run.seed + 1, scores=changed, example_scores=packed, date="2026-03-01T13:00:00Z"
    )


def damaged_example_scores() -> ExampleScores:
    return ExampleScores(metric="accuracy", dtype="uint16", columns=2, data="@@")


def failure(
    mechanism: str = "bigbird",
    task: str = "listops",
    seed: int = 2,
    kind: str = "memory",
    options: dict[str, Any] = OPTIONS,
    **changes: Any,
) -> Failure:
    run = record(mechanism, task, seed, options=options)
    shared = {field.name for field in dataclasses.fields(Failure)} - {"kind", "reason", "step"}
    values = {name: getattr(run, name) for name in shared}
    values |= {"kind": kind, "reason": "set training.gradient_accumulation_steps=4", "step": 7}
    return Failure(**{**values, **changes})


def analysis(run: Result, layers: tuple[float, ...] = (10.0, 15.0), **changes: Any) -> Analysis:
    """Return an analysis of the trained model of a run."""
    deep = [Span(mean=mean, deviation=0.5) for mean in layers]
    spans = AttentionSpans(
        samples=16,
        available=1000,
        mean_length=90.0,
        uniform=30.0,
        negative=0.0,
        mean=Span(mean=sum(layers) / len(layers), deviation=1.0),
        layers=deep,
        heads=[[layer] for layer in deep],
    )
    found = Analysis(
        protocol=run.protocol,
        task=run.task,
        mechanism=run.mechanism,
        seed=run.seed,
        config_hash=run.config_hash,
        split="validation",
        spans=spans,
        spectra=Spectra(samples=8, heads=[[[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]] for _ in layers]),
        rollouts=[],
        refusal=None,
        positions=None,
        tokens=None,
        device="cpu",
        versions={"longspan": "0.1.0"},
        date="2026-03-02T12:00:00Z",
    )
    return dataclasses.replace(found, **changes)


def context_use(run: Result, losses: tuple[float, ...] = (1.5, 1.2, 1.0), **changes) -> ContextUse:
    """Return the use of contexts of 32 tokens and more by the model of a run."""
    found = ContextUse(
        protocol=run.protocol,
        task=run.task,
        mechanism=run.mechanism,
        seed=run.seed,
        config_hash=run.config_hash,
        split="validation",
        segment=4,
        positions=[
            PositionLoss(first=0, last=0, targets=9, fresh=2.0, kept=1.5),
            PositionLoss(first=1, last=1, targets=9, fresh=1.75, kept=1.25),
            PositionLoss(first=2, last=3, targets=15, fresh=1.5, kept=1.125),
        ],
        blocks=20,
        available=400,
        contexts=[
            ContextLoss(context=32 * 2**i, loss=x, difference=x - losses[-1], low=-0.25, high=0.5)
            for i, x in enumerate(losses)
        ],
        tolerance=0.01,
        effective=32 * 2 ** (len(losses) - 1),
        parts=[{"compressed memory": 0.125, "memory": 0.25, "segment": 0.625}, {}],
        buckets=[
            {
                "compressed memory": [0.03125, 0.09375],
                "memory": [0.125, 0.125],
                "segment": [0.5, 0.125],
            },
            {},
        ],
        part_windows=7,
        device="cpu",
        versions={"longspan": "0.1.0"},
        date="2026-03-02T12:00:00Z",
    )
    return dataclasses.replace(found, **changes)


BINS = {
    "local": [[0.55, 0.5, 20], [0.95, 0.9, 40]],
    "TF-IDF": [[0.65, 0.75, 60]],
    "shares of the classes": [],
}


def document_row(name, value, **options):
    metrics = {"accuracy": value, "auc": None if name not in ("local", "TF-IDF") else 0.75}
    fields = {"options": options, "metrics": metrics, "seconds": 1234.5, "calibration": BINS[name]}
    return DocumentRow(name=name, **fields)


def document_scores(run, value=0.8, **changes):
    """Return the scores of a run on 60 documents, beside TF-IDF and a constant."""
    others = [document_row("TF-IDF", 0.7, C=1), document_row("shares of the classes", 0.5)]
    fields = {
        **{"protocol": run.protocol, "mechanism": run.mechanism, "config_hash": run.config_hash},
        **{"seed": run.seed, "task": run.task, "split": "test", "documents": 60},
        **{"rows_sha256": "1" * 64, "covered_documents": 1.0, "covered_tokens": 1.0},
        **{"class_weights": "none", "threshold": 0.5, "date": "2026-01-01T00:00:00+00:00"},
        **{"rows": [document_row("local", value, length=512), *others], "p_value": 0.5},
        "fewer_errors": [3, 2],
    }
    return DocumentScores(**{**fields, **changes})


def interval_of(values, metric, num_examples, sample=None, pooled=None):
    """Return the 95 % interval of the mean score of some seeds."""
    noise = measure_noise(values, metric, num_examples, sample, pooled)
    return interval(noise, metric, num_examples, sample)


def published(**changes: Any) -> PublishedFigure:
    """Return a published accuracy of `full` on ListOps."""
    fields = {"task": "listops", "mechanism": "full", "value": 0.3637, "quantity": "accuracy"}
    return PublishedFigure(**{**fields, "protocol": "lra-paper", "source": "table 1", **changes})


def rollout(shares: Any, **changes: Any) -> Rollout:
    """Return the shares of the tokens or pixels of an example."""
    fields = {
        "split": "validation",
        "row": 3,
        "part": 1,
        "start": "the CLS token",
        "label": "cat",
        "prediction": "<dog>",
        "side": None,
        "levels": None,
        "text": None,
    }
    return Rollout(**{**fields, **changes}, shares=quantize(shares, 16))


def measurement(mechanism: str, length: int, **changes: Any) -> Measurement:
    """Return a training step of two sequences by a model; a median was measured."""
    fields = {"scope": "model", "work": "training", "batch_size": 2, "precision": "float32"}
    state = {"state": "measured"} if "median" in changes else {}
    return Measurement(
        **{**fields, "padding": 0.0, **state, **changes, "mechanism": mechanism, "length": length}
    )


def efficiency(measurements: Iterable[Measurement], **changes: Any) -> EfficiencyRecord:
    """Return a record of measurements of models."""
    record = EfficiencyRecord(
        suite="lra-speed",
        sizes=Sizes(hidden_size=64, heads=4),
        options={},
        limits={"float32": Limits(flops_per_second=1e11, bytes_per_second=1e10)},
        measurements=list(measurements),
        device="A processor",
        threads=2,
        versions={"torch": "2.13.0"},
        git_commit=None,
        date="2026-01-01T00:00:00+00:00",
    )
    return dataclasses.replace(record, **changes)


def print_terminal(
    tables: Iterable[Table],
    width: int = 80,
    *,
    is_wide: bool = False,
    has_legend: bool = False,
    **options: Any,
) -> str:
    """Return the text of tables in a terminal."""
    console = Console(width=width, record=True, file=io.StringIO(), **options)
    for part in terminal(tables, is_wide=is_wide, has_legend=has_legend):
        console.print(part, crop=False)
    return console.export_text(styles=bool(options))


def lines(table: Table) -> list[dict[str, Any]]:
    """Return the values of a table by row, under the keys of its columns."""
    return [
        dict(zip(table.keys, (entry.value for entry in row), strict=True)) for row in table.rows
    ]


def build_leaderboard(results, failures=()):
    """Return the only leaderboard of records of one protocol under one budget."""
    (board,) = build_leaderboards(results, failures)
    return board
