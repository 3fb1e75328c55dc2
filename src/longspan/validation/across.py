"""Rules across results: cost of each configuration, equal data, duplicates and copies."""

import json
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch

from longspan.arena.experiment import hash_config
from longspan.arena.model import forward_flops, model_config, num_parameters, with_baseline
from longspan.arena.record import attended_pairs
from longspan.arena.stages import stages_of
from longspan.config import RunConfig, flatten, replace_fields
from longspan.errors import LongspanError
from longspan.results import Result
from longspan.tasks import Task, build
from longspan.tasks.batching import count_tokens
from longspan.validation.findings import Finding, RecordFile

Files = Sequence[RecordFile[Result]]
Rule = Callable[[Files], Iterable[Finding]]


def check_costs(files: Files) -> Iterator[Finding]:
    """Compute sizes, parameters, FLOPs and token counts again from the configuration."""
    computed: dict[str, dict[str, Any]] = {}
    baselines: dict[str, int] = {}
    for file in files:
        record, config = file.record, file.record.effective_config
        config = replace_fields(config, {"mechanism.backend": "auto"})
        try:
            key = hash_config(config)
            expected = computed.get(key) or _derived_values(config, baselines)
        except LongspanError:
            # The rule for recipes names what is invalid.
            continue
        computed[key] = expected
        for name, value in expected["record"].items():
            # Older records do not have every value.
            if (actual := getattr(record, name, None)) is not None:
                yield from file.compare(name, actual, value)
        least, most = _token_bounds(expected["stages"], record.steps)
        if not least <= _num_tokens(record) <= most:
            actual = f"{_num_tokens(record):,} tokens in the seconds of training"
            yield file.finding("tokens_per_second", actual, f"{least:,} to {most:,}")


def _derived_values(config: RunConfig, baselines: dict[str, int]) -> dict[str, Any]:
    """Compute the values of a configuration; `baselines` keeps the parameters of `full` by hash."""
    task = build(config.task.name, config.task.options)
    baseline = with_baseline(config)
    if (key := hash_config(baseline)) not in baselines:
        baselines[key] = num_parameters(baseline, task)
    with torch.device("meta"):
        model = task.head(model_config(config, task))
    record = {
        "length": task.length,
        "chance": task.chance,
        "selected_on": "test" if task.validation_is_test else "validation",
        "num_parameters": model.num_parameters(only_trainable=True),
        "full_num_parameters": baselines[key],
        "flops": forward_flops(config, task),
        "attended_pairs": attended_pairs(model, task.length),
    }
    return {"record": record, "stages": list(_stage_tokens(config, task))}


def _stage_tokens(config: RunConfig, task: Task) -> Iterator[tuple[int, int, int]]:
    """Yield the steps of each stage, and the fewest and the most tokens of one of them."""
    for stage, stage_task in stages_of(config, task):
        longest = count_tokens(stage_task.input_shapes)
        shortest, batch = longest if stage_task.image_side else 1, stage.training.batch_size
        yield stage.training.steps, batch * shortest, batch * longest


def _token_bounds(stages: Iterable[tuple[int, int, int]], steps: int) -> tuple[int, int]:
    """Return the fewest and the most tokens of a training, which may end before its last step."""
    least = most = 0
    for planned, fewest, largest in stages:
        done = min(planned, steps)
        least, most, steps = least + done * fewest, most + done * largest, steps - done
    return least, most


def _num_tokens(record: Result) -> int:
    # The product of two large numbers is infinite.
    return round(min(record.tokens_per_second * record.seconds, sys.maxsize))


def _task_key(record: Result) -> tuple[Hashable, ...]:
    return record.config.task.key, record.config.task.version


def check_data(files: Files) -> Iterator[Finding]:
    """Require equal data, baselines and token counts of runs on one data set."""

    def batches_key(record: Result) -> Hashable:
        # Batches depend on the seed and the step alone, and on the lengths of stages.
        training = record.config.training
        stages = repr(training.stages)
        return _task_key(record), record.seed, record.steps, training.batch_size, stages

    yield from _check_equal(files, "data_checksum", _task_key, lambda r: r.data_checksum)
    yield from _check_equal(files, "tokens_per_second", batches_key, _num_tokens)
    for split in ("validation", "test"):
        for name in ("num_examples", "num_targets", "majority_baseline"):

            def value(record: Result, split: str = split, name: str = name) -> Any:
                return getattr(record.scores.get(split), name, None)

            yield from _check_equal(files, f"scores.{split}.{name}", _task_key, value)

        def rules(record: Result, split: str = split) -> Any:
            return (record.rules or {}).get(split)

        yield from _check_equal(files, f"rules.{split}", _task_key, rules)


def _check_equal(
    files: Files, field: str, key: Callable[[Result], Hashable], value: Callable[[Result], Any]
) -> Iterator[Finding]:
    """Yield findings for values that differ from the most frequent one of the same key."""
    groups: dict[Hashable, list[tuple[RecordFile[Result], Any]]] = {}
    for file in files:
        if (actual := value(file.record)) is not None:
            groups.setdefault(key(file.record), []).append((file, actual))
    for group in groups.values():
        values = [actual for _, actual in group]
        usual = max(values, key=values.count)
        for file, actual in group:
            if actual != usual:
                expected = f"{usual}, as in {values.count(usual)} of {len(values)} records"
                yield file.finding(field, actual, expected, "run the wrong one again")


def _check_duplicates(files: Files) -> Iterator[Finding]:
    """Find runs with two records."""
    first: dict[Hashable, RecordFile[Result]] = {}
    for file in files:
        record = file.record
        key = (record.protocol, record.config_hash, record.seed, record.data_checksum)
        if (other := first.setdefault(key, file)) is not file:
            expected = "one record of a run"
            yield file.finding("seed", f"another in {other.path}", expected, "keep one", "warning")


def _check_copies(files: Files) -> Iterator[Finding]:
    """Find different runs with the same curve, or the same test score and loss."""
    first: dict[Hashable, RecordFile[Result]] = {}
    for file in files:
        record = file.record
        for field, content in _fingerprints(record):
            other = first.setdefault((field, _task_key(record), content), file)
            if _training_key(other.record) == _training_key(record):
                continue
            expected, actual = "values of its own", f"those of {other.path}"
            remedy = "remove the copy, or run it again"
            if _may_be_equivalent(record, other.record):
                remedy += ", unless both rows compute the same function"
                yield file.finding(field, actual, expected, remedy, "warning")
            else:
                yield file.finding(field, actual, expected, remedy)
            break


def _fingerprints(record: Result) -> Iterator[tuple[str, Hashable]]:
    """Yield values that different runs do not share.

    Scores of examples are not among them: models that learned the same rule, such as the majority
    class or the first operator of ListOps, share them.
    """
    if record.curve:
        yield "curve", tuple((point.train_loss, point.validation_loss) for point in record.curve)
    if (test := record.scores.get("test")) is not None:
        yield "scores.test", (record.score(), test.loss)


def _training_key(record: Result) -> str:
    """Return text that is equal for runs that compute the same under any protocol or budget."""
    values = flatten(record.effective_config).items()
    ignored = ("budget.", "mechanism.backend")
    return json.dumps([record.seed, {x: y for x, y in values if not x.startswith(ignored)}])


def _may_be_equivalent(a: Result, b: Result) -> bool:
    """Return whether two rows may be one here: equal seed and cost, times of their own."""
    one, two = ((x.seed, x.num_parameters, x.flops) for x in (a, b))
    pairs = {a.attended_pairs, b.attended_pairs} - {None}  # None: not defined
    is_equal = one == two and len(pairs) < 2
    return is_equal and a.row_name != b.row_name and a.seconds != b.seconds


def check_sources(files: Files) -> Iterator[Finding]:
    """Require the record of every run that another one starts from."""
    runs = {(x.record.protocol, x.record.task, x.record.config_hash, x.record.seed) for x in files}
    for file in files:
        record, start = file.record, file.record.config.start
        if start is None or start.run is None:
            continue
        if (record.protocol, start.task, start.run, record.seed) not in runs:
            expected, actual = "its record among the others", f"none of {start.task}, {start.run}"
            remedy = f"publish the record of {start.task} with it"
            yield file.finding("config.start.run", actual, expected, remedy, "note")


RULES = (check_costs, check_data, _check_duplicates, _check_copies, check_sources)
