"""Rows of a leaderboard with the analyses of their runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.results import Analysis, AttentionSpans, Result, Span


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """A row with the analyses of its runs on one task."""

    row: Row
    analyses: list[Analysis]

    @property
    def spans(self) -> list[AttentionSpans]:
        """Attention spans of the models that have attention weights."""
        return [one.spans for one in self.analyses if one.spans is not None]

    def layer(self, i: int) -> list[Span]:
        """Return the spans of a layer, of the models that have it."""
        return [spans.layers[i] for spans in self.spans if i < len(spans.layers)]


def analyzed_rows(board: Leaderboard, column: int, analyses: Sequence[Analysis]) -> list[Analyzed]:
    """Return the rows with analyses of their runs on a task."""
    found = []
    for row in board.rows:
        runs = set(map(_run, row.runs(column)))
        own = [one for one in analyses if _run(one) in runs]
        if own:
            found.append(Analyzed(row=row, analyses=own))
    return found


def _run(one: Result | Analysis) -> tuple[str, str, str, str, int]:
    return one.protocol, one.task, one.row_name, one.config_hash, one.seed
