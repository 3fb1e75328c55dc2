"""False positive rate of the report's test: committed runs that are equal but for their seed."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.values import Leaderboard
from longspan.results import load_results

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def equal_runs(import_script):
    return import_script("equal_runs")


@pytest.fixture(scope="module")
def boards() -> list[Leaderboard]:
    return build_leaderboards(load_results([ROOT / "results"]))


def test_equal_runs_are_rejected_in_at_most_8_percent_as_the_committed_page_says(
    equal_runs, boards
):
    counts = equal_runs.count_rejections(boards)
    said = equal_runs.describe(counts)
    sys.stdout.write(said)
    assert said in (ROOT / "results" / "README.md").read_text()
    accuracy = counts.pop("Accuracy")
    others = sum(counts.values(), Counter())
    assert accuracy["tested"] >= 60
    assert others["tested"] >= 20
    for one in (accuracy, others):
        assert one["rejected"] <= 0.08 * one["tested"]


def test_no_committed_row_with_one_seed_is_ranked_without_seed_variance(boards):
    """Over all tables: a row is compared if, and only if, the noise of its seeds is known."""
    cells = [
        (cell, cell.placement)
        for board in boards
        for row in board.rows
        for cell in row.cells
        if cell and cell.placement
    ]
    unknown = [place for cell, place in cells if cell.noise.seed_error is None]
    assert len(unknown) > 50
    for place in unknown:
        assert (place.ranks, place.arrow, place.p, place.adjusted_p) == (None, "", None, None)
        assert not place.is_best
        assert not place.is_second
    borrowed = [cell for cell, place in cells if cell.noise.is_borrowed and place.ranks]
    assert len(borrowed) > 30
    assert all(cell.interval.over.startswith("borrowed seeds") for cell in borrowed)


def test_every_committed_task_has_scored_rules_and_margins_over_the_floor(boards):
    columns = [
        (column, row.cells[i])
        for board in boards
        for i, column in enumerate(board.columns)
        for row in board.rows
    ]
    assert all(column.has_rules for column, _ in columns)
    texts = [(column, x) for column, x in columns if column.task == "text" and x and x.score]
    assert {column.floor.name for column, _ in texts} == {"rule: token counts"}
    for column, cell in texts:
        assert cell.margin == cell.score - column.floor.value
