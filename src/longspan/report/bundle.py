"""The libraries that draw charts in a page, as one script: bundled once, then read from a file."""

import contextlib
import functools
import hashlib
from importlib import metadata
from pathlib import Path

from longspan.errors import RunError
from longspan.files import atomic_write, cache_folder

# What the page's own script uses of them.
EXPORT = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as JavaScript.

    Bundling takes seconds and always gives the same for one version of vl-convert. The text is kept
    in the user's cache, below its checksum; whatever else stands there is bundled again.
    """
    path = cache_folder() / "report" / f"vega-{metadata.version('vl-convert-python')}.js"
    text = _kept(path)
    if text is None:
        import vl_convert

        text = vl_convert.javascript_bundle(EXPORT)
        # A page needs no cache.
        with contextlib.suppress(RunError), atomic_write(path) as temporary:
            temporary.write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")
    return text


def _kept(path: Path) -> str | None:
    try:
        checksum, _, text = path.read_bytes().decode("utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return text if checksum == _checksum(text) else None


def _checksum(text: str) -> str:
    """Of the libraries together with what is used of them."""
    return hashlib.sha256((EXPORT + text).encode()).hexdigest()
