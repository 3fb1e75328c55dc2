"""What a page says about one protocol, part by part: sheets and the figures beside them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longspan.report.figures import Drawing, Figure
from longspan.report.sections import DRAWN, Beside, chapters
from longspan.report.settings import settings
from longspan.report.sheets import Sheet

COST = (
    "Up and to the right is better: accuracy on test against training speed, the area of a mark "
    "growing with peak memory, bars for 95 % intervals."
)
CURVES = (
    "The mean over seeds, with a band from the lowest to the highest; among many mechanisms only "
    "those singled out have their band. Accuracy is that of the validation split, from which alone "
    "a checkpoint may be chosen; the loss is the mean since the point before."
)
EMBEDDINGS = "Cosines of learnt embeddings with one another, pale where low and dark where high."
ROLLOUTS = "How much of one validation example reaches the output, through all layers."
SETTINGS = (
    "What is equal for all runs is said once, what is equal for all runs of a task or of a "
    "mechanism in its table; the last table has every run."
)
# The parts in their order: the section whose sheets stand there, what its figures show, figures.
ORDER: tuple[tuple[str, str, Callable[[Drawing], Iterable[Figure]] | None], ...] = (
    ("leaderboard", "", Drawing.scores),
    ("cost", COST, Drawing.costs),
    ("curves", CURVES, Drawing.curves),
    ("reached", "", None),
    ("gap", "", None),
    ("slices", "", Drawing.slices),
    ("span", "", Drawing.spans),
    ("embeddings", EMBEDDINGS, Drawing.similarities),
    ("rollouts", ROLLOUTS, Drawing.rollouts),
    ("significance", "", None),
    ("published", "", None),
    ("tuning", "", None),
    ("alarms", "", None),
    ("failures", "", None),
    ("scores", "", None),
)
# Of the parts that have figures alone.
TITLES = {
    "curves": "Learning curves",
    "embeddings": "Embeddings",
    "rollouts": "Attention rollout",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A heading, a sentence or two, and what stands below."""

    title: str
    about: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sheets: tuple[Sheet, ...] = ()
    drawn: str = ""  # what the figures show
    figures: tuple[Figure, ...] = ()


def parts(drawing: Drawing, name: str, beside: Beside) -> list[Part]:
    """Everything about one protocol that there is something to say about.

    Args:
        drawing: its table, and how it is drawn.
        name: start of the names of its tables of settings.
        beside: what stands beside the results.
    """
    (chapter,) = chapters([drawing.table], beside)
    sheets = {section.name: section.sheets for section in chapter.sections}
    found = [
        Part(
            title=TITLES.get(section) or DRAWN[section][0],
            sheets=sheets.get(section, ()),
            drawn=drawn,
            figures=tuple(draw(drawing)) if draw else (),
        )
        for section, drawn, draw in ORDER
    ]
    own = settings(drawing.table, name)
    found.append(
        Part(title="Settings of every run", about=SETTINGS, facts=own.common, sheets=own.sheets)
    )
    return [part for part in found if part.sheets or part.figures]
