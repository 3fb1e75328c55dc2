"""JavaScript libraries that draw charts in a page: bundled once, then read from the cache."""

import base64
import contextlib
import functools
import hashlib
import zlib
from importlib import metadata
from pathlib import Path

from longspan.errors import DataError, RunError
from longspan.files import SMALL, atomic_write, cache_folder, read_file

EXPORT = "window.vegaEmbed = vegaEmbed;"  # what the page's script uses


def pack(text: str) -> str:
    """Return a long text compressed, in letters without meaning in HTML."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


@functools.cache
def packed_libraries() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one packed script.

    Bundling takes seconds and depends only on the version of vl-convert. The cached text starts
    with its checksum; a damaged one is bundled again.
    """
    path = cache_folder() / "report" / f"vega-{metadata.version('vl-convert-python')}.packed"
    text = _cached(path)
    if text is None:
        import vl_convert

        text = pack(vl_convert.javascript_bundle(EXPORT))
        # A page does not need the cache.
        with contextlib.suppress(RunError), atomic_write(path) as temporary:
            temporary.write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")
    return text


def _cached(path: Path) -> str | None:
    try:
        checksum, _, text = read_file(path, SMALL).decode("utf-8").partition("\n")
    except (OSError, DataError, UnicodeDecodeError):
        return None
    return text if checksum == _checksum(text) else None


def _checksum(text: str) -> str:
    """Return the checksum of the libraries together with their use."""
    return hashlib.sha256((EXPORT + text).encode()).hexdigest()
