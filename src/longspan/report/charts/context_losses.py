"""Chart of the loss of language models by the context that is left."""

from collections.abc import Sequence

from longspan.report.charts.intervals import series_chart
from longspan.report.charts.styles import Spec, Styles
from longspan.report.tables.context_use import Measured

TITLE = "Loss, nats per token (lower is better)"


def loss_by_context(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the loss by the context that is left, a line for each run; None without runs."""
    points = [
        {
            "row": run_name(one, measured),
            "mechanism": one.row.label,
            "place": str(loss.context),
            "value": round(loss.loss, 4),
            "shown": f"{loss.loss:.3f} nats, {one.use.blocks} blocks",
        }
        for one in measured
        for loss in one.use.contexts
    ]
    points.sort(key=lambda x: int(str(x["place"])))
    text = "Loss of the same targets by the number of tokens before them that the model reads"
    return series_chart(points, "Context left, tokens", TITLE, None, text, styles)


def run_name(one: Measured, measured: Sequence[Measured]) -> str:
    """Return the label of the row, with the seed where it has several runs."""
    several = sum(other.row.label == one.row.label for other in measured) > 1
    return f"{one.row.label}, seed {one.use.seed}" if several else one.row.label
