"""Rank correlations of Long Range Arena with downstream tasks: ours, and published ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from longspan.report.leaderboard.prediction import Pair, Prediction, predict
from longspan.report.leaderboard.roles import LRA
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import UNSCORED_RULES
from longspan.report.numbers import count, metric_name, p_value, signed
from longspan.report.published_figures import PublishedFigure
from longspan.report.statistics.contrasts import LEVEL
from longspan.report.statistics.rank_correlation import (
    FEWEST,
    MOST_ENUMERATED,
    ORDERS,
    Correlation,
    RankCorrelation,
)
from longspan.report.tables.published import PublishedScore
from longspan.report.tables.published_predictions import published_predictions
from longspan.report.tables.table import Column, Entry, Table, make_table

ABOUT = (
    "Rank correlation of the mechanisms' test scores on a task of Long Range Arena and on a "
    "downstream task: 1 if both rank them alike, 0 if unrelated, −1 if in opposite order. Scores "
    "that are better when lower are turned round.\n"
    "Below: 95 % intervals. The first is over mechanisms, a bootstrap that covers their choice and "
    "is rough for few of them. The second is over the scores of these mechanisms, redrawn with the "
    "uncertainty of their records; a note says whether that is of seeds, of test examples or of "
    "both. Published scores have the first one alone.\n"
    f"p: share of all orders of up to {MOST_ENUMERATED} mechanisms, or of {ORDERS:,} random orders "
    "of more, whose correlation is at least as large (two-sided). The adjusted p is corrected for "
    "the rows of the table (Holm). Bold: adjusted p < 0.05. Fewer than "
    f"{FEWEST} mechanisms have no correlation, nor have tasks of which the rules were not scored."
)
BOLD = "adjusted p below 0.05"
Part = Callable[[RankCorrelation], Correlation]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A pair of columns, and the published one with the same task of Long Range Arena and metric.

    Attributes:
        pair: of our scores, or a published one by itself.
        published: published pair; None: there is none.
    """

    pair: Pair
    published: Pair | None = None


def predictions(
    board: Leaderboard,
    boards: Sequence[Leaderboard],
    scores: tuple[PublishedScore, ...],
    figures: tuple[PublishedFigure, ...],
) -> list[Table]:
    """Return a table for each leaderboard with tasks of Long Range Arena, then published ones.

    Published correlations are with leaderboards that have downstream tasks, and with those of the
    protocol that they were obtained under.

    Args:
        board: leaderboard with downstream tasks.
        boards: all leaderboards of the report.
        scores: published scores.
        figures: published scores on tasks that the package lacks.
    """
    found = predict(board, boards)
    protocols = {one.protocol for one in scores if one.task not in LRA}
    protocols |= {one.protocol for one in figures if one.task not in LRA}
    if not found and board.protocol not in protocols:
        return []
    published = published_predictions(scores, figures)
    tables = [_own(one, published) for one in found]
    shown = [one for one in published if found or one.source == board.protocol]
    return tables + [_published(board, one) for one in shown]


def _own(found: Prediction, published: Sequence[Prediction]) -> Table:
    known = [pair for one in published for pair in one.pairs]
    rows = [Comparison(pair=pair, published=counterpart(pair, known)) for pair in found.pairs]
    title = f"{found.source} as a predictor of {found.target}"
    table = make_table(
        f"{found.target}-predicted-by-{found.source}",
        title,
        (*COLUMNS, *PUBLISHED, *OVER_MECHANISMS, *OVER_SCORES),
        rows,
        about=ABOUT,
        notes=_notes(found),
    )
    return replace(table, verdict=tuple(_verdict(found)))


def _published(board: Leaderboard, found: Prediction) -> Table:
    table = make_table(
        f"{board.title}-predictions-published-{found.source}",
        f"Published scores under {found.source} as predictors: {found.target}",
        (*COLUMNS, *OVER_MECHANISMS),
        [Comparison(pair=pair) for pair in found.pairs],
        about=ABOUT,
    )
    return replace(table, verdict=tuple(f"Published: {x}" for x in _verdict(found)))


def counterpart(pair: Pair, published: Sequence[Pair]) -> Pair | None:
    """Return the published pair of the same predictor and metric, of the same task if there is."""
    found = [one for one in published if _kind(one) == _kind(pair)]
    return min(found, key=lambda one: one.target.label != pair.target.label, default=None)


def _kind(pair: Pair) -> tuple[str, str]:
    """Return the predictor and the metric; papers do not name the cutoff of mrr@10."""
    return pair.predictor.label, pair.target.metric.name.partition("@")[0]


def _verdict(found: Prediction) -> Iterator[str]:
    """Say of each downstream task which tasks of Long Range Arena rank the mechanisms alike."""
    for target in dict.fromkeys(pair.target for pair in found.pairs):
        pairs = [pair for pair in found.pairs if pair.target is target]
        name = f"{target.label} ({metric_name(target.metric, unit=False)})"
        known = [(pair, pair.correlation.rho.value) for pair in pairs if pair.correlation]
        alike = [pair.predictor.label for pair, rho in known if rho > 0 and _is_significant(pair)]
        opposite = [
            pair.predictor.label for pair, rho in known if rho < 0 and _is_significant(pair)
        ]
        if alike:
            yield f"{name}: ranked alike by {', '.join(alike)}."
        if opposite:
            yield f"{name}: ranked in opposite order by {', '.join(opposite)}."
        if not known and target.unscored:
            yield f"{name}: no correlation, as its {UNSCORED_RULES}."
        elif not known:
            most = max(len(pair.names) for pair in pairs)
            yield f"{name}: no correlation; at most {count(most, 'mechanism')} in common."
        elif not alike and not opposite:
            pair, rho = max(known, key=lambda one: abs(one[1]))
            yield (
                f"{name}: no significant correlation with Long Range Arena; the strongest is "
                f"{signed(rho, 2)} ({pair.predictor.label}, {count(len(pair.names), 'mechanism')}, "
                f"adjusted p {p_value(pair.adjusted_p)})."
            )


def _is_significant(pair: Pair) -> bool:
    return pair.adjusted_p is not None and pair.adjusted_p < LEVEL


def _notes(found: Prediction) -> list[str]:
    notes = []
    shared = sorted({name for pair in found.pairs for name in pair.names})
    if all(len(pair.names) < FEWEST for pair in found.pairs):
        notes.append(
            f"Fewer than {FEWEST} mechanisms have scores under both: {', '.join(shared)}. Run more "
            f"of them under {found.source} and {found.target} for a rank correlation."
        )
    columns = [column for pair in found.pairs for column in (pair.predictor, pair.target)]
    if unscored := sorted({task for column in columns for task in column.unscored}):
        notes.append(f"No correlation with {', '.join(unscored)}, whose {UNSCORED_RULES}.")
    if redrawn := dict.fromkeys(pair.over for pair in found.pairs if pair.over):
        notes.append(f"Scores were redrawn over {'; '.join(redrawn)}.")
    if found.skipped:
        notes.append(f"Left out, as they have several rows: {', '.join(found.skipped)}.")
    return notes


def _rho(one: RankCorrelation) -> Correlation:
    return one.rho


def _tau(one: RankCorrelation) -> Correlation:
    return one.tau


def _coefficient(part: Part) -> Callable[[Comparison], Entry]:
    def entry(x: Comparison) -> Entry:
        if x.pair.correlation is None:
            return Entry(value=None)
        found = part(x.pair.correlation)
        ends = filter(None, [found.over_rows, found.over_scores])
        is_bold = part is _rho and _is_significant(x.pair)
        return Entry(
            value=found.value,
            text=signed(found.value, 2),
            detail=" · ".join(f"{signed(low, 2)}…{signed(high, 2)}" for low, high in ends),
            emphasis=BOLD if is_bold else None,
        )

    return entry


def _p(part: Part) -> Callable[[Comparison], float | None]:
    return lambda x: None if x.pair.correlation is None else part(x.pair.correlation).p


def _end(part: Part, name: str, side: int) -> Callable[[Comparison], float | None]:
    """Return the function to an end of an interval, for programs."""

    def value(x: Comparison) -> float | None:
        ends = None if x.pair.correlation is None else getattr(part(x.pair.correlation), name)
        return None if ends is None else float(ends[side])

    return value


def _interval_columns(name: str, of: str) -> tuple[Column, ...]:
    """Return the ends of both coefficients; their cells show them too."""
    return tuple(
        Column(
            name=f"{title} {end} over {of}",
            kind="higher",
            value=_end(part, name, side),
            show=lambda x: signed(x, 2),
            is_minor=True,
        )
        for title, part in (("Spearman", _rho), ("Kendall", _tau))
        for side, end in enumerate(("low", "high"))
    )


def _published_value(part: Part) -> Callable[[Comparison], Entry]:
    def entry(x: Comparison) -> Entry:
        if x.published is None or x.published.correlation is None:
            return Entry(value=None)
        found = part(x.published.correlation)
        p = p_value(found.p)
        return Entry(value=found.value, text=signed(found.value, 2), detail=f"p {p}")

    return entry


COLUMNS = (
    Column("LRA task", "text", value=lambda x: x.pair.predictor.label),
    Column("Downstream task", "text", value=lambda x: x.pair.target.label),
    Column(
        name="Metric",
        kind="text",
        value=lambda x: metric_name(x.pair.target.metric, unit=False),
        is_minor=True,
    ),
    Column("Mechanisms", "higher", "With both scores.", lambda x: len(x.pair.names)),
    Column("Spearman", "higher", "Spearman's ρ.", _coefficient(_rho)),
    Column("p", "lower", value=_p(_rho), show=p_value),
    Column(
        name="Adjusted p",
        kind="lower",
        value=lambda x: x.pair.adjusted_p,
        show=p_value,
        is_minor=True,
    ),
    Column("Kendall", "higher", "Kendall's τ-b.", _coefficient(_tau)),
    Column("p of Kendall", "lower", value=_p(_tau), show=p_value, is_minor=True),
)
OVER_MECHANISMS = _interval_columns("over_rows", "mechanisms")
OVER_SCORES = (
    *_interval_columns("over_scores", "scores"),
    Column("Redrawn over", "text", value=lambda x: x.pair.over, is_minor=True),
)
PUBLISHED = (
    Column(
        name="Published Spearman",
        kind="higher",
        about="With the same task of Long Range Arena and metric.",
        value=_published_value(_rho),
    ),
    Column("Published Kendall", "higher", value=_published_value(_tau), is_minor=True),
    Column(
        name="Published task",
        kind="text",
        value=lambda x: x.published and x.published.target.label,
        is_minor=True,
    ),
)
