"""Charts of the use of the context by language models."""

from collections import Counter
from collections.abc import Sequence

from longspan.report.charts.intervals import series_chart
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import Styles, run_label
from longspan.report.numbers import percent
from longspan.report.tables.context_use import Measured, bucket_means


def loss_by_context(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the loss by the context that is left, a line for each run; None without runs."""
    runs = Counter(x.row.label for x in measured)
    points = [
        {
            **run_label(x.row.label, x.use.seed, runs[x.row.label]),
            "place": str(loss.context),
            "value": round(loss.loss, 4),
            "shown": f"{loss.loss:.3f} nats, {x.use.blocks} blocks",
        }
        for x in measured
        for loss in x.use.contexts
    ]
    points.sort(key=lambda x: int(str(x["place"])))
    text = "Loss of the same targets by the number of tokens before them that the model reads"
    title = "Loss, nats per token (lower is better)"
    return series_chart(points, "Context left, tokens", title, None, text, styles)


def attention_by_bucket(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention weight by bucket of each part of the keys; None without such runs.

    It is the figure of Rae et al. 2020 on attention to the compressed memory, the memory and the
    sequence: means over layers.
    """
    runs = Counter(x.row.label for x in measured)
    # Rows with the most parts have all of them in their order.
    parts = sorted(([*bucket_means(x)] for x in measured), key=lambda x: -len(x))
    points = [
        {
            **run_label(x.row.label, x.use.seed, runs[x.row.label]),
            "place": f"{x.part} {number}",
            "value": round(100 * share, 4),
            "shown": percent(share),
        }
        for model_parts in parts
        for x in model_parts
        for number, share in x.values.items()
        if share is not None
    ]
    text = "Share of the attention weight by bucket of the keys, the oldest keys first"
    title = "Share of the attention weight, %"
    return series_chart(points, "Bucket of the keys, the oldest first", title, None, text, styles)
