"""Sheets as HTML tables that sort by a click or a key."""

import base64
import json

from longspan.report import render
from longspan.report.markup import Markup, element, join
from longspan.report.sheets import Entry, Heading, Sheet


def scrolling(caption: str, name: str, *parts: Markup) -> Markup:
    """A table that scrolls sideways on a narrow screen, by keyboard too."""
    frame = {"class": "scroll", "role": "region", "tabindex": "0", "aria-labelledby": name}
    head = element("caption", caption, attributes={"id": name})
    return element(
        "div", element("table", head, *parts, attributes={"class": "board"}), attributes=frame
    )


def board(sheet: Sheet) -> Markup:
    """A sheet with its notes and its figures to download."""
    notes = [element("li", note) for note in sheet.notes]
    return join(
        scrolling(
            sheet.title,
            f"{sheet.name}-board",
            element("thead", element("tr", [_sortable(heading) for heading in sheet.headings])),
            element("tbody", [_row(row) for row in sheet.rows]),
            element("tbody", [_row(row) for row in sheet.footer], attributes={"class": "floor"}),
        ),
        element("ul", notes, attributes={"class": "notes small"}) if notes else "",
        element("p", sheet.about, attributes={"class": "prose small"}),
    )


def downloads(sheet: Sheet) -> Markup:
    """The unrounded figures of a sheet as files."""
    data = json.dumps(render.to_json(sheet), indent=1, ensure_ascii=False)
    return element(
        "p",
        "Unrounded: ",
        _download(f"{sheet.name}.csv", "text/csv", render.to_csv([sheet])),
        ", ",
        _download(f"{sheet.name}.json", "application/json", data),
        attributes={"class": "small downloads"},
    )


def _sortable(heading: Heading) -> Markup:
    button = element("button", heading.name, attributes={"type": "button"})
    return element("th", button, attributes={"scope": "col", "data-kind": heading.kind})


def _row(row: tuple[Entry, ...]) -> Markup:
    place = {"scope": "row", "data-value": row[0].value}
    return element(
        "tr", element("th", row[0].shown, attributes=place), [_entry(entry) for entry in row[1:]]
    )


def _entry(entry: Entry) -> Markup:
    main = element("span", entry.shown, attributes={"class": "best"}) if entry.best else entry.shown
    below = element("span", entry.detail, attributes={"class": "detail"}) if entry.detail else ""
    value = "" if entry.value is None else entry.value
    return element("td", main, below, attributes={"data-value": value})


def _download(name: str, kind: str, content: str) -> Markup:
    packed = base64.b64encode(content.encode()).decode()
    return element("a", name, attributes={"download": name, "href": f"data:{kind};base64,{packed}"})
