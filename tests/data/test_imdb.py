"""Every form of IMDB gives the same reviews; malformed files are rejected by name."""

import gzip
import io
import itertools
import os
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data import imdb
from longspan.errors import DataError

VARIABLES = ("LONGSPAN_DATA", "LONGSPAN_TEST_DATA", "HF_HUB_CACHE", "HF_HOME")


def reviews(part, label, count=3):
    return [f"{part} review {n}, {label} — naïve".encode() for n in range(count)]


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Hide the data of this machine: folders in the environment and the hub's cache."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return monkeypatch


def write_folder(place, count=3, root="aclImdb"):
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            folder = place / root / part / label
            folder.mkdir(parents=True)
            for number, text in enumerate(reviews(part, label, count)):
                (folder / f"{number}_7.txt").write_bytes(text)
    (place / root / "train" / "unsup").mkdir()
    (place / root / "train" / "unsup" / "0_0.txt").write_text("never read")
    return place


def write_archive(place, count=3):
    with tarfile.open(place / "aclImdb_v1.tar.gz", "w:gz") as archive:
        archive.add(write_folder(place / "unpacked", count) / "aclImdb", "aclImdb")
    shutil.rmtree(place / "unpacked")
    return place


def write_parquet(place, count=3, names=("train.parquet", "test.parquet"), **columns):
    place.mkdir(parents=True, exist_ok=True)
    for part, name in zip(("train", "test"), names, strict=True):
        texts = [t.decode() for label in ("neg", "pos") for t in reviews(part, label, count)]
        labels = [0] * count + [1] * count
        table = {"text": texts, "label": labels, "extra": labels, **columns}
        pq.write_table(pa.table({k: v for k, v in table.items() if v is not None}), place / name)
    return place


FORMS = {"folder": write_folder, "archive": write_archive, "parquet": write_parquet}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_reviews(bare, tmp_path, form):
    source = imdb.find(FORMS[form](tmp_path))
    assert source.form == form
    found = imdb.read(source)
    for part in ("train", "test"):
        truth = [(text, n) for n, name in enumerate(imdb.LABELS) for text in reviews(part, name)]
        assert list(zip(found[part].texts, found[part].labels, strict=True)) == sorted(truth)


@pytest.mark.parametrize("below", ["aclImdb", "imdb", "imdb/full", "imdb/aclImdb"])
def test_data_is_found_in_the_usual_places(bare, tmp_path, below):
    if below.endswith("aclImdb"):
        write_folder(tmp_path, root=below)
    else:
        write_parquet(tmp_path / below)
    assert imdb.find(tmp_path).rows == 12


def test_unpacked_folder_and_the_archive_can_be_named(bare, tmp_path):
    write_folder(tmp_path)
    assert imdb.find(tmp_path / "aclImdb").form == "folder"
    write_archive(tmp_path)
    assert imdb.find(tmp_path / "aclImdb_v1.tar.gz").form == "archive"


@pytest.mark.parametrize(("fuller", "other"), list(itertools.permutations(FORMS, 2)))
def test_more_complete_copy_wins(bare, tmp_path, fuller, other):
    FORMS[other](tmp_path, 3)
    FORMS[fuller](tmp_path, 5)
    assert imdb.find(tmp_path).form == fuller


def test_whole_set_wins_over_subset(bare, tmp_path):
    write_parquet(tmp_path / "imdb", 2)
    write_parquet(tmp_path / "imdb" / "full", 4)
    assert imdb.find(tmp_path).rows == 16


def test_search_order(bare, tmp_path):
    hub = tmp_path / "hub" / "datasets--stanfordnlp--imdb" / "snapshots" / "e6281" / "plain_text"
    names = ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet")
    write_parquet(hub, 1, names)
    bare.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert imdb.find(None).rows == 4
    bare.setenv("LONGSPAN_TEST_DATA", str(write_parquet(tmp_path / "tests", 2)))
    assert imdb.find(None).rows == 8
    bare.setenv("LONGSPAN_DATA", str(tmp_path / "empty"))
    assert imdb.find(None).rows == 8
    bare.setenv("LONGSPAN_DATA", str(write_parquet(tmp_path / "data", 3)))
    assert imdb.find(None).rows == 12
    assert imdb.find(write_parquet(tmp_path / "argument", 4)).rows == 16


def test_named_folder_without_imdb_is_rejected(bare, tmp_path):
    bare.setenv("LONGSPAN_DATA", str(write_parquet(tmp_path / "data", 3)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"IMDB is not here \(searched .*empty\)"):
        imdb.find(tmp_path / "empty")
    with pytest.raises(DataError, match=r"nowhere does not exist; expected the folder"):
        imdb.find(tmp_path / "nowhere")


def test_error_for_missing_data_names_the_command_and_the_address(bare):
    with pytest.raises(DataError) as caught:
        imdb.find(None)
    assert "`longspan data build text --data FOLDER`" in str(caught.value)
    assert "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_origin_identifies_a_copy_independently_of_its_folder(bare, tmp_path):
    one, same, other = (
        imdb.find(write_parquet(tmp_path / name, count)).origin
        for name, count in (("a", 3), ("b", 3), ("c", 4))
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"text": None}, r"train\.parquet lacks column text; it has label, extra"),
        ({"label": None}, r"train\.parquet lacks column label"),
        ({"label": [0, 0, 0, 1, 1, 2]}, r"labels go from 0 to 2, expected 0 and 1"),
        ({"label": [-1] * 6}, r"labels go from -1 to -1"),
        ({"label": [0.5] * 6}, r"column label has type double .*; expected integers"),
        ({"label": [0, 0, 0, 1, 1, None]}, r"1 nulls, .*; expected integers, and no nulls"),
        ({"label": [1] * 6}, r"split 'train' lacks positive or negative reviews"),
        ({"text": [1] * 6}, r"column text has type int64, expected string"),
        ({"text": ["a", "b", "c", "d", "e", ""]}, r"train\.parquet: row 5 is empty"),
    ],
)
def test_parquet_file_with_other_columns_is_rejected(bare, tmp_path, columns, reason):
    with pytest.raises(DataError, match=reason):
        imdb.read(imdb.find(write_parquet(tmp_path, **columns)))


@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"\0" * 5000])
def test_damaged_parquet_file_is_rejected(bare, tmp_path, content):
    write_parquet(tmp_path)
    (tmp_path / "test.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"test\.parquet is truncated or no parquet file"):
        imdb.find(tmp_path)


def test_parquet_file_damaged_in_the_middle_is_rejected(bare, tmp_path):
    path = write_parquet(tmp_path, 400) / "train.parquet"
    raw = bytearray(path.read_bytes())
    raw[200:2000] = b"\xff" * 1800
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"train\.parquet is truncated or no parquet file"):
        imdb.read(imdb.find(tmp_path))


def test_text_in_another_encoding_is_rejected(bare, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "aclImdb" / "test" / "pos" / "9_7.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(DataError, match=r"9_7\.txt is not UTF-8 text \(byte 2\)"):
        imdb.read(imdb.find(tmp_path))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999, 1.0])
def test_truncated_archive_is_rejected(bare, tmp_path, share):
    path = write_archive(tmp_path, 200) / "aclImdb_v1.tar.gz"
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share) - 4])
    with pytest.raises(DataError, match=r"tar\.gz(: .*)? is truncated, damaged or no archive"):
        imdb.read(imdb.find(tmp_path))


def test_valid_gzip_of_a_truncated_tar_is_rejected(bare, tmp_path):
    """Only the tar inside is truncated."""
    path = write_archive(tmp_path, 200) / "aclImdb_v1.tar.gz"
    inner = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(inner[: len(inner) // 2 + 100]))
    with pytest.raises(DataError, match=r"truncated|lacks positive"):
        imdb.read(imdb.find(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"no archive at all", gzip.compress(b"no tar" * 500, mtime=0)]
)
def test_file_that_is_no_archive_is_rejected(bare, tmp_path, content):
    (tmp_path / "aclImdb.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"aclImdb\.tar\.gz"):
        imdb.read(imdb.find(tmp_path))


def malicious(kind):
    member = tarfile.TarInfo("aclImdb/train/pos/0_7.txt")
    if kind == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    elif kind == "hard link":
        member.type, member.linkname = tarfile.LNKTYPE, "aclImdb/README"
    else:
        member.size = 1 << 21
    return member


@pytest.mark.parametrize("kind", ["link", "hard link", "huge"])
def test_links_and_oversized_members_are_rejected(bare, tmp_path, kind):
    member = malicious(kind)
    with tarfile.open(tmp_path / "aclImdb.tar.gz", "w:gz") as archive:
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(DataError, match=r"0_7\.txt.* is (unsafe|.*; expected a regular file)"):
        imdb.read(imdb.find(tmp_path))


@pytest.mark.parametrize(
    "name", ["../train/pos/1_7.txt", "/tmp/../escaped.txt", "../escaped.txt", None]
)
def test_reading_an_archive_writes_nothing(bare, tmp_path, name):
    place = tmp_path / "place"
    place.mkdir()
    path = write_archive(place) / "aclImdb_v1.tar.gz"
    whole = tmp_path / "whole.tar"
    whole.write_bytes(gzip.decompress(path.read_bytes()))
    if name:
        with tarfile.open(whole, "a") as archive:
            archive.addfile(tarfile.TarInfo(name))
    path.write_bytes(gzip.compress(whole.read_bytes()))
    whole.unlink()
    assert len(imdb.read(imdb.find(place))["train"].texts) == 6
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["aclImdb_v1.tar.gz"]


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
