"""What a page says about one protocol, part by part: sheets and the figures beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.report.adapter import alarms_sheet, failures_sheet, leaderboard_sheet
from longspan.report.figures import Drawing, Figure
from longspan.report.settings import settings
from longspan.report.sheets import Sheet
from longspan.results import Failure

COST = (
    "Up and to the right is better: accuracy on test against training speed, the area of a mark "
    "growing with peak memory, bars for 95 % intervals."
)
CURVES = (
    "The mean over seeds, with a band from the lowest to the highest; among many mechanisms only "
    "those singled out have their band. Accuracy is that of the validation split, from which alone "
    "a checkpoint may be chosen; the loss is the mean since the point before."
)
SLICES = "Test accuracy of the examples that share a property, mean over seeds."
SPANS = (
    "How far a trained model looks: the distance between tokens weighted by attention, over "
    "validation samples (Tay et al. 2021). The rule is attention to all tokens alike."
)
EMBEDDINGS = "Cosines of learnt embeddings with one another, pale where low and dark where high."
ROLLOUTS = "How much of one validation example reaches the output, through all layers."
SETTINGS = (
    "What is equal for all runs is said once, what is equal for all runs of a task or of a "
    "mechanism in its table; the last table has every run."
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A heading, a sentence or two, and what stands below."""

    title: str
    about: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[Figure, ...] = ()


def parts(drawing: Drawing, name: str, failures: Sequence[Failure]) -> list[Part]:
    """Everything about one protocol that there is something to say about.

    Args:
        drawing: its table, and how it is drawn.
        name: start of the names of all its sheets.
        failures: runs of the protocol that ended without a score.
    """
    table = drawing.table
    own = settings(table, name)
    troubles = [alarms_sheet(table, f"{name}-alarms"), failures_sheet(failures, f"{name}-failures")]
    found = [
        Part(
            title="Leaderboard",
            sheets=(leaderboard_sheet(table, f"{name}-leaderboard"),),
            figures=tuple(drawing.scores()),
        ),
        Part(title="Score against speed", about=COST, figures=tuple(drawing.costs())),
        Part(title="Learning curves", about=CURVES, figures=tuple(drawing.curves())),
        Part(title="Slices", about=SLICES, figures=tuple(drawing.slices())),
        Part(title="Attention span", about=SPANS, figures=tuple(drawing.spans())),
        Part(title="Embeddings", about=EMBEDDINGS, figures=tuple(drawing.similarities())),
        Part(title="Attention rollout", about=ROLLOUTS, figures=tuple(drawing.rollouts())),
        Part(title="Alarms and failures", sheets=tuple(sheet for sheet in troubles if sheet)),
        Part(title="Settings of every run", about=SETTINGS, facts=own.common, sheets=own.sheets),
    ]
    return [part for part in found if part.sheets or part.figures]
