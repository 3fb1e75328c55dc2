"""All charts of a report: for the page, and as files for papers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.errors import OptionError
from longspan.files import atomic_write
from longspan.report import attention, dots
from longspan.report.charts import Quantity, learning_curves, save, score_against_cost
from longspan.report.pictures import Picture
from longspan.report.rows import Table
from longspan.report.sheets import slug
from longspan.report.spans import of
from longspan.report.styles import Spec, Styles, styles

if TYPE_CHECKING:
    from longspan.results.analysis import Analysis

QUANTITIES: tuple[Quantity, ...] = ("validation accuracy", "training loss")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart or a picture with its name, which is the stem of its file too."""

    name: str
    caption: str
    drawn: Spec | Picture
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What figures of one protocol are drawn from, and how."""

    table: Table
    look: Styles
    legend: bool  # whether each chart has one of its own
    analyses: Sequence["Analysis"] = ()

    def scores(self) -> list[Figure]:
        """Accuracy by mechanism, for each task."""
        return self._by_task("scores", dots.scores)

    def costs(self) -> list[Figure]:
        """Accuracy against speed: the mean that rows are ranked by, then each task; by device."""
        table, found = self.table, []
        tasks: list[int | None] = [*range(len(table.columns))]
        for device in table.hardware:
            apart = f" {device}" if len(table.hardware) > 1 else ""
            for place in [None, *tasks] if len(tasks) > 1 else tasks:
                one = table.averages[0] if place is None else table.columns[place]
                what = one.label
                # The names are beside the bubbles.
                chart = score_against_cost(table, place, device, self.look, legend=False)
                found += self._figure(f"cost {what}{apart}", f"{what}, {device}", chart)
        return found

    def curves(self) -> list[Figure]:
        """Validation accuracy and training loss against the step, for each task."""
        return [
            figure
            for i, column in enumerate(self.table.columns)
            for quantity in QUANTITIES
            for figure in self._figure(
                f"curves {column.label} {quantity}",
                f"{column.label}, {quantity}",
                learning_curves(self.table, i, quantity, self.look, legend=self.legend),
            )
        ]

    def slices(self) -> list[Figure]:
        """Accuracy by slice, for each task and property."""
        return [
            figure
            for i, column in enumerate(self.table.columns)
            for name in dots.groupings(self.table, i)
            for figure in self._figure(
                f"slices {column.label} {name}",
                f"{column.label} by {name}",
                dots.slices(self.table, i, name, self.look, legend=self.legend),
            )
        ]

    def spans(self) -> list[Figure]:
        """Required attention span by mechanism and by layer, for each task."""
        ways = (("span", attention.required_span), ("layers", attention.layers))
        return [
            figure
            for task, group in self._analysed()
            for name, chart in ways
            for figure in self._figure(
                f"{name} {task}",
                f"{task}, attention span" + (" by layer" if name == "layers" else ""),
                chart(group, self.look, legend=self.legend),
            )
        ]

    def rollouts(self) -> list[Figure]:
        """Where each model looks in one input."""
        return [
            self._picture("rollout", one, attention.rollout(one.rollout))
            for _, group in self._analysed()
            for one in group
            if one.rollout is not None
        ]

    def similarities(self) -> list[Figure]:
        """Similarity of the embeddings of positions and of tokens."""
        return [
            self._picture(name, one, attention.similarity(of, f"{name} embeddings"))
            for _, group in self._analysed()
            for one in group
            for name, of in (("position", one.positions), ("token", one.tokens))
            if of is not None
        ]

    def all(self) -> list[Figure]:
        """Every figure of the protocol."""
        parts = (self.scores, self.costs, self.curves, self.slices, self.spans)
        pictures = (self.similarities, self.rollouts)
        return [figure for part in (*parts, *pictures) for figure in part()]

    def _analysed(self) -> list[tuple[str, list["Analysis"]]]:
        by_task = [
            (column.label, [one for row in self.table.rows for one in of(row, i, self.analyses)])
            for i, column in enumerate(self.table.columns)
        ]
        return [(task, group) for task, group in by_task if group]

    def _by_task(self, name: str, chart: Callable[..., Spec | None]) -> list[Figure]:
        return [
            figure
            for i, column in enumerate(self.table.columns)
            for figure in self._figure(
                f"{name} {column.label}",
                column.label,
                chart(self.table, i, self.look, legend=False),
            )
        ]

    def _figure(self, name: str, caption: str, chart: Spec | None) -> list[Figure]:
        if chart is None:
            return []
        name = slug(f"{self.table.title} {name}")
        return [Figure(name=name, caption=caption, drawn=chart)]

    def _picture(self, kind: str, one: "Analysis", drawn: Picture) -> Figure:
        name = slug(
            f"{one.protocol} {kind} {one.task} {one.mechanism} {one.config_hash} {one.seed}"
        )
        caption = f"{one.mechanism} on {one.task}, seed {one.seed}: {kind}"
        return Figure(name=name, caption=caption, drawn=drawn)


def write_figures(
    tables: Sequence[Table],
    folder: Path,
    format: str,
    analyses: Sequence["Analysis"] = (),
) -> list[Path]:
    """Write every chart of a report into a folder, for print: on white, legends included.

    Args:
        tables: the leaderboards of the report.
        folder: where to; made if it is not there. Files of the same names are replaced.
        format: "svg", "png" or "both"; matrices and inputs are always png.
        analyses: of some of the runs.

    Returns:
        The files, in the order of the page.

    Raises:
        OptionError: there is no such format.
        RunError: a file cannot be written.
    """
    if format not in ("svg", "png", "both"):
        raise OptionError(f"figures are written as svg, png or both, got {format!r}")
    look = styles(row.mechanism for table in tables for row in table.rows)
    kinds = ("svg", "png") if format == "both" else (format,)
    return [
        path
        for table in tables
        for figure in Drawing(table=table, look=look, legend=True, analyses=analyses).all()
        for path in _written(figure, folder, kinds)
    ]


def _written(figure: Figure, folder: Path, kinds: Sequence[str]) -> list[Path]:
    if not isinstance(figure.drawn, Picture):
        return [save(figure.drawn, folder / f"{figure.name}.{kind}") for kind in kinds]
    path = folder / f"{figure.name}.png"
    with atomic_write(path) as temporary:
        temporary.write_bytes(figure.drawn.png(times=8))
    return [path]
