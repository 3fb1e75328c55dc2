"""Versions of a folder of results: what was known on a day, in one file that does not change.

`<folder>/snapshots/<version>.json` names every record (path, sha256) and holds it without its
curve, so that a version can be compared with a later one when its records have been replaced; the
leaderboards stand beside it as Markdown. Runs that failed are named and held as well: without them
a mean over the seeds that survived would stand for all. The records themselves lie where all
results lie, below `<folder>/<protocol>/<task>/`, and are never written over.
"""

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan import __version__
from longspan.errors import DataError, OptionError, RunError
from longspan.files import atomic_write, file_sha256, read_json, write_json
from longspan.report.grouping import newest, unresolved
from longspan.report.leaderboard import sheet
from longspan.report.render import markdown
from longspan.report.rows import Table
from longspan.report.tables import leaderboards
from longspan.results import (
    Failure,
    Result,
    failure_of,
    failures_below,
    load,
    load_failure,
    result_of,
    runs_below,
)

FOLDER, SCHEMA = "snapshots", 2
NOW = "now"  # no version: the records that are there
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FIELDS = {"snapshot", "version", "date", "longspan", "records", "failures"}


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A record as it stood in a version."""

    path: str  # below the folder of results, with forward slashes
    sha256: str  # of the file
    record: Result | Failure  # a result without its curve


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A version of a folder of results."""

    version: str
    date: str  # ISO 8601, UTC
    longspan: str
    records: tuple[Frozen, ...]
    failures: tuple[Frozen, ...] = ()  # none are known of schema 1

    @property
    def results(self) -> list[Result]:
        """The records, without their curves."""
        return [frozen.record for frozen in self.records if isinstance(frozen.record, Result)]

    @property
    def tables(self) -> list[Table]:
        """The leaderboards."""
        lost = [frozen.record for frozen in self.failures if isinstance(frozen.record, Failure)]
        return leaderboards(self.results, lost)


def take(version: str, folders: Sequence[Path], into: Path) -> tuple[Snapshot, bool]:
    """Freeze the records below folders as a version of the results in `into`.

    Records that are not in `into` yet are copied there, byte by byte, all or none. Of two records
    of one run the newer is taken, and of a failure whose run has ended since none, as in a report.

    Returns:
        The snapshot, and whether it is new: with the same records it may be taken again.

    Raises:
        OptionError: the version cannot be the name of a file, or exists with other records.
        DataError: a folder holds no records, or a record is malformed.
        RunError: a file in `into` is another record of the same run, or cannot be written.
    """
    path = place(into, version)
    ended, lost = _sources(folders)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = Snapshot(
        version=version,
        date=now,
        longspan=__version__,
        records=tuple(frozen for _, frozen in ended),
        failures=tuple(frozen for _, frozen in lost),
    )
    if path.exists():
        return _same(read(path), made), False
    _copy([(source, into / frozen.path, frozen.sha256) for source, frozen in (*ended, *lost)])
    with atomic_write(path.with_suffix(".md")) as temporary:
        temporary.write_text(_page(made), encoding="utf-8")
    # Last: a version exists once its file does.
    write_json(path, _plain(made))
    return made, True


def place(into: Path, version: str) -> Path:
    """The file of a version.

    Raises:
        OptionError: the version cannot be the name of a file.
    """
    if version == NOW or not VERSION.fullmatch(version):
        raise OptionError(
            "a snapshot is named by letters, digits, dots, dashes and underscores, as v1, got "
            f"{version!r}"
        )
    return into / FOLDER / f"{version}.json"


def read(path: Path) -> Snapshot:
    """Read the file of a version.

    Raises:
        DataError: it is absent or no snapshot; the message says what is wrong with it.
    """
    found = read_json(path)
    if isinstance(found, dict) and found.get("snapshot") == 1:
        found = {"failures": [], **found, "snapshot": SCHEMA}
    if not isinstance(found, dict) or found.keys() != FIELDS or found["snapshot"] != SCHEMA:
        raise DataError(f"{path} is not a snapshot of results (of schema 1 to {SCHEMA})")
    texts = [found["version"], found["date"], found["longspan"]]
    lists = [found["records"], found["failures"]]
    if not all(isinstance(x, str) for x in texts) or not all(isinstance(x, list) for x in lists):
        raise DataError(f"{path} is a snapshot with malformed fields")
    version, date, longspan = texts
    return Snapshot(
        version=version,
        date=date,
        longspan=longspan,
        records=tuple(_frozen(one, path, _result) for one in lists[0]),
        failures=tuple(_frozen(one, path, failure_of) for one in lists[1]),
    )


def below(folder: Path) -> list[Snapshot]:
    """The versions of a folder of results, the oldest first.

    Raises:
        DataError: a file among them is no snapshot.
    """
    found = [read(path) for path in (folder / FOLDER).glob("*.json") if path.name[0] != "."]
    return sorted(found, key=lambda snapshot: (snapshot.date, snapshot.version))


def _sources(
    folders: Iterable[Path],
) -> tuple[list[tuple[Path, Frozen]], list[tuple[Path, Frozen]]]:
    """The files behind a report, and what is in them: of the runs that ended, and of the others."""
    ended: dict[int, tuple[Path, Result]] = {}
    lost: dict[int, tuple[Path, Failure]] = {}
    for folder in folders:
        for path in runs_below(folder):
            record = load(path)
            ended[id(record)] = (path, record)
        for path in failures_below(folder):
            failure = load_failure(path)
            lost[id(failure)] = (path, failure)
    runs = newest(record for _, record in ended.values())
    failures = unresolved(runs, [failure for _, failure in lost.values()])
    return _freeze([ended[id(run)] for run in runs]), _freeze([lost[id(one)] for one in failures])


def _freeze(read: Iterable[tuple[Path, Result | Failure]]) -> list[tuple[Path, Frozen]]:
    """Files with what is frozen of them, by where they lie below a folder of results."""
    found = [
        (path, Frozen(path=_inside(record), sha256=file_sha256(path), record=_bare(record)))
        for path, record in read
    ]
    return sorted(found, key=lambda pair: pair[1].path)


def _inside(record: Result | Failure) -> str:
    """Where a record lies below a folder of results."""
    parts = (record.protocol, record.task, record.filename)
    for part in parts:
        # A foreign record must not be copied elsewhere.
        if not VERSION.fullmatch(part):
            raise DataError(f"{part!r} cannot be the name of a folder or file of results")
    return "/".join(parts)


def _bare(record: Result | Failure) -> Result | Failure:
    return dataclasses.replace(record, curve=[]) if isinstance(record, Result) else record


def _copy(files: Sequence[tuple[Path, Path, str]]) -> None:
    """Put records (from, to, sha256) among the results, unless they are there; never over others.

    All are looked at before the first is copied.
    """
    for source, target, expected in files:
        if target.exists() and file_sha256(target) != expected:
            raise RunError(
                f"{target} is another record of the same run as {source}, and records are not "
                "written over; remove it first (snapshots keep its scores) or leave the new one out"
            )
    for source, target, _ in files:
        if not target.exists():
            with atomic_write(target) as temporary:
                temporary.write_bytes(source.read_bytes())


def _same(there: Snapshot, made: Snapshot) -> Snapshot:
    """The snapshot that is there, if it is of the same records."""
    old, new = (
        {one.path: one.sha256 for one in (*version.records, *version.failures)}
        for version in (there, made)
    )
    if old == new:
        return there
    changed = sum(old[path] != new[path] for path in old.keys() & new.keys())
    raise OptionError(
        f"snapshot {there.version} is there since {there.date} with other records "
        f"({len(new.keys() - old.keys())} new, {len(old.keys() - new.keys())} gone, {changed} "
        "changed); a version does not change: choose another name"
    )


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    parts = {
        name: [dataclasses.asdict(frozen) for frozen in getattr(snapshot, name)]
        for name in ("records", "failures")
    }
    for one in parts["records"]:
        del one["record"]["curve"]
    head = {name: getattr(snapshot, name) for name in ("version", "date", "longspan")}
    return {"snapshot": SCHEMA, **head, **parts}


def _frozen(one: Any, path: Path, made: Callable[[Any, Path], Result | Failure]) -> Frozen:
    if not isinstance(one, dict) or one.keys() != {"path", "sha256", "record"}:
        raise DataError(f"{path}: a record has path, sha256 and record, got {one!r:.60}")
    record = made(one["record"], path)
    return Frozen(path=str(one["path"]), sha256=str(one["sha256"]), record=record)


def _result(record: Any, path: Path) -> Result:
    return result_of({**record, "curve": []} if isinstance(record, dict) else record, path)


def _page(snapshot: Snapshot) -> str:
    """The leaderboards of a version."""
    head = (
        f"# Results, version {snapshot.version}\n\n{len(snapshot.records)} records and "
        f"{len(snapshot.failures)} failures, frozen {snapshot.date} by longspan "
        f"{snapshot.longspan}. Scores of different protocols must not be compared.\n"
    )
    return "\n".join([head, *(markdown(sheet(table)) for table in snapshot.tables)])
