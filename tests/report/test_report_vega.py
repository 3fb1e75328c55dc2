"""JavaScript libraries of a page, bundled once and cached."""

import pytest
import vl_convert

from longspan.report.output import vega

SCRIPT = "the libraries – all of them\n"
PACKED = vega.pack(SCRIPT)


@pytest.fixture
def bundle_calls(tmp_path, monkeypatch):
    """Record calls that bundle libraries; the cache is empty at first."""
    calls = []
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        vl_convert, "javascript_bundle", lambda export: calls.append(export) or SCRIPT
    )
    return calls


def load_libraries():
    return vega.packed_libraries.__wrapped__()


def cache_file(tmp_path):
    (path,) = (tmp_path / "cache" / "report").iterdir()
    return path


def test_libraries_are_bundled_once(bundle_calls, tmp_path):
    assert load_libraries() == load_libraries() == PACKED
    assert bundle_calls == [vega.EXPORT]
    assert vl_convert.__version__ in cache_file(tmp_path).name


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0000\nsomething else", b"half"])
def test_damaged_cache_is_rebuilt(bundle_calls, tmp_path, content):
    load_libraries()
    good = cache_file(tmp_path).read_bytes()
    cache_file(tmp_path).write_bytes(content)
    assert load_libraries() == PACKED
    assert len(bundle_calls) == 2
    assert cache_file(tmp_path).read_bytes() == good


def test_libraries_are_bundled_without_cache(bundle_calls, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert load_libraries() == load_libraries() == PACKED
    assert len(bundle_calls) == 2
