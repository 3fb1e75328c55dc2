"""Any sheet as text: terminal (rich), Markdown, LaTeX, and unrounded as CSV and JSON."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from longspan.report.sheets import Entry, Sheet

TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"–": "--", "−": "$-$", "·": r"$\cdot$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    **{"±": r"$\pm$", "×": r"$\times$"},
}


def terminal(sheet: Sheet) -> Grid:
    """A sheet for a rich console."""
    grid = Grid(
        title=Text(sheet.title),
        caption=Text("\n".join([*sheet.notes, sheet.about])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for heading in sheet.headings:
        # A narrow terminal breaks long words; it never hides the end of a number.
        grid.add_column(
            Text(heading.name),
            justify="left" if heading.kind == "text" else "right",
            overflow="fold",
        )
    for row in sheet.rows:
        grid.add_row(*(_bright(entry) for entry in row))
    if sheet.footer:
        grid.add_section()
    for row in sheet.footer:
        grid.add_row(*(_bright(entry) for entry in row), style="dim")
    return grid


def _bright(entry: Entry) -> Text:
    shown = Text(entry.shown, style="" if entry.strong is None else "bold")
    return shown.append(f"\n{entry.detail}", style="not bold") if entry.detail else shown


def markdown(sheet: Sheet) -> str:
    """A sheet as a Markdown table with its notes below."""
    names = [_plain(heading.name) for heading in sheet.headings]
    rule = [":--" if heading.kind == "text" else "--:" for heading in sheet.headings]
    lines = [names, rule, *([_cell(x) for x in row] for row in (*sheet.rows, *sheet.footer))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    below = [_plain(note) for note in (*sheet.notes, sheet.about) if note]
    return "\n\n".join([f"### {_plain(sheet.title)}", table, *below]) + "\n"


def _cell(entry: Entry) -> str:
    shown = _plain(entry.shown) if entry.strong is None else f"**{_plain(entry.shown)}**"
    return f"{shown} {_plain(entry.detail)}".strip()


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else."""
    for sign in "\\|<*_`[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def latex(sheet: Sheet) -> str:
    """A sheet as a table of LaTeX, for the package booktabs; the best in bold."""
    columns = "".join("l" if heading.kind == "text" else "r" for heading in sheet.headings)
    lines = [[_tex(heading.name) for heading in sheet.headings]]
    lines += [[_set(entry) for entry in row] for row in sheet.rows]
    floor = [[_set(entry) for entry in row] for row in sheet.footer]
    below = [_tex(note) for note in (*sheet.notes, sheet.about) if note]
    head, *body = (f"  {' & '.join(line)} \\\\" for line in lines)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{_tex(sheet.title)}}}",
            f"\\label{{tab:{sheet.name}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            *(r"\toprule", head, r"\midrule", *body),
            *([r"\midrule"] if floor else []),
            *(f"  {' & '.join(line)} \\\\" for line in floor),
            *(r"\bottomrule", r"\end{tabular}"),
            *(f"\\par\\smallskip{{\\footnotesize {note}}}" for note in below),
            r"\end{table}",
            "",
        ]
    )


def _set(entry: Entry) -> str:
    shown = _tex(entry.shown) if entry.strong is None else f"\\textbf{{{_tex(entry.shown)}}}"
    return f"{shown} {{\\scriptsize {_tex(entry.detail)}}}" if entry.detail else shown


def _tex(text: str) -> str:
    """Text that LaTeX takes for nothing else."""
    return " ".join("".join(TEX.get(sign, sign) for sign in text).split())


def to_csv(sheets: Sequence[Sheet]) -> str:
    """Sheets as CSV, unrounded; a missing value is empty. Sheets of the same columns are one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    before: list[str] = []
    for sheet in sheets:
        names = keys(sheet)
        if names != before:
            if before:
                text.write("\n")
            writer.writerow(names)
        before = names
        writer.writerows([entry.value for entry in row] for row in (*sheet.rows, *sheet.footer))
    return text.getvalue()


def to_json(sheet: Sheet) -> dict[str, Any]:
    """A sheet as plain values, none of them rounded; a missing value is None."""
    names = keys(sheet)
    rows, footer = (
        [dict(zip(names, (entry.value for entry in row), strict=True)) for row in part]
        for part in (sheet.rows, sheet.footer)
    )
    return {
        "name": sheet.name,
        "title": sheet.title,
        "about": sheet.about,
        "columns": [
            {"key": key, "name": heading.name, "kind": heading.kind, "about": heading.about}
            for key, heading in zip(names, sheet.headings, strict=True)
        ],
        "rows": rows,
        "footer": footer,
        "notes": list(sheet.notes),
    }


def keys(sheet: Sheet) -> list[str]:
    """Names of the columns for programs: small letters, digits and underscores, each once."""
    found: list[str] = []
    for heading in sheet.headings:
        key = re.sub(r"[^a-z0-9]+", "_", heading.name.lower()).strip("_") or "column"
        found.append(key if key not in found else f"{key}_{len(found) + 1}")
    return found
