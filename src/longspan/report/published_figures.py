"""Figures of papers other than test scores: costs, training accuracy, pretraining and what follows.

Sources: tables 2 and 3 of Long Range Arena (Tay et al. 2021), tables 1 and 2 of Simple Local
Attentions Remain Competitive (Xiong et al. 2022). Values are as printed, in the unit of the table.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources

from longspan.report.numbers import Number


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A figure that others published.

    Attributes:
        task: task that it was measured on; of pretraining, a name that no task has.
        quantity: name of a quantity; see `tables.published_figures`.
        value: value in the unit of the quantity.
        protocol: protocol that it was obtained under.
        source: publication.
        length: tokens of an example; None where the protocol decides.
        condition: how it was measured.
    """

    task: str
    mechanism: str
    quantity: str
    value: Number
    protocol: str
    source: str
    length: int | None = None
    condition: str = ""


@functools.cache
def read_published_figures() -> tuple[PublishedFigure, ...]:
    """Read the published figures; a missing value of a table is null."""
    text = resources.files("longspan.report").joinpath("published_figures.json").read_text("utf-8")
    return tuple(
        PublishedFigure(
            mechanism=mechanism,
            value=value,
            protocol=table["protocol"],
            source=table["source"],
            condition=table["condition"],
            **column,
        )
        for table in json.loads(text)
        for mechanism, values in table["rows"].items()
        for column, value in zip(table["columns"], values, strict=True)
        if value is not None
    )
