"""Imports that are one table: what an earlier one keeps, and what a refused one leaves."""

import pyarrow.parquet as pq
import pytest

from longspan.data.imports import stored
from longspan.data.imports.texts import TEXTS, TextsRequest, import_texts, load_splits
from longspan.errors import OptionError, RunError
from own_files import write_csv


def texts(count):
    return [(f"text number {n}", f"short {n}", ("no", "yes")[n % 2]) for n in range(count)]


def store(cache, path, **options):
    request = TextsRequest(text="body", target="stars")
    return import_texts(cache, "mine", path, request, **options)


def load(cache):
    folder = TEXTS.path(cache, "mine")
    found = load_splits(folder, TEXTS.load(folder))
    return {text for split in found.values() for (text,) in split.texts}


@pytest.fixture
def files(tmp_path):
    header = ("body", "gist", "stars")
    return [write_csv(tmp_path / f"{n}.csv", texts(n), header) for n in (40, 60)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_import_is_refused_before_anything_is_written(files, tmp_path):
    store(tmp_path, files[0])
    before = contents(TEXTS.path(tmp_path, "mine"))
    with pytest.raises(OptionError, match="'mine' is the name of another import of texts; choose"):
        store(tmp_path, files[1])
    assert contents(TEXTS.path(tmp_path, "mine")) == before
    store(tmp_path, files[1], replace=True)
    assert len(load(tmp_path)) == 60


def test_earlier_import_survives_a_full_disk(files, tmp_path, monkeypatch):
    store(tmp_path, files[0])
    folder = TEXTS.path(tmp_path, "mine")
    before = contents(folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    for module, name in ((pq, "write_table"), (stored, "write_json")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(RunError, match="No space left on device"):
                store(tmp_path, files[1], replace=True)
        assert contents(folder) == before
    assert len(load(tmp_path)) == 40


def test_table_is_never_beside_the_description_of_another(files, tmp_path, monkeypatch):
    """An import that is stopped between its two files leaves the earlier one whole."""
    first = store(tmp_path, files[0])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stored, "write_json", stop)
        with pytest.raises(KeyboardInterrupt):
            store(tmp_path, files[1], replace=True)
    assert TEXTS.load(TEXTS.path(tmp_path, "mine")) == first
    assert len(load(tmp_path)) == 40
    store(tmp_path, files[1], replace=True)
    assert len(load(tmp_path)) == 60
