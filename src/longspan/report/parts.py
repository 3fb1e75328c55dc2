"""What a page says about one protocol, part by part: sheets and the figures beside them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longspan.report.figures import Drawing, Figure
from longspan.report.sections import Beside, chapters
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
# The parts in their order: the section whose sheets stand there (if any), title, about, figures.
ORDER: tuple[tuple[str, str, str, Callable[[Drawing], Iterable[Figure]] | None], ...] = (
    ("leaderboard", "Leaderboard", "", Drawing.scores),
    ("cost", "Score against speed", COST, Drawing.costs),
    ("curves", "Learning curves", CURVES, Drawing.curves),
    ("reached", "Steps to given accuracies", "", None),
    ("gap", "Train against test", "", None),
    ("slices", "Scores by property of the examples", "", Drawing.slices),
    ("span", "Attention span", "", Drawing.spans),
    ("embeddings", "Embeddings", EMBEDDINGS, Drawing.similarities),
    ("rollouts", "Attention rollout", ROLLOUTS, Drawing.rollouts),
    ("significance", "Which rows can be told apart", "", None),
    ("published", "Published numbers", "", None),
    ("tuning", "Tuning", "", None),
    ("alarms", "Alarms", "", None),
    ("failures", "Failures", "", None),
    ("scores", "Every score", "", None),
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A heading, a sentence or two, and what stands below."""

    title: str
    about: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    sheets: tuple[Sheet, ...] = ()
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
            title=title,
            about=about,
            sheets=sheets.get(section, ()),
            figures=tuple(draw(drawing)) if draw else (),
        )
        for section, title, about, draw in ORDER
    ]
    own = settings(drawing.table, name)
    found.append(
        Part(title="Settings of every run", about=SETTINGS, facts=own.common, sheets=own.sheets)
    )
    return [part for part in found if part.sheets or part.figures]
