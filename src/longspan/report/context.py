"""Records that a report reads besides the runs of a leaderboard."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longspan.report.charts.styles import PRINT, Medium, Styles, assign_styles
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.tables.published import PublishedFigure
from longspan.results import (
    Analysis,
    ContextUse,
    CrossEvaluation,
    DocumentScores,
    EfficiencyRecord,
)


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of the sections of a report other than their leaderboard.

    Attributes:
        boards: all leaderboards of the report, for sections that compare protocols; none: those of
            which tables are made.
        published: published scores and other figures.
        analyses: analyses of trained models.
        evaluations: scores of trained models on data that they were not trained on.
        context_uses: what trained language models use of their context.
        documents: scores of runs on documents of one's own, beside TF-IDF.
        efficiency: measurements of time, memory and operations.
        sweep: option against which scores are shown, such as task.pairs; None: none.
        styles: styles of the rows in figures.
    """

    boards: Sequence[Leaderboard] = ()
    published: Sequence[PublishedFigure] = ()
    analyses: Sequence[Analysis] = ()
    evaluations: Sequence[CrossEvaluation] = ()
    context_uses: Sequence[ContextUse] = ()
    documents: Sequence[DocumentScores] = ()
    efficiency: Sequence[EfficiencyRecord] = ()
    sweep: str | None = None
    styles: Styles = field(default_factory=lambda: Styles(by_name={}))

    def efficiency_of(self, board: Leaderboard) -> Sequence[EfficiencyRecord]:
        """Return the records of efficiency, which follow the first leaderboard."""
        return self.efficiency if self.boards and board is self.boards[0] else ()


def styles_of(boards: Sequence[Leaderboard], medium: Medium = PRINT) -> Styles:
    """Return the styles of all rows of some leaderboards."""
    return assign_styles({row.label: row.family for board in boards for row in board.rows}, medium)
