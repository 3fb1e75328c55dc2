"""Render a table of signatures and first sentences under each directive of the pages of the API.

The site has the whole docstrings in its place, see `site_pages`.
"""

import re
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "api"
DIRECTIVE = re.compile(r"^::: (?P<path>\S+)\n(?P<options>(?: {4,}.*\n)*)", re.MULTILINE)
OPEN, CLOSE = "<!-- signatures, rendered by docs/pages.py -->", "<!-- end -->"
TABLE = re.compile(rf"\n{re.escape(OPEN)}\n.*?{re.escape(CLOSE)}\n", re.DOTALL)


def written() -> dict[str, str]:
    """Return the content of every page of the API."""
    package = griffe.load("longspan", search_paths=[ROOT / "src"])
    pages = {}
    for path in sorted(FOLDER.glob("*.md")):
        text = TABLE.sub("", path.read_text(encoding="utf-8"))
        pages[path.name] = DIRECTIVE.sub(
            lambda found: found.group() + signatures(package, found["path"], found["options"]), text
        )
    return pages


def signatures(package, path: str, options: str) -> str:
    """Render the objects that a directive documents."""
    found = package[path.removeprefix("longspan.")]
    members = re.search(r"\smembers: \[(.*)\]", options)
    names = members.group(1).split(", ") if members else None
    found = found.final_target if found.is_alias else found
    if found.is_module:
        shown = [found[name] for name in names] if names else filter(is_shown, members_of(found))
        rows = [row for one in shown for row in rows_of(one)]
    else:
        rows = rows_of(found, names)
    lines = ["", OPEN, "", "| | |", "|---|---|", *rows, "", CLOSE, ""]
    return "\n".join(lines)


def members_of(one) -> list:
    """Return the members in the order of the source; of a package, what it exports."""
    if one.is_module and one.exports:
        names = [str(name) for name in one.exports]
        return [one[name].final_target if one[name].is_alias else one[name] for name in names]
    return [member for member in one.members.values() if not member.is_alias]


def is_shown(one) -> bool:
    """Return whether the site shows an object: public and documented, no method of Python's."""
    return one.is_public and one.has_docstring and not one.is_module and "__" not in one.name


def rows_of(one, names: list[str] | None = None) -> list[str]:
    """Return the row of an object, and for a class those of its public or its named methods."""
    one = one.final_target if one.is_alias else one
    rows = [row(one, one.name)]
    if one.is_class:
        methods = [x for x in members_of(one) if x.is_function and is_shown(x)]
        rows += [row(x, f".{x.name}") for x in methods if names is None or x.name in names]
    return rows


def row(one, name: str) -> str:
    """Return name, parameters with their defaults, and the first sentence."""
    sentence = re.split(r"(?<=\.)(?<!al\.)\s|\n\n", one.docstring.value if one.docstring else "")[0]
    cells = f"`{name}{parameters(one)}`", re.sub(r"\s+", " ", sentence)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def parameters(one) -> str:
    """Return the parameters of a function or class as they are written in a call of it."""
    if not (one.is_function or one.is_class) or (one.is_class and not list(one.parameters)):
        return ""
    texts, keyword = [], False
    is_method = one.is_class or (one.parent is not None and one.parent.is_class)
    for parameter in one.parameters:
        kind = parameter.kind
        if is_method and parameter.name in ("self", "cls"):
            continue
        if kind is griffe.ParameterKind.keyword_only and not keyword:
            texts.append("*")
        keyword |= kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind.value, "")
        default = "" if star or parameter.default is None else f"={parameter.default}"
        texts.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(texts)})"
