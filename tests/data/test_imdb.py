"""IMDB as published: its forms hold the same reviews; the whole set is preferred."""

import os
from pathlib import Path

import pytest

from longspan.data import imdb


@pytest.fixture
def real():
    if not os.environ.get("LONGSPAN_TEST_DATA"):
        pytest.skip("LONGSPAN_TEST_DATA is not set")
    folder = Path(os.environ["LONGSPAN_TEST_DATA"]) / "imdb"
    if not folder.is_dir():
        pytest.skip("LONGSPAN_TEST_DATA has no imdb")
    return folder


def test_real_archive_and_real_parquet_hold_the_same_reviews(real, tmp_path):
    for name in ("aclImdb_subset.tar.gz", "train.parquet", "test.parquet"):
        if not (real / name).exists():
            pytest.skip(f"LONGSPAN_TEST_DATA has no imdb/{name}")
    (tmp_path / "aclImdb_subset.tar.gz").symlink_to(real / "aclImdb_subset.tar.gz")
    (tmp_path / "parquet").mkdir()
    for part in ("train", "test"):
        (tmp_path / "parquet" / f"{part}.parquet").symlink_to(real / f"{part}.parquet")
    packed, table = (imdb.read(imdb.find(one)) for one in (tmp_path, tmp_path / "parquet"))
    for part, count in (("train", 2000), ("test", 1000)):
        assert len(packed[part].texts) == count
        assert packed[part].texts == table[part].texts
        assert packed[part].labels.tolist() == table[part].labels.tolist()


def test_real_full_set_is_preferred_to_the_subset(real):
    if not (real / "full").is_dir():
        pytest.skip("LONGSPAN_TEST_DATA has no imdb/full")
    source = imdb.find(real.parent)
    assert (source.form, source.rows) == ("parquet", 50_000)
