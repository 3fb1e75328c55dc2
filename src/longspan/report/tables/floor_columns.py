"""Columns of scores without a model: chance, majority class, best rule."""

from typing import Any

from longspan.report.leaderboard.values import Floor
from longspan.report.numbers import Number, score
from longspan.report.tables.table import Column, Entry


def _entry(value: Number | None, line: Any) -> Entry:
    return Entry(value=value, text=score(value, line.metric))


def _rule_name(line: Any) -> str | None:
    rule: Floor | None = line.task.rule
    return None if rule is None else rule.name.removeprefix("rule: ")


def _rule_score(line: Any) -> Entry:
    rule: Floor | None = line.task.rule
    return _entry(None if rule is None else rule.value, line)


FLOORS = (
    Column("Chance", "score", value=lambda x: _entry(x.task.chance, x)),
    Column("Majority", "score", value=lambda x: _entry(x.task.majority, x)),
    Column(
        name="Best rule",
        kind="text",
        about="Prediction without a model, of the best score on test.",
        value=_rule_name,
    ),
    Column("Best rule score", "score", value=_rule_score),
)
