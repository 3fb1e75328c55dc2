"""Role of a task: of Long Range Arena, downstream, or neither.

Downstream is every task that is neither of Long Range Arena nor a diagnostic one: masked language
modeling of documents, question answering, retrieval and classification of documents, and tasks of
one's own. Masked inputs of Long Range Arena are a stage of its tasks, with the same data.
"""

from longspan.report.leaderboard.means import FIVE, SIXTH
from longspan.report.leaderboard.values import Leaderboard
from longspan.results import Result

LRA = (*FIVE, SIXTH)
DIAGNOSTIC = ("copying", "needle", "recall")
MASKED = "masked_"  # beginning of the names of the tasks of masked inputs
WORD_PIECES = "tokenizer:"  # beginning of the option `vocabulary` of a task with a tokenizer


def lra_columns(board: Leaderboard) -> list[int]:
    """Return the columns of a leaderboard that are tasks of Long Range Arena, in its order."""
    found = [i for i in _scored(board) if _is_lra(board, i)]
    return sorted(found, key=lambda i: LRA.index(board.columns[i].task))


def downstream_columns(board: Leaderboard) -> list[int]:
    """Return the columns of a leaderboard that are downstream tasks."""
    names = [column.task for column in board.columns]
    others = (*DIAGNOSTIC, *(f"{MASKED}{task}" for task in LRA))
    return [i for i in _scored(board) if not _is_lra(board, i) and names[i] not in others]


def _scored(board: Leaderboard) -> list[int]:
    return [i for i in range(len(board.columns)) if _runs(board, i)]


def _is_lra(board: Leaderboard, column: int) -> bool:
    """Return whether a column has a task of Long Range Arena under its rules: no tokenizer."""
    vocabularies = (run.config.task.options.get("vocabulary") for run in _runs(board, column))
    if any(str(one).startswith(WORD_PIECES) for one in vocabularies):
        return False
    return board.columns[column].task in LRA


def _runs(board: Leaderboard, column: int) -> list[Result]:
    return [run for row in board.rows for run in row.runs(column)]
