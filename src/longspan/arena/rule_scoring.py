"""Scoring the rules of tasks for records that lack them."""

import dataclasses
from collections.abc import Hashable, Iterable
from pathlib import Path

from longspan.arena.paths import RunPaths
from longspan.arena.resume import data_mismatch
from longspan.errors import DataError, LongspanError
from longspan.results import Result, load_result, write_record
from longspan.tasks import build
from longspan.tasks.base import HELD_OUT

Rules = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredRecord:
    """A record whose rules were scored, or why they were not.

    Attributes:
        path: file of the record.
        metric: main metric of the task, which rules are scored in.
        rules: score of each rule, by split and name; None: not scored.
        reason: why they were not scored.
    """

    path: Path
    metric: str
    rules: Rules | None
    reason: str | None = None


def score_rules(records: Iterable[Path], paths: RunPaths) -> list[ScoredRecord]:
    """Score the rules for every record without them, and write them into it.

    Rules are fitted on the training split of the data that the run was scored on; its checksum must
    be that of the record. Records that have rules are left alone.

    Args:
        records: files of finished runs.
        paths: folders of the data.
    """
    known: dict[Hashable, Rules | str] = {}
    found = []
    for path in records:
        result = load_result(path)
        if result.rules is not None:
            continue
        key = (result.config.task.key, result.data_checksum)
        if key not in known:
            known[key] = _score(path, result, paths)
        rules = known[key]
        if isinstance(rules, str):
            found.append(ScoredRecord(path=path, metric=result.metric, rules=None, reason=rules))
            continue
        own = {str(x): rules[x] for x in HELD_OUT if x in result.scores}
        write_record(dataclasses.replace(result, rules=own), path)
        found.append(ScoredRecord(path=path, metric=result.metric, rules=own))
    return found


def _score(path: Path, result: Result, paths: RunPaths) -> Rules | str:
    """Return the scores of the rules on the data of a record, or why there are none."""
    try:
        task = build(result.task, result.config.task.options)
        if task.info.version != result.config.task.version:
            raise DataError(
                f"{path.name} is of version {result.config.task.version} of {result.task}; "
                f"expected {task.info.version}: run it again"
            )
        task.open(paths.cache, paths.data)
        if reason := data_mismatch(result, task.checksum, path):
            return reason
        return {split: task.rule_scores(split) for split in HELD_OUT}
    except LongspanError as error:
        return str(error)
