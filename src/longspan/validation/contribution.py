"""Rules for records that somebody offers to the leaderboard of a protocol.

The records must be those that anybody gets from the protocol: its recipe, at least three seeds, the
baseline with the same data and seeds, scores of the examples, and code that can be had again.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from longspan.files import file_sha256
from longspan.results import BASELINE, ROW, VARIANT, Result, load_result, result_paths
from longspan.validation.findings import Finding, RecordFile
from longspan.validation.records import Validation, validate_records

MIN_SEEDS = 3
Files: TypeAlias = list[RecordFile[Result]]
Setting: TypeAlias = tuple[str, str, str]  # protocol, task and its options, budget


def validate_contribution(folder: Path) -> Validation:
    """Apply every rule for records, and those for a contribution.

    Args:
        folder: records, and the files of mechanisms and tasks from outside the package.

    Raises:
        DataError: the folder holds no record.
    """
    validation = validate_records([folder])
    files = [RecordFile(path=x, record=load_result(x)) for x in _readable(folder, validation)]
    groups: dict[Setting, Files] = {}
    for file in files:
        groups.setdefault(_setting(file.record), []).append(file)
    findings = [x for file in files for x in _check_record(file, folder)]
    for group in groups.values():
        findings += [*_check_seeds(group), *_check_baseline(group)]
    return Validation(
        num_results=validation.num_results,
        num_failures=validation.num_failures,
        findings=sorted([*validation.findings, *findings], key=lambda x: x.file),
    )


def _readable(folder: Path, validation: Validation) -> Iterator[Path]:
    """Yield the files of results that could be read."""
    damaged = {x.file for x in validation.of("error") if x.field == "the whole file"}
    yield from (x for x in result_paths(folder) if str(x) not in damaged)


def _setting(record: Result) -> Setting:
    return record.protocol, repr(record.config.task.key), repr(record.config.budget)


def _check_record(file: RecordFile[Result], folder: Path) -> Iterator[Finding]:
    """Require the recipe, the scores of the examples and code that can be had again."""
    record = file.record
    if changed := sorted(x for x in record.overrides if x not in (ROW, VARIANT)):
        remedy = f"run it without --set, or offer a protocol whose recipe it is ({changed[0]})"
        yield file.finding("overrides", ", ".join(changed), "the recipe of the protocol", remedy)
    if record.example_scores is None:
        remedy = "run it again with this version; tests of significance need them"
        yield file.finding("example_scores", "none", "the score of each test example", remedy)
    if record.git_commit is None or record.git_commit.endswith("-dirty"):
        actual = record.git_commit or "none"
        remedy = "commit, and run it again from the clean clone"
        yield file.finding("git_commit", actual, "a commit without changes", remedy)
    digests = {file_sha256(path) for path in folder.rglob("*.py")}
    for part, source in (record.source_files or {}).items():
        if source.is_external and source.sha256 not in digests:
            remedy = f"put the file of the {part} into {folder}"
            yield file.finding(f"source_files.{part}", source, "a file of the folder", remedy)


def _check_seeds(files: Files) -> Iterator[Finding]:
    """Require three seeds of each row."""
    seeds: dict[str, set[int]] = {}
    for file in files:
        seeds.setdefault(file.record.row_name, set()).add(file.record.seed)
    for row, present in seeds.items():
        if len(present) < MIN_SEEDS:
            first = next(x for x in files if x.record.row_name == row)
            remedy = f"run `{_command(first.record, row, range(MIN_SEEDS))}`"
            expected = f"{MIN_SEEDS} seeds of {row}"
            yield first.finding("seed", _listed(present), expected, remedy)


def _check_baseline(files: Files) -> Iterator[Finding]:
    """Require the baseline with the seeds of the other rows."""
    seeds = {x.record.seed for x in files if x.record.row_name != BASELINE}
    missing = seeds - {x.record.seed for x in files if x.record.row_name == BASELINE}
    if missing:
        remedy = f"run `{_command(files[0].record, BASELINE, missing)}`"
        expected = f"records of {BASELINE} with the same seeds"
        yield files[0].finding("seed", f"no {_listed(missing)}", expected, remedy)


def _command(record: Result, row: str, seeds: Iterable[int]) -> str:
    """Return the command whose records are missing."""
    numbers = ",".join(str(x) for x in sorted(seeds))
    return (
        f"longspan arena --protocol {record.protocol} --tasks {record.task} --mechanisms {row} "
        f"--seeds {numbers}"
    )


def _listed(seeds: Iterable[int]) -> str:
    numbers = sorted(seeds)
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
