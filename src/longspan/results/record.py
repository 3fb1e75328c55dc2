"""Records of runs: a result with its scores, or a failure with its reason."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from longspan.config import RunConfig, replace_fields, settings
from longspan.files import write_json
from longspan.metrics import Metric, get_metric
from longspan.results.packing import ExampleScores

SCHEMA = 7
BASELINE = "full"  # mechanism that the others are compared with
FAILED = ".failed.json"  # suffix of the file of a failure
ROW = "row"  # override that names a reference row of the protocol
VARIANT = "variant"  # override that names a variant: a mechanism with other options
PARAMETER_TOLERANCE = 0.10  # largest share by which comparable models differ


def find_named_row(overrides: Mapping[str, Any]) -> str | None:
    """Return the reference row or variant that overrides name, or None."""
    name = overrides.get(ROW, overrides.get(VARIANT))
    return None if name is None else str(name)


def record_stem(row_name: str, config_hash: str, seed: int) -> str:
    """Return the name of a record's file without its suffix."""
    return f"{row_name}-{config_hash}-{seed}"


@settings
class Score:
    """Scores on one split: over all of its examples, or over a sample of them.

    Attributes:
        metrics: value of each metric by name, the main metric first.
        loss: mean training loss over the targets, in nats.
        num_examples: scored examples.
        num_targets: scored targets; one per example unless tokens are scored.
        majority_baseline: main metric of always predicting the most frequent class; None where
            that is undefined.
    """

    metrics: dict[str, float]
    loss: float
    num_examples: int
    num_targets: int
    majority_baseline: float | None = None


@settings
class Inference:
    """Cost of an evaluation: forward passes without gradients, in evaluation batches.

    Where texts are generated, the time covers their generation too.

    A batch is run before the clock starts. The time covers the forward passes alone, neither
    waiting for batches nor computing metrics.

    Attributes:
        examples_per_second: examples over the seconds of their forward passes; where documents are
            ranked, these count too.
        peak_memory: bytes above the memory in use before, which holds the parameters; None where
            the system does not count them.
    """

    examples_per_second: float
    peak_memory: int | None


@settings
class DecodingState:
    """State of a causal model between the tokens of one example, in the precision of the run.

    Attributes:
        num_bytes: bytes of all layers before the last token or after it, whichever is larger:
            blocks and segments are dropped at their end.
        grows: whether it grows with the tokens seen.
    """

    num_bytes: int
    grows: bool


@settings
class Slice:
    """Main metric on the test examples with one value of a property, such as depth 3."""

    label: str
    value: float
    num_targets: int


@settings
class Alarm:
    """Warning raised during training."""

    kind: Literal["chance", "diverging", "waiting"]
    step: int
    message: str


@settings
class Point:
    """Point of the learning curve; training values are means since the previous point."""

    step: int
    seconds: float  # training time so far, without evaluation
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    train_metrics: dict[str, float]
    validation_metrics: dict[str, float]


@settings
class ResolvedBudget:
    """Effect of a budget other than steps on a configuration.

    Attributes:
        changes: configuration fields that the budget changed, by dotted name, as they ran.
        measurements: figures that decided them, such as seconds_per_step.
    """

    changes: dict[str, Any]
    measurements: dict[str, Any]


@settings
class TrialRecord:
    """One trial of a hyperparameter search, scored on validation."""

    changes: dict[str, Any]
    seed: int
    config_hash: str
    metrics: dict[str, float] | None  # validation metrics; None for a failed trial
    loss: float | None
    failure: str | None  # kind of failure
    # Test metrics, which no selection reads, nor a comparison of searches; None: not scored.
    test_metrics: dict[str, float] | None = dataclasses.field(default=None, compare=False)


@settings
class Tuning:
    """Hyperparameter search that selected a configuration, on validation alone."""

    rule: str
    grid: dict[str, list[Any]]
    chosen: dict[str, Any]
    trials: list[TrialRecord]


@settings
class SourceFile:
    """File that defines a part of a run.

    Attributes:
        name: `longspan/...` in the package, else the name without its folder; None: no file, or
            not recorded.
        sha256: of its content; None: the part has no file, as in a notebook.
    """

    name: str | None
    sha256: str | None

    @property
    def is_external(self) -> bool:
        """True outside the package, so that the commit says nothing about it."""
        return self.name is None or "/" not in self.name

    def __str__(self) -> str:
        """Return the name and the beginning of the sha256."""
        if self.sha256 is None:
            return "no file"
        return f"{self.name or 'a file'} {self.sha256[:8]}"


@settings
class CodeVersion:
    """Code that trained a run, or a part of it; the fields are those of `RunRecord`."""

    versions: dict[str, str]
    git_commit: str | None
    source_files: dict[str, SourceFile] | None
    changed_files: dict[str, str | None] | None
    added_files: dict[str, str] | None

    @property
    def own_files(self) -> list[str]:
        """Files that define the run and that the commit lacks, with the beginning of their sha256.

        Empty where they were not recorded.
        """
        added = self.added_files or {}
        sources = (self.source_files or {}).values()
        names = (str(x) for x in sources if x.is_external or x.name in added)
        return list(dict.fromkeys(names))

    @property
    def name(self) -> str:
        """Commit, or the version of longspan outside a working tree, and `own_files`."""
        version = f"longspan {self.versions.get('longspan', 'of unknown version')}"
        return ", ".join([self.git_commit or version, *self.own_files])

    def name_before(self, later: "CodeVersion") -> str:
        """Return the name, with the versions and changed files that differ from later code."""
        versions = self.versions.items() - later.versions.items()
        before, after = self.changed_files or {}, later.changed_files or {}
        edited = [x for x in {**before, **after} if before.get(x, x) != after.get(x, x)]
        parts = [*(f"{name} {x}" for name, x in sorted(versions)), *sorted(edited)]
        return f"{self.name} ({', '.join(parts)})" if parts else self.name


@settings
class StartRecord:
    """Checkpoint that a run has started from.

    Attributes:
        source: folder of the checkpoint, below the folder of results for a run's.
        sha256: of its weights.
        new: names of weights of the model that the checkpoint lacks, initialized as without it.
        started: weights that it lacks and that began as copies of others: of which ones, by name.
        dropped: names of weights of the checkpoint that the model lacks.
        changed: fields that the checkpoint's configuration has with another value, as
            `[of the checkpoint, of the model]`.
        positions: extension of the learned positions, such as "tiled, 256 to 1,024 rows"; None:
            they are those of the checkpoint.
    """

    source: str
    sha256: str
    new: list[str]
    dropped: list[str]
    changed: dict[str, list]
    positions: str | None = None
    started: dict[str, str] = dataclasses.field(default_factory=dict)


@settings
class RunRecord:
    """Identity of a run: the fields that results and failures share.

    Attributes:
        git_commit: commit of the working tree of longspan, marked if dirty; None outside one.
        source_files: files of the mechanism, of the task, and of kernels, protocols and plug-ins
            from outside the package, by part; in older records those from outside the package
            alone. None: not recorded.
        changed_files: sha256 of the Python files of the package that differ from the commit, by
            name; None for a deleted file. None: not recorded, or no commit.
        added_files: sha256 of those that the commit lacks, tracked or not; None as above.
        date: ISO 8601, UTC.
    """

    title: ClassVar[str] = "a longspan record"
    remedy: ClassVar[str] = "read it with the version of longspan that wrote it, or run it again"
    protocol: str
    config: RunConfig
    overrides: dict[str, Any]  # fields that differ from the protocol's own, by dotted name
    seed: int
    config_hash: str
    device: str
    versions: dict[str, str]
    git_commit: str | None
    source_files: dict[str, SourceFile] | None
    changed_files: dict[str, str | None] | None
    added_files: dict[str, str] | None
    date: str

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.config.task.name

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""
        return self.config.mechanism.name

    @property
    def reference(self) -> str | None:
        """Name of the reference row; None for a row of the mechanism."""
        name = self.overrides.get(ROW)
        return None if name is None else str(name)

    @property
    def named_row(self) -> str | None:
        """Name of the reference row or variant; None for a row of the mechanism."""
        return find_named_row(self.overrides)

    @property
    def row_name(self) -> str:
        """Name of the reference row or variant, else of the mechanism."""
        return self.named_row or self.mechanism

    @property
    def changes(self) -> dict[str, Any]:
        """Overrides of the protocol without the name of the row, which is part of it."""
        return {name: x for name, x in self.overrides.items() if name not in (ROW, VARIANT)}

    @property
    def own_files(self) -> list[str]:
        """Files that define the run and that the commit lacks, as of `CodeVersion`."""
        return self.code_version.own_files

    @property
    def code_version(self) -> CodeVersion:
        """Code that wrote the record."""
        names = (field.name for field in dataclasses.fields(CodeVersion))
        return CodeVersion(**{name: getattr(self, name) for name in names})

    @property
    def code(self) -> str:
        """Name of the code; that of a resumed result names earlier code, too."""
        return self.code_version.name

    @property
    def stem(self) -> str:
        """Name of the record's file without its suffix."""
        return record_stem(self.row_name, self.config_hash, self.seed)

    @property
    def filename(self) -> str:
        """Name of the file inside `<protocol>/<task>/`."""
        return f"{self.stem}.json"

    def save(self, results_dir: Path) -> Path:
        """Write the record below a folder of results, atomically; return its path."""
        return write_record(self, results_dir / self.protocol / self.task / self.filename)


@settings
class Result(RunRecord):
    """Record of a finished run: its configuration, scores and cost."""

    data_source: str  # origin of the examples, for readers
    data_checksum: str  # sha256 over the built splits
    metric: str  # name of the main metric
    chance: float | None  # expected main metric of a uniform guess; None: undefined
    selected_on: Literal["validation", "test"]  # split that selected the checkpoint
    selected_step: int | None  # step of the scored checkpoint; None: not recorded
    resolved_budget: ResolvedBudget | None
    tuning: Tuning | None
    family: str | None  # of the mechanism; None: not recorded
    backend_used: str
    num_parameters: int
    full_num_parameters: int | None  # of the same model with `full`; None: not recorded
    flops: int  # forward, one example of `length` tokens; multiply and add count as two
    # Query-key pairs per head and example, mean over heads and layers; like `flops` without those
    # of a task's global tokens.
    attended_pairs: int | None
    length: int  # maximum number of tokens of an example
    # By split, of the selected checkpoint, without dropout. "train" is scored on a sample; it is
    # absent where that was not done.
    scores: dict[str, Score]
    # Main metric of each rule, by split and name; None: not recorded.
    rules: dict[str, dict[str, float]] | None
    example_scores: ExampleScores | None  # main metric on test; None: not recorded
    slices: dict[str, list[Slice]]  # of the test examples, by property
    alarms: list[Alarm]
    steps: int
    curve: list[Point]
    seconds: float  # training time, without evaluation
    data_wait_seconds: float | None  # part of `seconds`; None: not recorded
    tokens_per_second: float  # training, without padding
    peak_memory: int | None  # of training, bytes above the pre-run baseline
    inference: Inference | None  # None: not measured
    world_size: int
    parallelism: str  # none, ddp, fsdp or context
    dtype: str
    start: StartRecord | None = None  # checkpoint that it started from; None: random initialization
    decoding_state: DecodingState | None = None  # None: the model is not causal, or not recorded
    # Code of earlier parts of a run that was resumed with other code, oldest first.
    earlier_code: list[CodeVersion] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA

    @property
    def earlier_names(self) -> str:
        """Names of `earlier_code`, oldest first; empty where one program trained the whole run."""
        return "; ".join(one.name_before(self.code_version) for one in self.earlier_code)

    @property
    def code(self) -> str:
        """Name of the code, and of the code that trained earlier parts of the run."""
        begun = f", begun with {self.earlier_names}" if self.earlier_code else ""
        return self.code_version.name + begun

    @property
    def main(self) -> Metric:
        """Main metric."""
        return get_metric(self.metric)

    @property
    def selection_metric(self) -> str:
        """Name of the metric of the learning curve: the main one, if it was computed in training.

        Where texts are generated at the end alone, another metric selects the checkpoint.
        """
        names = [name for point in self.curve for name in point.validation_metrics]
        return self.metric if self.metric in names or not names else names[0]

    @property
    def effective_config(self) -> RunConfig:
        """Configuration that ran: the requested one with the changes of its budget."""
        if self.resolved_budget is None:
            return self.config
        return replace_fields(self.config, self.resolved_budget.changes)

    @property
    def scored_split(self) -> Literal["test", "validation"] | None:
        """Split of the main score: test, or validation without one; None: nothing is held out."""
        if "test" in self.scores:
            return "test"
        return "validation" if "validation" in self.scores else None

    def score(self, split: str = "test") -> float:
        """Return the main metric on a split."""
        return self.scores[split].metrics[self.metric]


@settings
class Failure(RunRecord):
    """Record of a run that ended without a score."""

    # died: the process exited without an error; source: the run that it starts from failed
    kind: Literal["memory", "diverged", "died", "source"]
    reason: str  # message with the remedy
    step: int | None  # last known step
    schema: int = SCHEMA

    @property
    def filename(self) -> str:
        """Name of the file inside `<protocol>/<task>/`."""
        return f"{self.stem}{FAILED}"


def write_record(record: RunRecord, path: Path) -> Path:
    """Write a record to a file, atomically; return its path."""
    write_json(path, dataclasses.asdict(record))
    return path


@runtime_checkable
class Counted(Protocol):
    """Run with a parameter count: a result, or a planned run."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""

    @property
    def full_num_parameters(self) -> int | None:
        """Parameters of the same model with `full`; None: not recorded."""


def parameter_excess(run: Counted) -> float | None:
    """Return the share of parameters beyond those of the model with `full`; None: not recorded."""
    if not run.full_num_parameters:
        return None
    return run.num_parameters / run.full_num_parameters - 1


def exceeds_parameter_tolerance(run: Counted) -> bool:
    """Return whether the parameter count is known to differ by more than 10 % from `full`."""
    excess = parameter_excess(run)
    return excess is not None and abs(excess) > PARAMETER_TOLERANCE
