"""One run: open the task, build the model, train, score, write the record."""

import dataclasses
import datetime
import importlib.metadata
import platform
import statistics
import subprocess
from pathlib import Path
from typing import Any, cast

import torch

from longspan import __version__
from longspan.arena.experiment import BASELINE, Experiment
from longspan.attention import Attention, options_of
from longspan.data.cache import default_folder
from longspan.errors import RunError
from longspan.files import REMEDY, read_json, sweep, write_json
from longspan.models import (
    LongspanConfig,
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanPreTrainedModel,
    flops,
    parameters,
)
from longspan.results import Result, Slice, load, pack
from longspan.tasks import Task
from longspan.tasks.base import Split
from longspan.training import Outcome, Watcher, fit
from longspan.training.checkpoint import Checkpoints
from longspan.training.evaluate import Evaluation

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
DTYPES = {"no": "float32", "bf16": "bfloat16 mixed", "fp16": "float16 mixed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run reads and writes."""

    runs: Path = Path("runs")
    cache: Path = dataclasses.field(default_factory=default_folder)
    data: Path | None = None  # folder of source files, as IMDB's
    device: str | None = None  # "cpu", or None for the accelerator that is there

    def record(self, experiment: Experiment) -> Path:
        """The file of an experiment's result."""
        folder = self.runs / experiment.protocol / experiment.task.name
        return folder / f"{experiment.name}.json"

    def work(self, experiment: Experiment) -> Path:
        """The folder of an experiment's checkpoints."""
        return self.record(experiment).parent / "work" / experiment.name


def model_config(experiment: Experiment, task: Task) -> LongspanConfig:
    """The configuration of an experiment's model, for a task that need not be open.

    Raises:
        OptionError: a value cannot be used; the message lists every reason.
        UnknownNameError: no such choice or backend (with near names).
    """
    spec = experiment.model
    config = LongspanConfig(
        vocab_size=task.vocabulary,
        input_features=task.features,
        hidden_size=spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        attention_head_size=spec.head_dim,
        intermediate_size=spec.feed_forward,
        classifier_hidden_size=spec.classifier,
        max_position_embeddings=task.length,
        position=spec.position,
        norm=spec.norm,
        pooling=spec.pooling,
        pair_head=spec.pair_head,
        hidden_dropout_prob=spec.dropout,
        attention_dropout=spec.attention_dropout,
        initializer_range=spec.initializer,
        attention=experiment.mechanism,
        attention_options=dict(experiment.options),
        attention_backend=experiment.backend,
    )
    config.num_labels = task.class_count
    return config


def make_model(experiment: Experiment, task: Task) -> LongspanPreTrainedModel:
    """A fresh model for an experiment, its weights drawn from the experiment's seed."""
    config, kind = model_config(experiment, task), model_class(task)
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        return kind(config)


def model_class(task: Task) -> type[LongspanPreTrainedModel]:
    """The head that a task needs."""
    if task.info.per_token:
        return LongspanForTokenClassification
    return LongspanForPairClassification if task.info.pair else LongspanForSequenceClassification


def run(
    experiment: Experiment, task: Task, places: Places, watcher: Watcher | None = None
) -> Result:
    """Run an experiment on its open task, or load its result if it has already ended.

    A run that was interrupted continues from its last checkpoint.

    Raises:
        RunError: the folder belongs to another configuration, or the run cannot go on.
    """
    path, work = places.record(experiment), places.work(experiment)
    if path.exists():
        result = _finished(experiment, task, path)
    else:
        sweep(path)
        _claim(experiment, task, work)
        result = _trained(experiment, task, places, watcher)
        result.save(places.runs)
    # Also when the record is there already: the process may have been killed right after it.
    Checkpoints(work).keep_only_best()
    return result


def _trained(experiment: Experiment, task: Task, places: Places, watcher: Watcher | None) -> Result:
    work = places.work(experiment)
    model = make_model(experiment, task)
    try:
        outcome = fit(
            model,
            task,
            experiment.train,
            seed=experiment.seed,
            folder=work,
            device=places.device,
            watcher=watcher,
        )
    except OSError as error:
        raise RunError(f"cannot write below {work}: {error.strerror or error}; {REMEDY}") from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"{experiment.name} needs more memory than the device has; raise train.accumulate "
            "or set train.gradient_checkpointing=true"
        ) from error
    return _result(experiment, task, model, outcome)


def _finished(experiment: Experiment, task: Task, path: Path) -> Result:
    """The record of a run that has ended, after a look whether it is this one."""
    result = load(path)
    if result.config_hash != experiment.hash or result.seed != experiment.seed:
        raise RunError(
            f"{path} records configuration {result.config_hash} with seed {result.seed}, expected "
            f"{experiment.hash} with {experiment.seed}; move it away or choose another --runs"
        )
    if reason := other_data(result, task, path):
        raise RunError(f"{reason} or choose another --runs")
    return result


def other_data(result: Result, task: Task, path: Path) -> str | None:
    """Why the open task cannot stand beside a record, when it holds other data; else None."""
    if result.data_checksum == task.checksum:
        return None
    return (
        f"{path.name} was scored on data {result.data_checksum[:12]}, here is "
        f"{task.checksum[:12]}; pass the same source with --data"
    )


def _claim(experiment: Experiment, task: Task, work: Path) -> None:
    """Write the configuration into the run's folder, or compare it with the one there."""
    path, config = work / "experiment.json", {**experiment.config(), "data": task.checksum}
    sweep(path)
    if not path.exists():
        write_json(path, config)
        return
    there = read_json(path)
    here = _plain(config)
    if there != here:
        names = sorted(_differing(there, here))
        raise RunError(
            f"{work} was started with another configuration ({', '.join(names)} differ); "
            "move it away or choose another --runs"
        )


def _plain(config: Any) -> Any:
    """As JSON reads it back: tuples are lists."""
    if isinstance(config, dict):
        return {name: _plain(value) for name, value in config.items()}
    return [_plain(value) for value in config] if isinstance(config, tuple | list) else config


def _differing(a: Any, b: Any, name: str = "") -> list[str]:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return [] if a == b else [name]
    keys = sorted({*a, *b})
    return [d for k in keys for d in _differing(a.get(k), b.get(k), f"{name}.{k}".lstrip("."))]


def _result(
    experiment: Experiment, task: Task, model: LongspanPreTrainedModel, outcome: Outcome
) -> Result:
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    length, train = task.length, experiment.train
    return Result(
        protocol=experiment.protocol,
        overrides=dict(experiment.overrides),
        task=task.info.name,
        task_version=task.info.version,
        task_options=experiment.task.complete(),
        data_source=task.source,
        data_checksum=task.checksum,
        chance=task.chance,
        mechanism=experiment.mechanism,
        options={**options_of(experiment.mechanism), **experiment.options},
        backend=str(attentions[0].ran),
        model=dataclasses.asdict(experiment.model),
        training=_plain(dataclasses.asdict(train)),
        seed=experiment.seed,
        config_hash=experiment.hash,
        parameters=parameters(model),
        full_parameters=_full_parameters(experiment, task),
        budget=experiment.budget.record(train.steps),
        tuning=None,
        flops=_flops(model, task),
        attended_pairs=_attended_pairs(attentions, length),
        length=length,
        selection=_selection(experiment, task),
        selected_step=outcome.best_step,
        scores=outcome.scores,
        answers=pack(outcome.test.right.tolist(), outcome.test.asked.tolist()),
        slices=sliced(task, "test", outcome.test),
        alarms=[],
        steps=outcome.steps,
        curve=outcome.curve,
        seconds=outcome.seconds,
        waiting=outcome.waiting,
        tokens_per_second=outcome.tokens / outcome.seconds,
        peak_memory=outcome.peak_memory,
        device=device_name(outcome.device),
        processes=1,
        parallelism="none",
        dtype=DTYPES[train.precision],
        versions=versions(),
        git_commit=git_commit(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _selection(experiment: Experiment, task: Task) -> str:
    """Which checkpoint was tested, and whether test itself chose it."""
    rule = experiment.train.selection
    return f"{rule} (validation is test)" if task.validation_is_test else rule


def _flops(model: LongspanPreTrainedModel, task: Task) -> int:
    info = task.info
    config = cast(LongspanConfig, model.config)
    return flops(config, task.length, task.class_count, pair=info.pair, per_token=info.per_token)


def _full_parameters(experiment: Experiment, task: Task) -> int:
    """Parameters of the same model with the baseline's attention, counted without making them."""
    config = model_config(dataclasses.replace(experiment, mechanism=BASELINE, options={}), task)
    with torch.device("meta"):
        return parameters(model_class(task)(config))


def sliced(task: Task, split: Split, scored: Evaluation) -> dict[str, list[Slice]]:
    """Scores of the groups of a split; a group without examples is left out."""
    return {
        grouping.name: [
            Slice(
                label=label,
                accuracy=int(scored.right[rows].sum()) / int(scored.asked[rows].sum()),
                examples=int(scored.asked[rows].sum()),
            )
            for number, label in enumerate(grouping.labels)
            if (rows := grouping.group == number).any()
        ]
        for grouping in task.groupings(split)
    }


def _attended_pairs(attentions: list[Attention], length: int) -> int | None:
    """Query-key pairs per head, averaged over heads and layers that differ."""
    means = []
    for attention in attentions:
        pairs = attention.pairs(length)
        if pairs is None:
            return None
        means.append(statistics.fmean(pairs) if isinstance(pairs, tuple) else pairs)
    return round(statistics.fmean(means))


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"longspan": __version__, "python": platform.python_version(), **found}


def device_name(device: str) -> str:
    """The device in words, with the threads of a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


def git_commit() -> str | None:
    """The commit of the library's working tree, or None outside one (marked when it is changed)."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", str(Path(__file__))],
            cwd=here,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() if tracked.returncode == 0 else None
