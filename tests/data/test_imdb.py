"""IMDB as published: its forms hold the same reviews; the whole set is preferred."""

from longspan.tasks.lra import text as imdb
from real_data import real


def test_real_archive_and_real_parquet_hold_the_same_reviews(tmp_path):
    folder = real("imdb", "aclImdb_subset.tar.gz", "train.parquet", "test.parquet")
    (tmp_path / "aclImdb_subset.tar.gz").symlink_to(folder / "aclImdb_subset.tar.gz")
    (tmp_path / "parquet").mkdir()
    for part in ("train", "test"):
        (tmp_path / "parquet" / f"{part}.parquet").symlink_to(folder / f"{part}.parquet")
    packed, table = (imdb.read(imdb.find(one)) for one in (tmp_path, tmp_path / "parquet"))
    for part, count in (("train", 2000), ("test", 1000)):
        assert len(packed[part].texts) == count
        assert packed[part].texts == table[part].texts
        assert packed[part].labels.tolist() == table[part].labels.tolist()


def test_real_full_set_is_preferred_to_the_subset():
    source = imdb.find(real("imdb", "full").parent)
    assert (source.form, source.rows) == ("parquet", 50_000)
