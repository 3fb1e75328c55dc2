"""Small result and small failure for tests of records."""

import numpy as np

import tiny
from longspan.arena.experiment import hash_config
from longspan.config import (
    Budget,
    MechanismConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
    TrainingConfig,
)
from longspan.results import (
    Alarm,
    Failure,
    Inference,
    Point,
    ResolvedBudget,
    Result,
    Score,
    Slice,
    SourceFile,
    TrialRecord,
    Tuning,
    pack_scores,
)

CONFIG = RunConfig(
    task=TaskConfig(name="listops", version=1, options={"train": 200}),
    mechanism=MechanismConfig(name="local", options={"window": 16, "nested": [1, None]}),
    model=ModelConfig(**tiny.MODEL),
    training=TrainingConfig(
        steps=12,
        batch_size=4,
        learning_rate=0.01,
        warmup_steps=2,
        schedule="linear",
        evaluate_every=4,
    ),
    budget=Budget(kind="memory", limit=1e9),
)
SCORE = Score(
    metrics={"accuracy": 0.5}, loss=1.25, num_examples=40, num_targets=40, majority_baseline=0.2
)
POINT = Point(
    step=4,
    seconds=0.5,
    learning_rate=1e-3,
    train_loss=None,
    validation_loss=2.3,
    train_metrics={},
    validation_metrics={"accuracy": 0.1},
)
TRIAL = TrialRecord(
    changes={"training.learning_rate": 0.01},
    seed=0,
    config_hash="0123456789",
    metrics={"accuracy": 0.1},
    loss=1.0,
    failure=None,
)
IDENTITY = {
    "protocol": "smoke",
    "config": CONFIG,
    "overrides": {"training.steps": 12},
    "seed": 3,
    "config_hash": hash_config(CONFIG),
    "device": "cpu, 1 threads",
    "versions": {"torch": "2.13"},
    "git_commit": None,
    "source_files": {
        "mechanism": SourceFile(name="mine.py", sha256="cd" * 32),
        "task": SourceFile(name=None, sha256=None),
    },
    "changed_files": {"longspan/files.py": "ef" * 32, "longspan/gone.py": None},
    "added_files": {"longspan/attention/mechanisms/mine.py": "01" * 32},
    "date": "2026-01-01T00:00:00+00:00",
}
RESULT = Result(
    **IDENTITY,
    data_source="generated",
    data_checksum="ab" * 32,
    metric="accuracy",
    chance=0.1,
    selected_on="validation",
    selected_step=12,
    resolved_budget=ResolvedBudget(changes={"mechanism.window": 32}, measurements={"bytes": 7}),
    tuning=Tuning(
        rule="mean: ...",
        grid={"training.learning_rate": [0.01, 0.1]},
        chosen={"training.learning_rate": 0.01},
        trials=[TRIAL],
    ),
    family="fixed pattern",
    backend_used="torch",
    num_parameters=100,
    full_num_parameters=100,
    flops=10**13,
    attended_pairs=None,
    length=39,
    scores={"validation": SCORE, "test": SCORE},
    rules={"validation": {"first operator": 0.25}, "test": {"first operator": 0.3}},
    example_scores=pack_scores("accuracy", np.array([[1, 1], [0, 1]])),
    slices={"depth": [Slice(label="3", value=0.5, num_targets=2)]},
    alarms=[Alarm(kind="chance", step=4, message="no better than chance")],
    steps=12,
    curve=[POINT],
    seconds=1.0,
    data_wait_seconds=0.25,
    tokens_per_second=100.1,
    peak_memory=None,
    inference=Inference(examples_per_second=12.5, peak_memory=None),
    world_size=1,
    parallelism="none",
    dtype="float32",
)
FAILURE = Failure(**IDENTITY, kind="diverged", reason="the loss is nan", step=4)


def remove_field(name):
    """Return a function that removes a field of a record."""
    return lambda record: record.pop(name)


def replace_value(value, *path):
    """Return a function that replaces a value of a nested record."""

    def change(record):
        for name in path[:-1]:
            record = record[name]
        record[path[-1]] = value

    return change
