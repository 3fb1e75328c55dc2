"""Report on a source: counts, and the place of everything that is wrong or left out.

split   reason            line  id    place
train   not_in_context    7     q_1   /data/qa/wikipedia-train.json: question 1
"""

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.wording import counted

FILE = "skipped.tsv"  # beside the splits of a built data set
_HEAD = ("split", "reason", "line", "id", "place")


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: its reason, the id of the question, its file and place, and its line if known."""

    reason: str
    id: str
    where: str
    line: int | None = None


@dataclasses.dataclass
class Report:
    """Counts of a part of a source, such as a split, and the cases among them."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    cases: list[Case] = dataclasses.field(default_factory=list)

    def add(self, reason: str, question: str, where: str, line: int | None = None) -> None:
        """Count a case and keep its place.

        Args:
            reason: name of the count.
            question: id of the question.
            where: file and place in it.
            line: line of the file; None: not known yet.
        """
        self.counts[reason] += 1
        self.list_case(reason, question, where, line)

    def list_case(self, reason: str, question: str, where: str, line: int | None = None) -> None:
        """Keep the place of a case that is counted already; arguments as for `add`."""
        self.cases.append(Case(reason, question, where, line))


def format_cases(
    reports: Mapping[Any, Report], line_of: Callable[[str], int | None] = lambda _: None
) -> str:
    """Return the cases of all splits as a table of tab-separated values.

    Args:
        reports: reports by split.
        line_of: returns the line of a question, by its id, where a case has none.
    """
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(_HEAD)
    for split, report in reports.items():
        for case in report.cases:
            line = line_of(case.id) if case.line is None else case.line
            writer.writerow((split, case.reason, line, case.id, case.where))
    return text.getvalue()


def count_cases(reports: Mapping[Any, Report]) -> dict[str, int]:
    """Return the number of cases of all splits by reason."""
    reasons = Counter(case.reason for report in reports.values() for case in report.cases)
    return dict(sorted(reasons.items()))


def describe_cases(cases: Mapping[str, int], nouns: str, folder: Path) -> list[str]:
    """Return the number of cases by reason, and where they are listed; nothing without any.

    Args:
        cases: number of cases by reason.
        nouns: one of them and several: "document|documents".
        folder: folder of the built data set.
    """
    if not cases:
        return []
    counts = ", ".join(f"{name} {count:,}" for name, count in cases.items())
    listed = counted(sum(cases.values()), f"{nouns} is|are listed in")
    return [f"{listed} {folder / FILE}: {counts}"]


def refuse_empty(
    task: str, splits: Mapping[Any, Sized], reports: Mapping[Any, Report], lacks: str, remedy: str
) -> None:
    """Refuse a split without any example.

    Args:
        task: name of the task.
        splits: examples by split.
        reports: reports by split.
        lacks: what the split does not have: "no usable question".
        remedy: end of the message.

    Raises:
        DataError: a split is empty; the message has its counts.
    """
    for split, examples in splits.items():
        if not len(examples):
            counts = sorted(reports[split].counts.items())
            shown = ", ".join(f"{name} {n}" for name, n in counts if n) or "the source has none"
            raise DataError(f"{task}: split {split!r} has {lacks} ({shown}); {remedy}")
