"""The libraries of a page: the same from the cache as bundled; a bad cache changes nothing."""

from pathlib import Path

import pytest
import vl_convert

from longspan.files import cache_folder
from longspan.report import bundle

SCRIPT = "the libraries – all of them\n"


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """Counts how often libraries are bundled; the cache is empty at first."""
    calls = []
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        vl_convert, "javascript_bundle", lambda export: calls.append(export) or SCRIPT
    )
    return calls


def libraries():
    return bundle.libraries.__wrapped__()


def kept(tmp_path):
    (path,) = (tmp_path / "cache" / "report").iterdir()
    return path


def test_tests_leave_the_cache_of_the_user_alone():
    assert cache_folder() != Path.home() / ".cache" / "longspan"


def test_libraries_are_bundled_once(bundled, tmp_path):
    assert libraries() == libraries() == SCRIPT
    assert bundled == [bundle.EXPORT]
    assert vl_convert.__version__ in kept(tmp_path).name


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0000\nsomething else", b"half"])
def test_what_is_not_the_libraries_is_bundled_again(bundled, tmp_path, content):
    libraries()
    good = kept(tmp_path).read_bytes()
    kept(tmp_path).write_bytes(content)
    assert libraries() == SCRIPT
    assert len(bundled) == 2
    assert kept(tmp_path).read_bytes() == good


def test_another_use_of_the_libraries_is_bundled_again(bundled, monkeypatch):
    libraries()
    monkeypatch.setattr(bundle, "EXPORT", "window.other = vegaEmbed;")
    libraries()
    assert bundled[1:] == ["window.other = vegaEmbed;"]


def test_a_page_needs_no_cache(bundled, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert libraries() == libraries() == SCRIPT
    assert len(bundled) == 2
