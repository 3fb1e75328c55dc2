"""Tables as text: Markdown and LaTeX as shown, CSV and JSON unrounded."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from longspan.report.tables.table import Entry, Table

_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"–": "--", "−": "$-$", "·": r"$\cdot$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    **{"±": r"$\pm$", "×": r"$\times$", "≈": r"$\approx$", "≥": r"$\geq$", "∞": r"$\infty$"},
}


def markdown(tables: Sequence[Table]) -> str:
    """Return tables in Markdown; the explanation of each kind once, at the end."""
    parts = [_markdown_table(table) for table in tables]
    parts += [_plain(about) for about in _explanations(tables)]
    return "\n\n".join(parts) + "\n"


def _explanations(tables: Sequence[Table]) -> list[str]:
    return list(dict.fromkeys(table.about for table in tables if table.about))


def _markdown_table(table: Table) -> str:
    names = [_plain(column.name) for column in table.columns]
    rule = [":--" if column.kind == "text" else "--:" for column in table.columns]
    rows = [[_markdown_entry(entry) for entry in row] for row in (*table.rows, *table.footer)]
    lines = "\n".join(f"| {' | '.join(line)} |" for line in [names, rule, *rows])
    title, said = f"### {_plain(table.title)}", " ".join(map(_plain, table.verdict))
    return "\n\n".join(filter(None, [title, said, lines, *map(_plain, table.notes)]))


def _markdown_entry(entry: Entry) -> str:
    text = _plain(entry.text)
    if entry.emphasis is not None:
        text = f"**{text}**"
    if entry.underline is not None:
        text = f"<ins>{text}</ins>"  # Markdown has no underline; GitHub renders this element
    return f"{text} {_plain(entry.detail)}".strip()


def _plain(text: str) -> str:
    """Escape the signs that Markdown interprets."""
    for sign in "\\|<*_`[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def latex(tables: Sequence[Table]) -> str:
    """Return tables in LaTeX with the package booktabs; explanations once, at the end."""
    parts = [_latex_table(table) for table in tables]
    parts += [f"{{\\footnotesize {tex(about)}}}" for about in _explanations(tables)]
    return "\n\n".join(parts) + "\n"


def _latex_table(table: Table) -> str:
    alignment = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    rows, footer = (
        [latex_row(map(_latex_entry, row)) for row in part] for part in (table.rows, table.footer)
    )
    head = latex_row(tex(column.name) for column in table.columns)
    body = [head, r"\midrule", *rows, *([r"\midrule", *footer] if footer else [])]
    return latex_frame(tex(table.title), table.name, alignment, body, map(tex, table.notes))


def latex_frame(
    caption: str, label: str, alignment: str, body: Iterable[str], notes: Iterable[str]
) -> str:
    """Return a LaTeX table around lines, with notes below; its texts are already escaped."""
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{caption}}}",
            f"\\label{{tab:{label}}}",
            f"\\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(f"\\par\\smallskip{{\\footnotesize {note}}}" for note in notes),
            r"\end{table}",
        ]
    )


def latex_row(cells: Iterable[str]) -> str:
    """Return a line of a LaTeX table."""
    return f"  {' & '.join(cells)} \\\\"


def _latex_entry(entry: Entry) -> str:
    text = latex_marked(entry, entry.text)
    return f"{text} {{\\scriptsize {tex(entry.detail)}}}" if entry.detail else text


def latex_marked(entry: Entry, text: str) -> str:
    """Return a text in the type of an entry: bold, underlined or plain."""
    text = tex(text)
    if entry.emphasis is not None:
        text = f"\\textbf{{{text}}}"
    return text if entry.underline is None else f"\\underline{{{text}}}"


def tex(text: str) -> str:
    """Escape the signs that LaTeX interprets."""
    return " ".join("".join(_TEX.get(sign, sign) for sign in text).split())


def to_csv(tables: Sequence[Table]) -> str:
    """Return tables as CSV, unrounded; consecutive tables of the same columns share one header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    before: list[str] = []
    for table in tables:
        if table.keys != before:
            if before:
                text.write("\n")
            writer.writerow(table.keys)
        before = table.keys
        writer.writerows([entry.value for entry in row] for row in (*table.rows, *table.footer))
    return text.getvalue()


def to_json(tables: Sequence[Table]) -> str:
    """Return tables as JSON, unrounded; a missing value is null."""
    return (
        json.dumps([_plain_values(table) for table in tables], indent=1, ensure_ascii=False) + "\n"
    )


def _plain_values(table: Table) -> dict[str, Any]:
    keys = table.keys
    rows, footer = (
        [dict(zip(keys, (entry.value for entry in row), strict=True)) for row in part]
        for part in (table.rows, table.footer)
    )
    return {
        "name": table.name,
        "title": table.title,
        "about": table.about,
        "verdict": list(table.verdict),
        "columns": [
            {"key": key, "name": column.name, "kind": column.kind, "about": column.about}
            for key, column in zip(keys, table.columns, strict=True)
        ],
        "rows": rows,
        "footer": footer,
        "notes": list(table.notes),
        "commands": [list(lines) for lines in table.commands],
    }


WRITERS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": markdown,
    "csv": to_csv,
    "json": to_json,
    "latex": latex,
}
