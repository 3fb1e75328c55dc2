"""HTML that escapes by construction: only `Markup` is taken as written, all other text is not."""

import base64
import html
import zlib
from collections.abc import Mapping
from typing import Any


class Markup(str):
    """Text that is HTML already."""


def element(name: str, *children: Any, attributes: Mapping[str, Any] | None = None) -> Markup:
    """An element with its children; an attribute of None or False is left out, of True is bare."""
    shown = "".join(
        f" {key}" if value is True else f' {key}="{html.escape(str(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: Any) -> Markup:
    """Texts, and lists of texts, one after another, escaped unless they are `Markup`."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(child))
        else:
            parts.append(join(*child))
    return Markup("".join(parts))


def packed(text: str) -> Markup:
    """A long text deflated, as letters that mean nothing to HTML; the page's script unpacks it."""
    return Markup(base64.b64encode(zlib.compress(text.encode(), 9)).decode())
