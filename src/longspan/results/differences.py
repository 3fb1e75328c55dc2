"""Differences between two sets of records, run by run, and sets at a git revision."""

import io
import itertools
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from longspan.config import flatten
from longspan.errors import DataError
from longspan.results.reading import load_failures, load_result, record_paths
from longspan.results.record import FAILED, Failure, Result

FOLDER = Path("results")  # of a revision without a folder
Record = Result | Failure


@dataclass(frozen=True, kw_only=True)
class RunDifference:
    """A run that is new, gone or changed."""

    kind: Literal["new", "gone", "changed"]
    protocol: str
    task: str
    mechanism: str
    row_name: str  # name of the reference row, else of the mechanism
    seed: int
    overrides: dict[str, Any]  # of the protocol by the run before, else by the one after
    metric: str | None  # main metric; None where no run finished
    before: float | str | None  # score on test, else validation; or kind of a failure
    after: float | str | None
    fields: dict[str, tuple[Any, Any]]  # configuration fields with their two values; None: absent
    is_other_data: bool  # whether the data differs
    is_other_metric: bool  # whether the main metric differs

    @property
    def change(self) -> float | None:
        """Score after minus score before; None where one is missing, or the data differs."""
        if self.is_other_data or self.is_other_metric:
            return None
        if isinstance(self.before, float) and isinstance(self.after, float):
            return self.after - self.before
        return None


def diff_results(before: Iterable[Record], after: Iterable[Record]) -> list[RunDifference]:
    """Return the runs that differ in outcome, configuration or data.

    Runs have one protocol, task, row and seed in both sets. Those of a protocol that the other set
    lacks are paired with those of one that this set lacks: the protocol is then a field that
    differs. Of several configurations those with the fewest different fields are paired.
    """
    before, after = list(before), list(after)
    protocols = [{run.protocol for run in runs} for runs in (before, after)]
    shared = protocols[0] & protocols[1]
    one, two = _group(before, shared), _group(after, shared)
    pairs = [
        pair for key in sorted({*one, *two}) for pair in _pair(one.get(key, []), two.get(key, []))
    ]
    differences = sorted(
        (_difference(old, new) for old, new in pairs),
        key=lambda x: (x.protocol, x.task, x.row_name, x.seed),
    )
    return [
        x
        for x in differences
        if x.kind != "changed" or x.before != x.after or x.fields or x.is_other_data
    ]


def _group(runs: Iterable[Record], shared: Collection[str]) -> dict[tuple, list[Record]]:
    """Group runs that may be paired; protocols that are not shared are one group."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for run in runs:
        protocol = run.protocol if run.protocol in shared else ""
        groups[(protocol, run.task, run.row_name, run.seed)].append(run)
    return groups


def _pair(before: list[Record], after: list[Record]) -> list[tuple[Record | None, Record | None]]:
    """Pair the most similar configurations; runs without a partner come last."""
    pairs: list[tuple[Record | None, Record | None]] = []
    # Identities, since two files may hold equal records.
    paired: set[int] = set()
    candidates = itertools.product(before, after)
    for old, new in sorted(candidates, key=lambda pair: len(_differing_fields(*pair))):
        if not paired & {id(old), id(new)}:
            paired |= {id(old), id(new)}
            pairs.append((old, new))
    pairs += [(old, None) for old in before if id(old) not in paired]
    return pairs + [(None, new) for new in after if id(new) not in paired]


def _differing_fields(old: Record, new: Record) -> dict[str, tuple[Any, Any]]:
    one, two = (
        {"protocol": run.protocol, **_resolved_fields(run), **flatten(run.config)}
        for run in (old, new)
    )
    return differing_values(one, two)


def differing_values(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ by name; None for one that is absent."""
    names = dict.fromkeys((*one, *two))
    return {x: (one.get(x), two.get(x)) for x in names if one.get(x) != two.get(x)}


def _resolved_fields(run: Record) -> dict[str, Any]:
    """Return the fields that a budget has changed, as `resolved.training.steps`."""
    resolved = run.resolved_budget if isinstance(run, Result) else None
    return {f"resolved.{name}": x for name, x in resolved.changes.items()} if resolved else {}


def _difference(old: Record | None, new: Record | None) -> RunDifference:
    runs = [run for run in (old, new) if run is not None]
    results = [run for run in runs if isinstance(run, Result)]
    split = "test" if all("test" in x.scores for x in results) else "validation"
    return RunDifference(
        kind="new" if old is None else "gone" if new is None else "changed",
        protocol=runs[0].protocol,
        task=runs[0].task,
        mechanism=runs[0].mechanism,
        row_name=runs[0].row_name,
        seed=runs[0].seed,
        overrides=runs[0].changes,
        metric=results[-1].metric if results else None,
        before=_outcome(old, split),
        after=_outcome(new, split),
        fields=_differing_fields(old, new) if old and new else {},
        is_other_data=len({result.data_checksum for result in results}) > 1,
        is_other_metric=len({result.metric for result in results}) > 1,
    )


def _outcome(run: Record | None, split: str) -> float | str | None:
    if isinstance(run, Result):
        return run.score(split) if split in run.scores else None
    return None if run is None else run.kind


def load_version(source: str, folder: Path | None = None) -> list[Record]:
    """Load the records of a folder, or those of a folder at a git revision.

    Args:
        source: a folder, `REVISION` or `REVISION:FOLDER`, with the folder relative to the working
            directory.
        folder: folder at `REVISION`; None: `results`.

    Raises:
        DataError: there is no such folder or revision, or a record is invalid.
    """
    if Path(source).is_dir():
        return _load(Path(source))
    revision, _, path = source.partition(":")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path) if path else folder or FOLDER
        extracted = _extract(revision, folder, Path(temporary))
        try:
            return _load(extracted)
        except DataError as error:
            raise DataError(str(error).replace(str(extracted), f"{revision}:{folder}")) from error


def _load(folder: Path) -> list[Record]:
    results = [load_result(x) for x in record_paths(folder) if not x.name.endswith(FAILED)]
    return [*results, *load_failures([folder])]


def _extract(revision: str, folder: Path, target: Path) -> Path:
    """Extract a folder at a git revision; return its path below `target`."""
    # git names the files relative to the directory in which it runs.
    directory, paths = (folder, []) if folder.is_dir() else (Path(), [str(folder)])
    command = ["git", "-C", str(directory), "archive", "--format=tar", revision, *paths]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except OSError as error:
        raise DataError(f"git cannot be run ({error.strerror}); pass folders") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise DataError(
            f"{revision} is no folder, and git finds no {folder} at such a revision ({reason}); "
            "pass FOLDER, REVISION or REVISION:FOLDER"
        ) from error
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(target, filter="data")
    return target.joinpath(*paths)
