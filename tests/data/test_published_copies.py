"""Contract of readers that find one of several published forms: choice, search, damage."""

import gzip
import io
import itertools
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cifar_files
from longspan.errors import DataError
from longspan.tasks.lra import cifar
from longspan.tasks.lra import text as imdb


def reviews(part, label, count):
    return [f"{part} review {n}, {label} — naïve".encode() for n in range(count)]


def write_folder(place, count=3, root="aclImdb"):
    for part, label in itertools.product(("train", "test"), ("neg", "pos")):
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


def write_parquet(place, count=3, **columns):
    place.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        texts = [t.decode() for label in ("neg", "pos") for t in reviews(part, label, count)]
        labels = [0] * count + [1] * count
        table = {"text": texts, "label": labels, "extra": labels, **columns}
        pq.write_table(
            pa.table({k: v for k, v in table.items() if v is not None}), place / f"{part}.parquet"
        )
    return place


REVIEWS = {"folder": write_folder, "archive": write_archive, "parquet": write_parquet}
IMAGES = {
    "batches": cifar_files.write_batches,
    "archive": cifar_files.write_archive,
    "parquet": cifar_files.write_parquet,
}
# Reader, writers of forms, rows of the smallest copy, folder of the hub, archive, member.
READERS = {
    "text": (
        *(imdb, REVIEWS, 4, "stanfordnlp--imdb", "aclImdb_v1.tar.gz"),
        "aclImdb/train/pos/0_7.txt",
    ),
    "image": (
        *(cifar, IMAGES, 6, "uoft-cs--cifar10", "cifar-10-some.tar.gz"),
        "cifar-10-batches-py/data_batch_1",
    ),
}
FORMS = [(name, form) for name, (_, forms, *_) in READERS.items() for form in forms]
every_reader = pytest.mark.parametrize("name", READERS)


pytestmark = pytest.mark.usefixtures("nowhere")


def read(module, place):
    found = module.read(module.find(place))
    return found if module is imdb else list(found)


@pytest.mark.parametrize("form", REVIEWS)
def test_every_form_gives_the_same_reviews(tmp_path, form):
    source = imdb.find(REVIEWS[form](tmp_path))
    assert source.form == form
    found = imdb.read(source)
    for part in ("train", "test"):
        truth = [(text, n) for n, x in enumerate(imdb.LABELS) for text in reviews(part, x, 3)]
        assert list(zip(found[part].texts, found[part].labels, strict=True)) == sorted(truth)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert form == "folder" or left <= {"aclImdb_v1.tar.gz", "train.parquet", "test.parquet"}


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("below", ["", "own", "own/full"])
def test_data_is_found_in_the_usual_places(tmp_path, name, form, below):
    if (form, below) == ("folder", "own/full"):
        pytest.skip("the folder of IMDB has a name of its own")
    module, forms, *_ = READERS[name]
    place = tmp_path / below.replace("own", {"text": "imdb", "image": "cifar10"}[name])
    place.mkdir(parents=True, exist_ok=True)
    forms[form](place)
    assert module.find(tmp_path).form == form


@every_reader
def test_more_complete_copy_wins(tmp_path, name):
    module, forms, *_ = READERS[name]
    for fuller, other in itertools.permutations(forms, 2):
        place = tmp_path / f"{fuller} {other}"
        place.mkdir()
        forms[other](place, 2)
        forms[fuller](place, 3)
        assert module.find(place).form == fuller


@every_reader
def test_search_order(monkeypatch, tmp_path, name):
    module, forms, rows, hub, *_ = READERS[name]
    write = forms["parquet"]
    folder = tmp_path / "hub" / f"datasets--{hub}" / "snapshots" / "e6281" / "plain_text"
    for path in sorted(write(folder, 1).iterdir()):
        path.rename(folder / f"{path.stem}-00000-of-00001.parquet")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert module.find(None).rows == rows
    monkeypatch.setenv("LONGSPAN_TEST_DATA", str(write(tmp_path / "tests", 2)))
    assert module.find(None).rows == 2 * rows
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "empty"))
    assert module.find(None).rows == 2 * rows
    monkeypatch.setenv("LONGSPAN_DATA", str(write(tmp_path / "data", 3)))
    assert module.find(None).rows == 3 * rows
    assert module.find(write(tmp_path / "argument", 4)).rows == 4 * rows
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"is not here \(searched .*nothing\)"):
        module.find(tmp_path / "nothing")


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_origin_identifies_a_copy_independently_of_its_folder(tmp_path, name, form):
    module, forms, *_ = READERS[name]
    origins = []
    for place, count in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / place).mkdir()
        origins.append(module.find(forms[form](tmp_path / place, count)).origin)
    one, same, other = origins
    # An archive has the time of its writing.
    assert {**one, "bytes": None} == {**same, "bytes": None}
    assert one["bytes"].keys() == same["bytes"].keys()
    assert one != other


NO_ARCHIVES = {
    "empty": b"",
    "text": b"no archive at all",
    "gzip of text": gzip.compress(b"no tar" * 500, mtime=0),
}


@every_reader
def test_damaged_archives_are_refused_and_nothing_is_written(tmp_path, name):
    module, forms, _, _, archive, member = READERS[name]
    path = forms["archive"](tmp_path, 50) / archive
    whole = path.read_bytes()
    cut = {f"cut at {x}": whole[: int(len(whole) * x) - 4] for x in (0.2, 0.9, 0.999, 1)}
    inner = gzip.decompress(whole)
    cut["valid gzip"] = gzip.compress(inner[: len(inner) // 2 + 100])
    for content in (*NO_ARCHIVES.values(), *cut.values()):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"tar\.gz"):
            read(module, tmp_path)
    for kind in ("SYMTYPE", "LNKTYPE", "huge"):
        info = tarfile.TarInfo(member)
        info.size = 1 << 27 if kind == "huge" else 0
        info.type, info.linkname = getattr(tarfile, kind, tarfile.REGTYPE), "/etc/passwd"
        with tarfile.open(path, "w:gz", compresslevel=1) as tar:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
        with pytest.raises(DataError, match=rf"{Path(member).name}.* is "):
            read(module, tmp_path)
    path.write_bytes(whole)
    assert read(module, tmp_path)
    assert [x.name for x in tmp_path.rglob("*")] == [archive]


@every_reader
@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"\0" * 5000])
def test_damaged_parquet_file_is_rejected(tmp_path, name, content):
    module, forms, *_ = READERS[name]
    forms["parquet"](tmp_path)
    (tmp_path / "test.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"test\.parquet is truncated or no parquet file"):
        module.find(tmp_path)


def test_parquet_file_damaged_in_the_middle_is_rejected(tmp_path):
    path = write_parquet(tmp_path, 400) / "train.parquet"
    raw = bytearray(path.read_bytes())
    raw[200:2000] = b"\xff" * 1800
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"train\.parquet is truncated or no parquet file"):
        read(imdb, tmp_path)


def test_unpacked_folder_and_the_archive_can_be_named(tmp_path):
    for name, root in (("text", "aclImdb"), ("image", "cifar-10-batches-py")):
        module, forms, _, _, archive, *_ = READERS[name]
        unpacked, place = next(iter(forms)), tmp_path / name
        place.mkdir()
        forms[unpacked](place)
        assert module.find(place / root).form == unpacked
        forms["archive"](place)
        assert module.find(place / archive).form == "archive"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"text": None}, r"train\.parquet: row 0 has no field 'text'; its fields are label, extra"),
        ({"label": None}, r"train\.parquet: row 0 has no field 'label'"),
        ({"label": [0, 0, 0, 1, 1, 2]}, r"row 5: label 2, expected 0 or 1"),
        ({"label": [-1] * 6}, r"row 0: label -1, expected 0 or 1"),
        ({"label": [0.5] * 6}, r"field 'label' must be of type int, got float"),
        ({"label": [0, 0, 0, 1, 1, None]}, r"row 5: field 'label' must be .*NoneType"),
        ({"label": [1] * 6}, r"split 'train' lacks positive or negative reviews"),
        ({"text": [1] * 6}, r"field 'text' must be of type str, got int"),
        ({"text": ["a", "b", "c", "d", "e", ""]}, r"train\.parquet: row 5 is empty"),
    ],
)
def test_reviews_with_other_columns_are_rejected(tmp_path, columns, reason):
    with pytest.raises(DataError, match=reason):
        read(imdb, write_parquet(tmp_path, **columns))


def test_text_in_another_encoding_is_rejected(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "aclImdb" / "test" / "pos" / "9_7.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(DataError, match=r"9_7\.txt is not UTF-8 text \(byte 2\)"):
        read(imdb, tmp_path)
