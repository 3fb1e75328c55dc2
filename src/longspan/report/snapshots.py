"""Versions of a folder of results: what was known on a day, in one file that does not change.

`<folder>/snapshots/<version>.json` names every record (path, sha256) and holds it without its
curve, so that a version can be compared with a later one when its records have been replaced; the
leaderboards stand beside it as Markdown. The records themselves lie where all results lie, below
`<folder>/<protocol>/<task>/`, and are never written over.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan import __version__
from longspan.errors import DataError, OptionError, RunError
from longspan.files import read_json, replacing, sha256, write_json
from longspan.report.grouping import newest
from longspan.report.leaderboard import sheet
from longspan.report.render import markdown
from longspan.report.tables import leaderboards
from longspan.results import Result, load, result_of, runs_below

FOLDER, SCHEMA = "snapshots", 1
NOW = "now"  # no version: the records that are there
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FIELDS = {"snapshot", "version", "date", "longspan", "records"}


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A record as it stood in a version."""

    path: str  # below the folder of results, with forward slashes
    sha256: str  # of the file
    record: Result  # without its curve


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A version of a folder of results."""

    version: str
    date: str  # ISO 8601, UTC
    longspan: str
    records: tuple[Frozen, ...]

    @property
    def results(self) -> list[Result]:
        """The records, without their curves."""
        return [frozen.record for frozen in self.records]


def take(version: str, folders: Sequence[Path], into: Path) -> tuple[Snapshot, bool]:
    """Freeze the records below folders as a version of the results in `into`.

    Records that are not in `into` yet are copied there, byte by byte. Of two records of one run
    the newer is taken, as in a report.

    Returns:
        The snapshot, and whether it is new: with the same records it may be taken again.

    Raises:
        OptionError: the version cannot be the name of a file, or exists with other records.
        DataError: a folder holds no records, or a record is malformed.
        RunError: a file in `into` is another record of the same run, or cannot be written.
    """
    path = place(into, version)
    sources = _sources(folders)
    records = tuple(
        Frozen(path=_inside(record), sha256=sha256(source), record=_bare(record))
        for source, record in sources
    )
    if path.exists():
        return _same(read(path), records), False
    for (source, _), frozen in zip(sources, records, strict=True):
        _copy(source, into / frozen.path, frozen.sha256)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    made = Snapshot(version=version, date=now, longspan=__version__, records=records)
    with replacing(path.with_suffix(".md")) as temporary:
        temporary.write_text(_page(made), encoding="utf-8")
        temporary.chmod(0o644)
    # Last: a version exists once its file does.
    write_json(path, _plain(made))
    path.chmod(0o644)
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
    if not isinstance(found, dict) or found.keys() != FIELDS or found["snapshot"] != SCHEMA:
        raise DataError(f"{path} is not a snapshot of results (of schema {SCHEMA})")
    texts = [found["version"], found["date"], found["longspan"]]
    if not isinstance(found["records"], list) or not all(isinstance(x, str) for x in texts):
        raise DataError(f"{path} is a snapshot with malformed fields")
    version, date, longspan = texts
    records = tuple(_frozen(one, path) for one in found["records"])
    return Snapshot(version=version, date=date, longspan=longspan, records=records)


def below(folder: Path) -> list[Snapshot]:
    """The versions of a folder of results, the oldest first.

    Raises:
        DataError: a file among them is no snapshot.
    """
    found = [read(path) for path in (folder / FOLDER).glob("*.json") if path.name[0] != "."]
    return sorted(found, key=lambda snapshot: (snapshot.date, snapshot.version))


def _sources(folders: Iterable[Path]) -> list[tuple[Path, Result]]:
    """The files behind a report, and what is in them."""
    read: dict[int, tuple[Path, Result]] = {}
    for folder in folders:
        for path in runs_below(folder):
            record = load(path)
            read[id(record)] = (path, record)
    chosen = [read[id(record)] for record in newest(record for _, record in read.values())]
    return sorted(chosen, key=lambda pair: _inside(pair[1]))


def _inside(record: Result) -> str:
    """Where a record lies below a folder of results."""
    parts = (record.protocol, record.task, record.filename)
    for part in parts:
        # A foreign record must not be copied elsewhere.
        if not VERSION.fullmatch(part):
            raise DataError(f"{part!r} cannot be the name of a folder or file of results")
    return "/".join(parts)


def _bare(record: Result) -> Result:
    return dataclasses.replace(record, curve=[])


def _copy(source: Path, target: Path, expected: str) -> None:
    """Put a record among the results, unless it is there; never over another."""
    if not target.exists():
        with replacing(target) as temporary:
            temporary.write_bytes(source.read_bytes())
            temporary.chmod(0o644)
    elif sha256(target) != expected:
        raise RunError(
            f"{target} is another record of the same run as {source}, and records are not written "
            "over; remove it first (snapshots keep its scores) or leave the new one out"
        )


def _same(there: Snapshot, records: tuple[Frozen, ...]) -> Snapshot:
    """The snapshot that is there, if it is of these records."""
    old, new = ({one.path: one.sha256 for one in some} for some in (there.records, records))
    if old == new:
        return there
    changed = sum(old[path] != new[path] for path in old.keys() & new.keys())
    raise OptionError(
        f"snapshot {there.version} is there since {there.date} with other records "
        f"({len(new.keys() - old.keys())} new, {len(old.keys() - new.keys())} gone, {changed} "
        "changed); a version does not change: choose another name"
    )


def _plain(snapshot: Snapshot) -> dict[str, Any]:
    records = [dataclasses.asdict(frozen) for frozen in snapshot.records]
    for one in records:
        del one["record"]["curve"]
    head = {name: getattr(snapshot, name) for name in ("version", "date", "longspan")}
    return {"snapshot": SCHEMA, **head, "records": records}


def _frozen(one: Any, path: Path) -> Frozen:
    if not isinstance(one, dict) or one.keys() != {"path", "sha256", "record"}:
        raise DataError(f"{path}: a record has path, sha256 and record, got {one!r:.60}")
    record = one["record"]
    if isinstance(record, dict):
        record = {**record, "curve": []}
    return Frozen(path=str(one["path"]), sha256=str(one["sha256"]), record=result_of(record, path))


def _page(snapshot: Snapshot) -> str:
    """The leaderboards of a version."""
    head = (
        f"# Results, version {snapshot.version}\n\n{len(snapshot.records)} records, frozen "
        f"{snapshot.date} by longspan {snapshot.longspan}. Scores of different protocols must not "
        "be compared.\n"
    )
    return "\n".join([head, *(markdown(sheet(table)) for table in leaderboards(snapshot.results))])
