"""Leaderboards as HTML tables that sort by a click or a key."""

import base64
import json
from collections.abc import Callable

from longspan.report.markup import Markup, element, join
from longspan.report.numbers import MISSING, Number, percent, points
from longspan.report.published import Comparison
from longspan.report.render import (
    COSTS,
    LEGEND,
    costs,
    floors,
    footnotes,
    header,
    marks,
    seeds,
    spread,
    to_csv,
    to_json,
)
from longspan.report.tables import Cell, Row, Table


def scrolling(caption: str, name: str, *parts: Markup) -> Markup:
    """A table that scrolls sideways on a narrow screen, by keyboard too."""
    frame = {"class": "scroll", "role": "region", "tabindex": "0", "aria-labelledby": name}
    head = element("caption", caption, attributes={"id": name})
    return element(
        "div", element("table", head, *parts, attributes={"class": "board"}), attributes=frame
    )


def board(table: Table, name: str) -> Markup:
    """A leaderboard with its footnotes and its figures to download."""
    names = header(table)
    kinds = ["text"] + ["score"] * (len(names) - 1 - len(COSTS)) + ["cost", "score", "cost", "cost"]
    head = element(
        "tr",
        [_sortable(text, kind) for text, kind in zip(names, kinds, strict=True)],
    )
    best = _several_ranked(table)
    notes = [element("li", note) for note in footnotes(table)]
    return join(
        scrolling(
            f"Leaderboard of {table.protocol}: test accuracy, %",
            f"{name}-board",
            element("thead", head),
            element("tbody", [_row(row, best) for row in table.rows]),
            element("tbody", _floor(table), attributes={"class": "floor"}),
        ),
        element("ul", notes, attributes={"class": "notes small"}) if notes else "",
        element("p", LEGEND, attributes={"class": "prose small"}),
        _downloads(table),
    )


def _sortable(name: str, kind: str) -> Markup:
    button = element("button", name, attributes={"type": "button"})
    return element("th", button, attributes={"scope": "col", "data-kind": kind})


def _several_ranked(table: Table) -> bool:
    """Whether there is a competition: the best of one row says nothing."""
    return sum(not row.overridden for row in table.rows) > 1


def _row(row: Row, best: bool) -> Markup:
    mark = element("sup", marks(row)) if row.notes else ""
    place = {"scope": "row", "data-value": row.label}
    head = element("th", row.label, " " if mark else "", mark, attributes=place)
    cells = [_cell(cell, best) for cell in row.cells]
    average = [_number(row.mean, percent(row.mean), best and row.rank == 1)]
    cost = row.cost
    values = [cost.parameters, cost.tokens_per_second, cost.peak_memory, cost.gflops]
    return element(
        "tr",
        head,
        cells,
        average if len(row.cells) > 1 else "",
        [_number(value, shown) for value, shown in zip(values, costs(row), strict=True)],
    )


def _cell(cell: Cell | None, best: bool) -> Markup:
    if cell is None or cell.accuracy is None:
        return _number(None, MISSING)
    details = [spread(cell.interval), f"{points(cell.margin)} · {seeds(cell)}"]
    return _number(cell.accuracy, percent(cell.accuracy), best and cell.rank == 1, details)


def _number(
    value: Number | None, shown: str, best: bool = False, details: list[str] | None = None
) -> Markup:
    main = element("span", shown, attributes={"class": "best"}) if best else shown
    below = [element("span", text, attributes={"class": "detail"}) for text in details or []]
    return element("td", main, below, attributes={"data-value": "" if value is None else value})


def _floor(table: Table) -> list[Markup]:
    return [
        element(
            "tr",
            element("th", name, attributes={"scope": "row"}),
            [_number(value, percent(value)) for value in values],
            _number(average, percent(average)) if len(values) > 1 else "",
            [_number(None, MISSING)] * len(COSTS),
        )
        for name, values, average in floors(table)
    ]


def _downloads(table: Table) -> Markup:
    data = json.dumps(to_json(table), indent=1, ensure_ascii=False)
    return element(
        "p",
        "Unrounded: ",
        _download(f"{table.protocol}.csv", "text/csv", to_csv(table)),
        ", ",
        _download(f"{table.protocol}.json", "application/json", data),
        attributes={"class": "small downloads"},
    )


def _download(name: str, kind: str, content: str) -> Markup:
    packed = base64.b64encode(content.encode()).decode()
    return element("a", name, attributes={"download": name, "href": f"data:{kind};base64,{packed}"})


def published(comparisons: list[Comparison], name: str) -> Markup:
    """Published numbers beside ours, each with its protocol."""
    columns: list[tuple[str, Callable[[Comparison], str], bool]] = [
        ("Task", lambda pair: pair.published.task, True),
        ("Mechanism", lambda pair: pair.published.mechanism, True),
        ("Published", lambda pair: percent(pair.published.accuracy), False),
        ("Its protocol", lambda pair: pair.published.protocol, True),
        ("Source", lambda pair: pair.published.source, True),
        ("Ours", lambda pair: percent(pair.cell.accuracy if pair.cell else None), False),
        ("95 % interval", lambda pair: spread(pair.cell.interval if pair.cell else None), False),
        ("Our protocol", lambda pair: pair.protocol or MISSING, True),
        ("Our row", lambda pair: pair.label or MISSING, True),
    ]
    head = [
        element("th", title, attributes={"scope": "col", "class": "text" if text else None})
        for title, _, text in columns
    ]
    rows = [
        element(
            "tr",
            [
                element("td", show(pair), attributes={"class": "text" if text else None})
                for _, show, text in columns
            ],
        )
        for pair in comparisons
    ]
    caption = "Test accuracy in percent as published and as measured here."
    return scrolling(caption, name, element("thead", element("tr", head)), element("tbody", rows))
