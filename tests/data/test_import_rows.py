"""Imports that are one table: what an earlier one keeps, and what a refused one leaves."""

import pyarrow.parquet as pq
import pytest

from longspan.data.imports import stored
from longspan.data.imports.texts import TEXTS, TextsRequest, import_texts, load_splits
from longspan.errors import OptionError, RunError
from own_files import write_csv


def texts(count):
    return [(f"text number {n}", f"short {n}", ("no", "yes")[n % 2]) for n in range(count)]


class Form:
    """Import of one kind of targets."""

    def __init__(self, kind, target):
        self.request = TextsRequest(text="body", target=target, kind=kind)

    def store(self, cache, path, **options):
        return import_texts(cache, "mine", path, self.request, **options)

    def load(self, cache):
        folder = TEXTS.path(cache, "mine")
        found = load_splits(folder, TEXTS.load(folder))
        return {text for split in found.values() for (text,) in split.texts}


@pytest.fixture(params=[("class", "stars"), ("summary", "gist")], ids=["texts", "summaries"])
def form(request):
    return Form(*request.param)


@pytest.fixture
def files(tmp_path):
    header = ("body", "gist", "stars")
    return [write_csv(tmp_path / f"{n}.csv", texts(n), header) for n in (40, 60)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_import_is_refused_before_anything_is_written(form, files, tmp_path):
    form.store(tmp_path, files[0])
    before = contents(TEXTS.path(tmp_path, "mine"))
    with pytest.raises(OptionError, match="'mine' is the name of another import of texts; choose"):
        form.store(tmp_path, files[1])
    assert contents(TEXTS.path(tmp_path, "mine")) == before
    form.store(tmp_path, files[1], replace=True)
    assert len(form.load(tmp_path)) == 60


def test_earlier_import_survives_a_full_disk(form, files, tmp_path, monkeypatch):
    form.store(tmp_path, files[0])
    folder = TEXTS.path(tmp_path, "mine")
    before = contents(folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    for module, name in ((pq, "write_table"), (stored, "write_json")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(RunError, match="No space left on device"):
                form.store(tmp_path, files[1], replace=True)
        assert contents(folder) == before
    assert len(form.load(tmp_path)) == 40


def test_table_is_never_beside_the_description_of_another(form, files, tmp_path, monkeypatch):
    """An import that is stopped between its two files leaves the earlier one whole."""
    first = form.store(tmp_path, files[0])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stored, "write_json", stop)
        with pytest.raises(KeyboardInterrupt):
            form.store(tmp_path, files[1], replace=True)
    assert TEXTS.load(TEXTS.path(tmp_path, "mine")) == first
    assert len(form.load(tmp_path)) == 40
    form.store(tmp_path, files[1], replace=True)
    assert len(form.load(tmp_path)) == 60
