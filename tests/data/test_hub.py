"""Datasets of the hub are written as local files; a missing one gives a clear error."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data import hub
from longspan.errors import DataError, RunError
from longspan.tasks.lra import cifar
from longspan.tasks.lra import text as imdb

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("offline")


def reviews(place, parts=("train", "test")):
    place.mkdir()
    for part in parts:
        table = pa.table({"text": [f"{part} bad", f"{part} good"], "label": [0, 1]})
        pq.write_table(table, place / f"{part}-00000-of-00001.parquet")
    return place


def photographs(place):
    """Write three images for each split, as the hub stores them."""
    place.mkdir()
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(cifar.CLASSES))}
    )
    pixels = {}
    for seed, part in enumerate(hub.SOURCE_SPLITS):
        pixels[part] = np.random.default_rng(seed).integers(0, 256, (3, 32, 32, 3), np.uint8)
        columns = {"img": list(pixels[part]), "label": [9, 0, 4]}
        path = place / f"{part}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(columns, features).to_parquet(str(path))
    return place, pixels


def test_text_dataset_is_read_like_a_local_copy(tmp_path):
    folder = hub.fetch_parquet(str(reviews(tmp_path / "set")), tmp_path / "cache" / "imdb")
    assert sorted(path.name for path in folder.iterdir()) == ["test.parquet", "train.parquet"]
    found = imdb.read(imdb.find(folder))
    assert found["train"].texts == [b"train bad", b"train good"]
    assert found["test"].labels.tolist() == [0, 1]


def test_image_dataset_keeps_its_pixels(tmp_path):
    place, pixels = photographs(tmp_path / "set")
    source = cifar.find(hub.fetch_parquet(str(place), tmp_path / "cache"))
    assert (source.form, source.rows, source.exact) == ("parquet", 6, True)
    for images in cifar.read(source):
        truth = pixels[images.split].transpose(0, 3, 1, 2).reshape(3, 3, 1024)
        assert (images.pixels == truth).all()
        assert images.labels.tolist() == [9, 0, 4]


def test_existing_files_are_not_fetched_again(tmp_path):
    place = reviews(tmp_path / "set")
    folder = hub.fetch_parquet(str(place), tmp_path / "cache")
    for path in place.iterdir():
        path.unlink()
    assert hub.fetch_parquet(str(place), folder) == folder
    (folder / "test.parquet").unlink()
    with pytest.raises(DataError, match="neither in the cache"):
        hub.fetch_parquet(str(place), folder)


@pytest.mark.parametrize("name", ["uoft-cs/cifar10", "stanfordnlp/imdb", "no/such-set"])
def test_error_for_an_unreachable_dataset_names_the_remedy(tmp_path, name):
    with pytest.raises(DataError) as caught:
        hub.fetch_parquet(name, tmp_path / "cache")
    assert str(caught.value).startswith(f"{name} is neither in the cache of the library datasets")
    assert "--data" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_dataset_without_a_test_split_is_rejected(tmp_path):
    place = reviews(tmp_path / "set", parts=("train",))
    with pytest.raises(DataError, match="lacks split test; it has train"):
        hub.fetch_parquet(str(place), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_error_without_the_library_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the library datasets .*pip install"):
        hub.fetch_parquet("stanfordnlp/imdb", tmp_path)


def test_unwritable_folder_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        hub.fetch_parquet(str(reviews(tmp_path / "set")), tmp_path / "file" / "below")
