"""Chart of the attention weight by bucket of the keys, from the oldest to the newest."""

from collections.abc import Sequence

from longspan.report.charts.context_losses import run_name
from longspan.report.charts.intervals import series_chart
from longspan.report.charts.styles import Spec, Styles
from longspan.report.numbers import percent
from longspan.report.tables.context_use import Measured, bucket_means

TITLE = "Share of the attention weight, %"


def attention_by_bucket(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention weight by bucket of each part of the keys; None without such runs.

    It is the figure of Rae et al. 2020 on attention to the compressed memory, the memory and the
    sequence: means over layers.
    """
    parts = [part for one in measured for part in bucket_means(one)]
    # Rows with the most parts have all of them in their order.
    parts.sort(key=lambda x: -len({name for own in x.use.buckets for name in own}))
    points = [
        {
            "row": run_name(part, measured),
            "mechanism": part.row.label,
            "place": f"{part.part} {number}",
            "value": round(100 * share, 4),
            "shown": percent(share),
        }
        for part in parts
        for number, share in enumerate(part.shares, 1)
    ]
    text = "Share of the attention weight by bucket of the keys, the oldest keys first"
    return series_chart(points, "Bucket of the keys, the oldest first", TITLE, None, text, styles)
