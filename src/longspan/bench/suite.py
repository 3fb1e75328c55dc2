"""Suites: mechanisms in several scopes and passes, over lengths until memory ends."""

import contextlib
import dataclasses
import gc
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from longspan.arena.provenance import git_commit, now, versions
from longspan.bench.cases import (
    BACKEND,
    IDENTITY,
    PASSES,
    PRECISIONS,
    SCOPES,
    Case,
    check_row,
    refusal,
)
from longspan.bench.groups import GroupMeter, identity, left_out
from longspan.bench.machine import machine_name, measure_limits
from longspan.bench.peaks import PeakMeter
from longspan.bounds import LARGEST_BATCH, LONGEST, range_error
from longspan.errors import OptionError, check_name
from longspan.memory import keep_freed_memory
from longspan.results.efficiency import (
    EfficiencyRecord,
    Limits,
    Measurement,
    Pass,
    Precision,
    Scope,
    Sizes,
)
from longspan.results.reading import EFFICIENCY

_MOST_RUNS = 1_000_000
Options = Callable[[str, int], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """Cases to measure. Mechanisms of one shape are interleaved.

    Attributes:
        name: name of the suite.
        mechanisms: names, with the backend that must run as in `local:torch`; `identity` is
            attention that returns its values.
        scopes: operator, layer, model.
        works: forward, training, inference, decoding.
        lengths: tokens of a row, ascending.
        precisions: dtypes.
        tokens: tokens of a batch; a row at least.
        batch_size: rows; None: as many as `tokens` allows.
        padding: share of padding.
        sizes: sizes of attention and model.
        options: options of a mechanism at a length.
        runs: timed passes.
        max_seconds: longest pass; a mechanism that would need more, in proportion to the length,
            is not measured at that length.
    """

    name: str
    mechanisms: tuple[str, ...]
    scopes: tuple[Scope, ...] = ("layer",)
    works: tuple[Pass, ...] = ("training",)
    lengths: tuple[int, ...] = (1_024, 4_096, 16_384)
    precisions: tuple[Precision, ...] = ("float32",)
    tokens: int = 4_096
    batch_size: int | None = None
    padding: float = 0.0
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    options: Options = lambda mechanism, length: {}
    runs: int = 5
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the names and numbers.

        Raises:
            UnknownNameError: there is no such mechanism, backend, scope or pass.
            OptionError: a number is out of range.
        """
        for name in self.mechanisms:
            check_row(name)
        for scope in self.scopes:
            check_name(scope, SCOPES, "scope")
        for work in self.works:
            check_name(work, PASSES, "pass")
        for precision in self.precisions:
            check_name(precision, PRECISIONS, "dtype")
        if not self.lengths:
            raise OptionError("lengths must name one length at least")
        values = [*(("lengths", x, LONGEST) for x in self.lengths), ("runs", self.runs, _MOST_RUNS)]
        rows = 1 if self.batch_size is None else self.batch_size
        values += [("batch_size", rows, LARGEST_BATCH)]
        values += [("tokens", self.tokens, LARGEST_BATCH * min(self.lengths))]
        for reason in (range_error(name, value, 1, most) for name, value, most in values):
            if reason:
                raise OptionError(reason)
        if not self.max_seconds > 0:
            raise OptionError(f"max_seconds must be above 0, got {self.max_seconds}")
        if not 0 <= self.padding < 1:
            raise OptionError(f"padding must be at least 0 and below 1, got {self.padding}")

    def options_of(self, row: str, length: int) -> dict[str, Any]:
        """Return the options of a mechanism, whatever its backend."""
        name = row.partition(BACKEND)[0]
        return {} if name == IDENTITY else self.options(name, length)

    def groups(self) -> Iterator[list[Case]]:
        """Yield the interleaved cases, each once: those that differ in the mechanism alone."""
        shapes = itertools.product(self.precisions, self.scopes, self.works, sorted(self.lengths))
        for shape in dict.fromkeys(shapes):
            yield [self._case(x, *shape) for x in dict.fromkeys(self.mechanisms)]

    def _case(
        self, mechanism: str, precision: Precision, scope: Scope, work: Pass, length: int
    ) -> Case:
        # A decoded token follows a prefix, at batch size 1.
        most = 1 if work == "decoding" else max(1, self.tokens // length)
        return Case(
            mechanism=mechanism,
            options=self.options_of(mechanism, length),
            scope=scope,
            work=work,
            length=length,
            batch_size=self.batch_size or most,
            precision=precision,
            padding=0.0 if work == "decoding" else self.padding,
        )


def run_suite(
    suite: Suite,
    device: torch.device,
    *,
    on_measurement: Callable[[Measurement], None] = lambda _: None,
    save: Callable[[EfficiencyRecord], None] = lambda _: None,
) -> EfficiencyRecord:
    """Measure a suite.

    A mechanism that needs more memory than is free is recorded as such, and not measured at longer
    lengths.

    Args:
        suite: what to measure.
        device: device that computes.
        on_measurement: called with each measurement as it is made.
        save: called with the record so far whenever the mechanisms of a shape are measured.
    """
    keep_freed_memory()
    torch.manual_seed(0)
    limits: dict[str, Limits] = {
        x: measure_limits(getattr(torch, x), device) for x in suite.precisions
    }
    record = EfficiencyRecord(
        suite=suite.name,
        sizes=suite.sizes,
        options=_options(suite),
        limits=limits,
        measurements=[],
        device=machine_name(device),
        threads=torch.get_num_threads(),
        versions=versions(),
        git_commit=git_commit(),
        date=now(),
    )
    with PeakMeter(device) as peaks, _frozen_objects():
        for group in suite.groups():
            before = record.measurements
            meter = GroupMeter(suite.sizes, limits[group[0].precision], suite.runs, device, peaks)
            # Cases that cannot be measured come first.
            excluded = [_exclusion(case, suite, before) for case in group]
            tried = [case for case, reason in zip(group, excluded, strict=True) if reason is None]
            measurements = [*filter(None, excluded), *meter.measure(tried)]
            for one in measurements:
                on_measurement(one)
            record = dataclasses.replace(record, measurements=[*before, *measurements])
            save(record)
    return record


@contextlib.contextmanager
def _frozen_objects() -> Iterator[None]:
    """Keep what is loaded out of garbage collections, of which each case has several.

    With torch and transformers loaded, one takes a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _exclusion(case: Case, suite: Suite, before: Sequence[Measurement]) -> Measurement | None:
    """Return why a case is not tried, by itself or after shorter rows; None: it is."""
    if reason := refusal(case):
        return left_out(case, "refused", reason)
    one = next((x for x in reversed(before) if _is_shorter(x, case)), None)
    if one is None:
        return None
    if one.state in ("out of memory", "too slow"):
        return left_out(case, one.state, f"so are {one.length:,} tokens")
    tokens = case.batch_size * case.length / (one.batch_size * one.length)
    if one.median is None or one.median * tokens <= suite.max_seconds:
        return None
    taken = f"{one.length:,} tokens took {one.median:.1f} s"
    return left_out(case, "too slow", f"{taken}, the limit is {suite.max_seconds:g} s")


def _is_shorter(one: Measurement, case: Case) -> bool:
    """Return whether a measurement is of the same case at a smaller length."""
    same = identity(case) | {"length": one.length, "batch_size": one.batch_size}
    return one.length < case.length and all(getattr(one, x) == y for x, y in same.items())


def _options(suite: Suite) -> dict[str, dict[str, Any]]:
    """Return the options of each mechanism, by length where they depend on it."""
    options = {}
    for name in suite.mechanisms:
        if name.partition(BACKEND)[0] == IDENTITY:
            continue
        by_length = [suite.options_of(name, length) for length in suite.lengths]
        if all(x == by_length[0] for x in by_length):
            options[name] = by_length[0]
        else:
            options |= {f"{name} at {n}": x for n, x in zip(suite.lengths, by_length, strict=True)}
    return options


def default_path(runs: Path, suite: Suite, device: torch.device) -> Path:
    """Return the path of the record of a suite in a folder of results.

    Suites that differ in anything have different paths, as do devices and numbers of threads.
    """
    words = "".join(x if x.isalnum() else "-" for x in machine_name(device).lower())
    name = "-".join(part for part in words.split("-") if part)
    fields = {x.name: getattr(suite, x.name) for x in dataclasses.fields(suite)}
    fields["sizes"] = dataclasses.asdict(suite.sizes)
    fields["options"] = _options(suite)
    text = json.dumps([fields, torch.get_num_threads()], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return runs / EFFICIENCY / f"{suite.name}-{name}-{digest}.json"
