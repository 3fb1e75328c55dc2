"""Imports that are one table: what an earlier one keeps, and what a refused one leaves."""

import pyarrow.parquet as pq
import pytest

from longspan.data import import_rows
from longspan.data.own_import import ImportRequest, import_texts
from longspan.data.own_texts import OWN_TEXTS, load_splits
from longspan.data.summaries.imports import import_summaries
from longspan.data.summaries.stored import SUMMARIES, read_summaries
from longspan.errors import OptionError, RunError
from own_files import write_csv


def texts(count):
    return [(f"text number {n}", f"short {n}", ("no", "yes")[n % 2]) for n in range(count)]


class OwnTexts:
    """Import of classes."""

    kind = OWN_TEXTS

    def store(self, cache, path, **options):
        request = ImportRequest(text="body", target="stars")
        return import_texts(cache, "mine", path, request, **options)

    def load(self, cache):
        folder = self.kind.path(cache, "mine")
        found = load_splits(folder, self.kind.load(folder))
        return {text for split in found.values() for (text,) in split.texts}


class Summaries:
    """Import of summaries."""

    kind = SUMMARIES

    def store(self, cache, path, **options):
        request = ImportRequest(text="body", target="gist")
        return import_summaries(cache, "mine", path, request, **options)

    def load(self, cache):
        folder = self.kind.path(cache, "mine")
        found = read_summaries(folder, self.kind.load(folder))
        return {" ".join(document.text) for _, document in found}


@pytest.fixture(params=[OwnTexts(), Summaries()], ids=["texts", "summaries"])
def form(request):
    return request.param


@pytest.fixture
def files(tmp_path):
    header = ("body", "gist", "stars")
    return [write_csv(tmp_path / f"{n}.csv", texts(n), header) for n in (40, 60)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_import_is_refused_before_anything_is_written(form, files, tmp_path):
    form.store(tmp_path, files[0])
    before = contents(form.kind.path(tmp_path, "mine"))
    with pytest.raises(OptionError, match="'mine' is the name of other texts; choose another"):
        form.store(tmp_path, files[1])
    assert contents(form.kind.path(tmp_path, "mine")) == before
    form.store(tmp_path, files[1], replace=True)
    assert len(form.load(tmp_path)) == 60


def test_earlier_import_survives_a_full_disk(form, files, tmp_path, monkeypatch):
    form.store(tmp_path, files[0])
    folder = form.kind.path(tmp_path, "mine")
    before = contents(folder)

    def fail(*_):
        raise OSError(28, "No space left on device")

    for module, name in ((pq, "write_table"), (import_rows, "flush_to_disk")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(RunError, match="No space left on device"):
                form.store(tmp_path, files[1], replace=True)
        assert contents(folder) == before
    assert len(form.load(tmp_path)) == 40


def test_table_is_never_beside_the_description_of_another(form, files, tmp_path, monkeypatch):
    """An import that is stopped between its two files is not there, and the next one is whole."""
    form.store(tmp_path, files[0])

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(import_rows, "write_description", stop)
        with pytest.raises(KeyboardInterrupt):
            form.store(tmp_path, files[1], replace=True)
    assert form.kind.find(tmp_path) == []
    form.store(tmp_path, files[1])
    assert len(form.load(tmp_path)) == 60
