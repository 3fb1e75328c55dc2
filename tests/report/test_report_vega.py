"""Libraries of a page: the same from the cache as bundled; a damaged cache changes nothing."""

from pathlib import Path

import pytest
import vl_convert

from longspan.files import cache_folder
from longspan.report.output import vega

SCRIPT = "the libraries – all of them\n"
PACKED = vega.pack(SCRIPT)


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """Count how often libraries are bundled; the cache is empty at first."""
    calls = []
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        vl_convert, "javascript_bundle", lambda export: calls.append(export) or SCRIPT
    )
    return calls


def libraries():
    return vega.packed_libraries.__wrapped__()


def cached(tmp_path):
    (path,) = (tmp_path / "cache" / "report").iterdir()
    return path


def test_tests_do_not_touch_the_cache_of_the_user():
    assert cache_folder() != Path.home() / ".cache" / "longspan"


def test_libraries_are_bundled_once(bundled, tmp_path):
    assert libraries() == libraries() == PACKED
    assert bundled == [vega.EXPORT]
    assert vl_convert.__version__ in cached(tmp_path).name


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0000\nsomething else", b"half"])
def test_damaged_cache_is_bundled_again(bundled, tmp_path, content):
    libraries()
    good = cached(tmp_path).read_bytes()
    cached(tmp_path).write_bytes(content)
    assert libraries() == PACKED
    assert len(bundled) == 2
    assert cached(tmp_path).read_bytes() == good


def test_another_export_is_bundled_again(bundled, monkeypatch):
    libraries()
    monkeypatch.setattr(vega, "EXPORT", "window.other = vegaEmbed;")
    libraries()
    assert bundled[1:] == ["window.other = vegaEmbed;"]


def test_page_does_not_need_the_cache(bundled, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert libraries() == libraries() == PACKED
    assert len(bundled) == 2
