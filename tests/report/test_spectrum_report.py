"""Table and chart of the spectrum of attention."""

import dataclasses

import altair as alt
from test_attention_figures import board_and_analyses

from longspan.report.charts.figures import spectrum_figures
from longspan.report.charts.styles import assign_styles
from longspan.report.context import Context
from longspan.report.tables.attention_span import attention_spectrum
from longspan.results import Spectra

SPECTRA = Spectra(
    samples=8, heads=[[[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]], [[0.3, 0.4, 0.5, 0.6, 0.7, 0.8]]]
)


def test_table_and_chart_have_the_shares_of_the_models_that_have_them():
    board, analyses = board_and_analyses(tasks=("image",))
    older = [dataclasses.replace(x, spectra=None) for x in analyses]
    assert attention_spectrum(board, older) == []
    analyses = [dataclasses.replace(x, spectra=SPECTRA) for x in analyses]
    (table,) = attention_spectrum(board, analyses)
    assert [x.name for x in table.columns[1:]] == [
        "3.12 %",
        "6.25 %",
        "12.5 %",
        "25 %",
        "50 %",
        "75 %",
    ]
    rows = [[entry.text for entry in row[1:]] for row in table.rows]
    assert rows == [["20.0", "30.0", "40.0", "50.0", "60.0", "70.0"]] * len(table.rows)
    styles = assign_styles({"full": "dense", "linear": "kernel"})
    (figure,) = spectrum_figures(board, Context(styles=styles, analyses=analyses))
    alt.LayerChart.from_dict(figure.content, validate=True)
    assert {"40.0 %", "60.0 %"} <= {x["shown"] for x in figure.content["data"]["values"]}
