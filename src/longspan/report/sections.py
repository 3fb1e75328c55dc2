"""Every section of a report as sheets, by protocol: the one place that knows them all."""

from collections.abc import Callable, Sequence

from longspan.report import leaderboard
from longspan.report.sheets import Sheet
from longspan.report.tables import Table

SECTIONS: dict[str, Callable[[Table], list[Sheet]]] = {
    "leaderboard": lambda table: [leaderboard.sheet(table)],
    "scores": lambda table: [leaderboard.scores(table)],
}


def sections(tables: Sequence[Table]) -> list[Sheet]:
    """All sheets, those of a protocol together; sections without content are left out."""
    return [sheet for table in tables for draw in SECTIONS.values() for sheet in draw(table)]
