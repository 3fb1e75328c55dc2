"""Rules for records that somebody offers to the leaderboard of a protocol.

The records must be those that anybody gets from the protocol: its recipe, at least three seeds, the
baseline with the same data and seeds, scores of the examples, and code that can be had again.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from longspan.files import file_sha256
from longspan.results import BASELINE, Result
from longspan.results.commands import arena_command
from longspan.validation.across import Files
from longspan.validation.findings import Finding, RecordFile
from longspan.validation.records import Validation, validate_records

_MIN_SEEDS = 3


def validate_contribution(folder: Path) -> Validation:
    """Apply every rule for records, and those for a contribution.

    Args:
        folder: records, and the files of mechanisms and tasks from outside the package.

    Raises:
        DataError: the folder holds no record.
    """
    return validate_records([folder], [functools.partial(_check_files, folder), _check_settings])


def _check_files(folder: Path, files: Files) -> Iterator[Finding]:
    """Check records one by one against the recipe and the files of the folder."""
    digests = {file_sha256(path) for path in folder.rglob("*.py")}
    for file in files:
        yield from _check_record(file)
        for part, source in (file.record.source_files or {}).items():
            if source.is_external and source.sha256 not in digests:
                remedy = f"put the file of the {part} into {folder}"
                yield file.finding(f"source_files.{part}", source, "a file of the folder", remedy)


def _check_settings(files: Files) -> Iterator[Finding]:
    """Check seeds and baseline of each task under a protocol and a budget."""
    groups: dict[tuple[str, str, str], list[RecordFile[Result]]] = {}
    for file in files:
        config = file.record.config
        setting = (file.record.protocol, repr(config.task.key), repr(config.budget))
        groups.setdefault(setting, []).append(file)
    for group in groups.values():
        yield from _check_seeds(group)
        yield from _check_baseline(group)


def _check_record(file: RecordFile[Result]) -> Iterator[Finding]:
    """Require the recipe, the scores of the examples and a commit that can be had again."""
    record = file.record
    if changed := sorted(record.changes):
        remedy = f"run it without --set, or offer a protocol whose recipe it is ({changed[0]})"
        yield file.finding("overrides", ", ".join(changed), "the recipe of the protocol", remedy)
    if record.example_scores is None:
        remedy = "run it again with this version; tests of significance need them"
        yield file.finding("example_scores", "none", "the score of each test example", remedy)
    if record.git_commit is None or record.git_commit.endswith("-dirty"):
        actual = record.git_commit or "none"
        remedy = "commit, and run it again from the clean clone"
        yield file.finding("git_commit", actual, "a commit without changes", remedy)


def _check_seeds(files: Files) -> Iterator[Finding]:
    """Require three seeds of each row."""
    seeds: dict[str, set[int]] = {}
    for file in files:
        seeds.setdefault(file.record.row_name, set()).add(file.record.seed)
    for row, present in seeds.items():
        if len(present) < _MIN_SEEDS:
            first = next(x for x in files if x.record.row_name == row)
            remedy = f"run `{arena_command(first.record, row, range(_MIN_SEEDS))}`"
            expected = f"{_MIN_SEEDS} seeds of {row}"
            yield first.finding("seed", _listed(present), expected, remedy)


def _check_baseline(files: Files) -> Iterator[Finding]:
    """Require the baseline with the seeds of the other rows."""
    seeds = {x.record.seed for x in files if x.record.row_name != BASELINE}
    missing = seeds - {x.record.seed for x in files if x.record.row_name == BASELINE}
    if missing:
        remedy = f"run `{arena_command(files[0].record, BASELINE, missing)}`"
        expected = f"records of {BASELINE} with the same seeds"
        yield files[0].finding("seed", f"no {_listed(missing)}", expected, remedy)


def _listed(seeds: Iterable[int]) -> str:
    numbers = sorted(seeds)
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
