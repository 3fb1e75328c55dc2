"""Do records agree with each other: the same data, the same model, and no copies."""

import functools
import json
import operator
import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from longspan.checks.base import Fault, Filed, batch_of, close
from longspan.results import Result

Key = Callable[[Result], Hashable]
NEAR = 0.2  # share by which the mean length of the examples drawn may differ between runs


def data(record: Result) -> Hashable:
    """The data that a record was scored on."""
    return record.task, record.task_version, record.data_checksum


def run(record: Result) -> Hashable:
    """What makes two records the same run."""
    return record.protocol, data(record), record.mechanism, record.config_hash, record.seed


def ran(record: Result) -> Hashable:
    """What was computed, under whatever protocol, budget and backend it was asked for."""
    parts = record.options, record.model, record.training
    return data(record), record.mechanism, json.dumps(parts, sort_keys=True), record.seed


def _alike(
    records: Sequence[Filed], key: Key, field: str, value: Callable[[Result], Any]
) -> Iterator[tuple[Filed, Fault]]:
    """Who differs from most of the records of the same key, in a value that the key decides."""
    groups: dict[Hashable, list[Filed]] = {}
    for filed in records:
        if value(filed.record) is not None:
            groups.setdefault(key(filed.record), []).append(filed)
    for group in groups.values():
        values = [value(filed.record) for filed in group]
        usual = max(values, key=values.count)
        for filed, own in zip(group, values, strict=True):
            if own != usual:
                yield (
                    filed,
                    Fault(
                        field=field,
                        expected=f"{usual}, as in {values.count(usual)} other records",
                        found=f"{own}",
                        remedy="find out which is right; run the others again",
                    ),
                )


def same_data(records: Sequence[Filed]) -> Iterator[tuple[Filed, Fault]]:
    """Equal data has equal sizes, classes and lengths."""
    for field in ("chance", "length"):
        yield from _alike(records, data, field, operator.attrgetter(field))
    for split in ("validation", "test"):
        for field in ("examples", "majority"):
            value = functools.partial(_scored, split, field)
            yield from _alike(records, data, f"scores.{split}.{field}", value)


def _scored(split: str, field: str, record: Result) -> Any:
    return getattr(record.scores[split], field) if split in record.scores else None


def same_model(records: Sequence[Filed]) -> Iterator[tuple[Filed, Fault]]:
    """Equal configurations have equal sizes and costs."""

    def key(record: Result) -> Hashable:
        return data(record), record.mechanism, record.config_hash

    for field in ("parameters", "full_parameters", "flops", "attended_pairs"):
        yield from _alike(records, key, field, operator.attrgetter(field))


def drawn(records: Sequence[Filed]) -> Iterator[tuple[Filed, Fault]]:
    """Every run of a task draws its examples from one set: their mean length is the set's."""
    groups: dict[Hashable, list[tuple[Filed, float]]] = {}
    for filed in records:
        record, batch = filed.record, batch_of(filed.record)
        if batch is not None and record.steps > 0:
            mean = record.tokens_per_second * record.seconds / (record.steps * batch)
            groups.setdefault(data(record), []).append((filed, mean))
    for group in groups.values():
        usual = statistics.median(mean for _, mean in group)
        for filed, mean in group:
            if abs(mean - usual) > NEAR * usual:
                fault = Fault(
                    field="tokens_per_second",
                    expected=f"about {usual:.0f} tokens of an example, as in other records",
                    found=f"{mean:.0f} (tokens/s x seconds / steps / batch)",
                    remedy="look whether tokens/s and seconds are of the same run",
                    severity="warning",
                )
                yield filed, fault


def repeated(records: Sequence[Filed]) -> Iterator[tuple[Filed, Fault]]:
    """A run has one record; of several the report takes the newest."""
    first: dict[Hashable, Filed] = {}
    for filed in records:
        other = first.setdefault(run(filed.record), filed)
        if other is not filed:
            fault = Fault(
                field="seed",
                expected="one record of a run",
                found=f"another in {other.path}",
                remedy="keep one of them",
                severity="warning",
            )
            yield filed, fault


def copied(records: Sequence[Filed]) -> Iterator[tuple[Filed, Fault]]:
    """Unlike runs do not end with the same loss to the last digit, nor take the same course."""
    seen: dict[Hashable, Filed] = {}
    for filed in records:
        record = filed.record
        for what, print_ in _prints(record):
            other = seen.setdefault((what, print_), filed)
            if data(other.record) == data(record) and ran(other.record) != ran(record):
                same = _may_be_the_same(record, other.record)
                either = ", or both mechanisms do the same here" if same else ""
                either = ", or both found one rule" if what == "answers" else either
                fault = Fault(
                    field=what,
                    expected="those of a run of its own",
                    found=f"exactly those of {other.path}",
                    remedy=f"one is a copy: remove it, or run it{either}",
                    severity="warning" if same or what == "answers" else "error",
                )
                yield filed, fault
                break


def _may_be_the_same(one: Result, other: Result) -> bool:
    """Whether two mechanisms may do the same: one is the other where nothing of its own is used.

    They have the same size and cost then, and one seed; the runs took times of their own.
    """
    mine, theirs = ((x.seed, x.parameters, x.flops, x.attended_pairs) for x in (one, other))
    return mine == theirs and one.mechanism != other.mechanism and one.seconds != other.seconds


def _prints(record: Result) -> Iterator[tuple[str, Hashable]]:
    """What no two runs share. Answers they may: those of a rule that both have found."""
    losses = tuple(point.train_loss for point in record.curve if point.train_loss is not None)
    if losses:
        yield "curve", losses
    test = record.scores.get("test")
    if test is not None:
        yield "scores.test", (test.accuracy, test.loss)
        best = test.accuracy > test.majority and not close(test.accuracy, test.majority)
        if record.answers is not None and best:
            yield "answers", record.answers


ACROSS = (same_data, same_model, drawn, repeated, copied)
