"""A sheet as an HTML table that sorts, filters and is exported, by mouse, keyboard or voice."""

import re

from longspan.report.markup import Markup, element, join
from longspan.report.sheets import Entry, Heading, Sheet
from longspan.report.styles import Styles

TALL = 30  # rows; a frame of more scrolls downwards too
BRIEF = 160  # characters; of a longer text the first sentence alone stands over its table
LONG = 40  # characters; a longer text in a table is broken into lines
EXPORTS = ("CSV", "JSON", "LaTeX", "Markdown")


def board(sheet: Sheet, look: Styles) -> Markup:
    """The table with its tools, and how to read it below.

    A number stands unrounded in the attribute `data-n` of its place (empty: as shown), a text
    that is shown otherwise in `data-t`; `data-none` marks what was not measured. The page's script
    sorts and exports by them, so that there is one copy of the data.

    Args:
        sheet: the table; its name becomes the id of the element.
        look: gives the mechanisms that entries name their marks.
    """
    parts = {
        "class": "sheet",
        "id": sheet.name,
        "role": "group",
        "aria-labelledby": f"{sheet.name}-title",
        "data-notes": len(sheet.notes) or None,
    }
    return element(
        "div",
        _tools(sheet),
        _frame(sheet, look),
        _list("notes small", sheet.notes),
        _meanings(sheet),
        attributes=parts,
    )


def mark(mechanism: str, look: Styles) -> Markup:
    """The mark of a mechanism as in the charts; nothing for one that has none."""
    if mechanism not in look.names:
        return Markup("")
    use = element("use", attributes={"href": f"#mark-{look.names.index(mechanism)}"})
    return element("svg", use, attributes={"class": "mark", "aria-hidden": "true"})


def _tools(sheet: Sheet) -> Markup:
    entry = {"type": "search", "id": f"{sheet.name}-filter", "autocomplete": "off"}
    label = element("label", "Filter", attributes={"for": f"{sheet.name}-filter"})
    buttons = [
        element("button", name, attributes={"type": "button", "data-export": name.lower()})
        for name in EXPORTS
    ]
    several = len(sheet.rows) > 1
    return element(
        "div",
        [label, Markup(element("input", attributes=entry).removesuffix("</input>"))]
        if several
        else "",
        element("span", attributes={"class": "count small"}),
        element(
            "span",
            element("span", "Export", attributes={"id": f"{sheet.name}-export"}),
            buttons,
            attributes={
                "class": "exports",
                "role": "group",
                "aria-labelledby": f"{sheet.name}-export {sheet.name}-title",
            },
        ),
        attributes={"class": "tools"},
    )


def _frame(sheet: Sheet, look: Styles) -> Markup:
    """The table in a frame that scrolls sideways on a narrow screen, by keyboard too."""
    title = element("strong", sheet.title, attributes={"id": f"{sheet.name}-title"})
    first, _ = _divided(sheet.about)
    about = [" ", element("span", first, attributes={"class": "about"})]
    caption = element("caption", element("span", title, about if first else ""))
    below = [_row(row, sheet, look) for row in sheet.footer]
    head = element("tr", [_heading(heading) for heading in sheet.headings])
    table = element(
        "table",
        caption,
        element("thead", head),
        element("tbody", [_row(row, sheet, look) for row in sheet.rows]),
        element("tbody", below, attributes={"class": "floor"}) if below else "",
    )
    frame = {
        "class": "scroll tall" if len(sheet.rows) > TALL else "scroll",
        "role": "region",
        "tabindex": "0",
        "aria-labelledby": f"{sheet.name}-title",
    }
    return element("div", table, attributes=frame)


def _heading(heading: Heading) -> Markup:
    button = element("button", heading.name, attributes={"type": "button"})
    place = {"scope": "col", "class": heading.kind, "data-about": heading.about or None}
    return element("th", button, attributes=place)


def _row(row: tuple[Entry, ...], sheet: Sheet, look: Styles) -> Markup:
    mechanisms = [entry.mechanism for entry in row if entry.mechanism is not None]
    cells = [
        _cell(entry, heading, look, first=i == 0)
        for i, (entry, heading) in enumerate(zip(row, sheet.headings, strict=True))
    ]
    return element(
        "tr", cells, attributes={"data-mechanism": mechanisms[0] if mechanisms else None}
    )


def _cell(entry: Entry, heading: Heading, look: Styles, *, first: bool) -> Markup:
    place: dict[str, object] = {"scope": "row"} if first else {}
    if not first:
        place["class"] = _class(entry, heading)
    if entry.value is None:
        place["data-none"] = True
    elif isinstance(entry.value, int | float):
        # Shown as it is, it need not be there twice.
        place["data-n"] = repr(entry.value) if repr(entry.value) != entry.shown else ""
    elif entry.value != entry.shown:
        place["data-t"] = entry.value
    # Weight alone says nothing to those who listen.
    word = element("span", f" ({entry.strong})", attributes={"class": "unseen"})
    return element(
        "th" if first else "td",
        mark(entry.mechanism, look) if entry.mechanism is not None else "",
        entry.shown if entry.strong is None else element("b", entry.shown),
        word if entry.strong else "",
        _detail(entry.detail) if entry.detail else "",
        attributes=place,
    )


def _class(entry: Entry, heading: Heading) -> str | None:
    """How it stands in its column; a text on the left and a number on the right need no word."""
    words = isinstance(entry.value, str)
    if words and len(entry.shown) > LONG:
        return "long"
    if words == (heading.kind == "text"):
        return None
    return "right" if words else "text"


def _detail(text: str) -> Markup:
    """What stands below a value; of several parts the first may have a line of its own."""
    first, dot, rest = text.partition(" · ")
    return element("small", first + dot, element("span", rest) if rest else "")


def _list(name: str, texts: tuple[str, ...]) -> Markup:
    if not texts:
        return Markup("")
    return element("ul", [element("li", text) for text in texts], attributes={"class": name})


def _divided(about: str) -> tuple[str, str]:
    """The first sentence, and the rest of what is long."""
    end = re.search(r"\. (?=[A-Z↑])", about)
    if end is None or len(about) <= BRIEF:
        return about, ""
    return about[: end.start() + 1], about[end.end() :]


def _meanings(sheet: Sheet) -> Markup:
    """The rest of the text and what the columns hold, for those who ask."""
    known = [heading for heading in sheet.headings if heading.about]
    _, rest = _divided(sheet.about)
    if not (known or rest):
        return Markup("")
    terms = [join(element("dt", heading.name), element("dd", heading.about)) for heading in known]
    return element(
        "details",
        element("summary", "How to read this table"),
        element("p", rest, attributes={"class": "rest"}) if rest else "",
        element("dl", terms) if terms else "",
        attributes={"class": "meanings"},
    )
