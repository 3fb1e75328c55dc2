"""Every form of CIFAR-10 gives the same images; malformed files are rejected by name."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cifar_files import (
    BATCHES,
    batch,
    encoded,
    labels,
    pixels,
    planes,
    python2,
    write_archive,
    write_batches,
    write_parquet,
)
from longspan.errors import DataError
from longspan.tasks.lra import cifar, restricted_pickle
from real_data import real

FORMS = {"batches": write_batches, "archive": write_archive, "parquet": write_parquet}


pytestmark = pytest.mark.usefixtures("nowhere")


def collected(source):
    """Return the pixels and labels of each split, in the order of their rows."""
    parts = {}
    for part in cifar.SOURCE_SPLITS:
        found = [images for images in cifar.read(source) if images.split == part]
        rows = np.concatenate([images.rows for images in found])
        assert sorted(rows) == list(range(len(rows)))
        order = np.argsort(rows)
        parts[part] = (
            np.concatenate([images.pixels for images in found])[order],
            np.concatenate([images.labels for images in found])[order].tolist(),
        )
    return parts


def truth(names, count=10):
    shown = [planes(pixels(name, count)) for name in names]
    return np.concatenate(shown), [one for name in names for one in labels(name, count)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_in_the_same_order(tmp_path, form):
    source = cifar.find(FORMS[form](tmp_path))
    assert (source.form, source.exact) == (form, True)
    found = collected(source)
    for part, names in (("train", BATCHES[:5]), ("test", BATCHES[5:])):
        images, classes = truth(names)
        assert (found[part][0] == images).all()
        assert found[part][1] == classes


@pytest.mark.parametrize("form", ["batches", "archive"])
def test_of_equal_copies_the_exact_one_wins(tmp_path, form):
    write_parquet(tmp_path, kind="JPEG")
    assert not cifar.find(tmp_path).exact
    assert "decoded from JPEG, not the official pixels" in cifar.find(tmp_path).describe(
        {"train": 50, "test": 10}
    )
    FORMS[form](tmp_path)
    assert cifar.find(tmp_path).form == form


def test_whole_batches_win_over_a_whole_copy_in_jpeg(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "_WHOLE", 60)
    monkeypatch.setattr(cifar, "_BATCH", 10)
    write_parquet(tmp_path, kind="JPEG")
    write_archive(tmp_path, 3)
    assert cifar.find(tmp_path).form == "parquet"
    write_batches(tmp_path)
    assert cifar.find(tmp_path).form == "batches"


def write_whole_labels(place, batches):
    """Write 50,000 training labels that begin like the batches, with the same image for all."""
    first = {4: [0, 6, 0, 2, 7, 2, 1, 2, 4, 1], 1: [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]}
    columns = [one for k in batches for one in (*first.get(k, [5] * 10), *[k] * 9990)]
    image = pa.array([encoded(pixels("test_batch", 1)[0])]).dictionary_encode()
    place.mkdir()
    for part, found in (("train", columns), ("test", [0])):
        images = pa.DictionaryArray.from_arrays([0] * len(found), image.dictionary)
        table = pa.table({"img": images.cast(pa.binary()), "label": found})
        pq.write_table(table, place / f"{part}.parquet")
    return place


def blank(raw, where):
    """Return an empty image, which is fast; the labels identify the rows."""
    return np.zeros((3, 1), np.uint8)


def test_official_order_is_recognized_and_restored(tmp_path, monkeypatch):
    """The hub has the rows in the order of the archive: data_batch_4, 3, 2, 5, 1."""
    monkeypatch.setattr("longspan.tasks.lra.cifar._decode", blank)
    official = cifar.find(write_whole_labels(tmp_path / "a", (1, 2, 3, 4, 5)))
    hub = cifar.find(write_whole_labels(tmp_path / "b", (4, 3, 2, 5, 1)))
    own = cifar.find(write_whole_labels(tmp_path / "c", (2, 1, 3, 4, 5)))
    assert (official.order, hub.order, own.order) == ("official", "hub", "own")
    assert collected(official)["train"][1] == collected(hub)["train"][1]
    assert "not in the official order" in own.describe({"train": 1, "test": 1})
    assert "order" not in hub.describe({"train": 1, "test": 1})


NO_BATCH = r"has entries .*; expected data, an array \(N, 3072\), and labels, a list of N integers"
REPLACED = [
    (NO_BATCH, {"data": None}),
    (NO_BATCH, {"labels": None}),
    (NO_BATCH, {"labels": None, "fine_labels": [1] * 10}),
    (NO_BATCH, {"data": np.zeros((10, 3071), np.uint8)}),
    (NO_BATCH, {"data": np.zeros(3072, np.uint8)}),
    (NO_BATCH, {"data": np.zeros((9, 3072), np.uint8)}),
    (NO_BATCH, {"labels": ["1"] * 10}),
    ("has 9 images where the first batch has 10", 9),
    ("labels go from 0 to 10, expected 0 to 9", {"labels": [*range(9), 10]}),
    ("labels go from -1 to 8", {"labels": list(range(-1, 9))}),
    ("not a CIFAR-10 batch: .*, got arrays of type .*i8", {"data": np.zeros((10, 3072), np.int64)}),
]


@pytest.mark.parametrize("form", ["batches", "archive"])
@pytest.mark.parametrize(("reason", "entries"), REPLACED)
def test_malformed_batch_is_rejected(tmp_path, form, reason, entries):
    count, entries = (entries, {}) if isinstance(entries, int) else (10, entries)
    content = batch("data_batch_2", count, **entries)
    with pytest.raises(DataError, match=rf"data_batch_2.*({reason})"):
        collected(cifar.find(FORMS[form](tmp_path, data_batch_2=content)))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99, 0.99999])
def test_truncated_batch_is_rejected(tmp_path, share):
    content = batch("test_batch")
    content = content[: max(int(len(content) * share) - 1, 1)]
    with pytest.raises(DataError, match="test_batch is truncated or not a CIFAR-10 batch"):
        collected(cifar.find(write_batches(tmp_path, test_batch=content)))


def test_missing_batch_is_named(tmp_path):
    folder = write_batches(tmp_path) / "cifar-10-batches-py"
    (folder / "data_batch_3").unlink()
    (folder / "test_batch").unlink()
    with pytest.raises(DataError, match="batches-py lacks data_batch_3, test_batch; expected"):
        cifar.find(tmp_path)


def test_batch_missing_from_an_archive_is_named(tmp_path):
    with tarfile.open(tmp_path / "cifar-10.tar.gz", "w:gz") as archive:
        archive.add(write_batches(tmp_path / "x") / "cifar-10-batches-py", "batches")
    path = tmp_path / "cifar-10.tar.gz"
    assert len(collected(cifar.find(path))["train"][1]) == 50
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "x" / "cifar-10-batches-py" / "data_batch_1", "data_batch_1")
    with pytest.raises(DataError, match="lacks data_batch_2, data_batch_3, data_batch_4"):
        collected(cifar.find(path))


def test_duplicate_batch_is_rejected(tmp_path):
    folder = write_batches(tmp_path / "x") / "cifar-10-batches-py"
    with tarfile.open(tmp_path / "cifar-10.tar.gz", "w:gz") as archive:
        for root in ("one", "two"):
            archive.add(folder, root)
    with pytest.raises(DataError, match=r"two/.* is a second data_batch_1"):
        collected(cifar.find(tmp_path))


def test_whole_batch_must_be_the_official_one(tmp_path):
    content = python2({"data": np.zeros((10_000, 3072), np.uint8), "labels": [0] * 10_000})
    with pytest.raises(DataError, match="data_batch_1 does not match the published md5 c99cafc15"):
        collected(cifar.find(write_batches(tmp_path, data_batch_1=content)))


def test_archive_with_the_official_name_must_be_the_official_one(tmp_path):
    write_archive(tmp_path, name="cifar-10-python.tar.gz")
    with pytest.raises(DataError, match=r"python\.tar\.gz has sha256 .*expected 6d958be0"):
        collected(cifar.find(tmp_path))


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_in_a_pickle_is_never_executed(tmp_path, protocol):
    content = pickle.dumps({"data": Malicious(f"touch {tmp_path}/run")}, protocol)
    pickle.loads(content)
    assert (tmp_path / "run").exists(), "the control: unpickling executes it"
    (tmp_path / "run").unlink()
    with pytest.raises(
        DataError, match=r"foreign is .* not a CIFAR-10 batch: .*, got a reference to \w+\.system"
    ):
        restricted_pickle.load_batch(content, "foreign")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "value", [[1], 7, "text", {"a": np.float64(1)}, {"a": np.zeros(2)}, {"a": Path("/")}]
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_other_values_are_rejected(value, protocol):
    content = pickle.dumps(value, protocol)
    with pytest.raises(DataError, match=r"foreign is truncated or not a CIFAR-10 batch"):
        restricted_pickle.load_batch(content, "foreign")


def test_array_in_column_major_order_is_rejected():
    content = python2({"data": np.zeros((2, 3), np.uint8)})
    assert restricted_pickle.load_batch(content, "plain")["data"].shape == (2, 3)
    with pytest.raises(DataError, match="got an array that is not of uint8 in row-major order"):
        restricted_pickle.load_batch(content.replace(b"\x89T", b"\x88T"), "foreign")


MALFORMED = (
    b".",
    b"e.",
    b"}u.",
    b"}(K\x01u.",
    b"}](K\x01es.",
    b"h\x01.",
    b"}](h\x00K\x01u.",
    b"(KR.",
    b"K\x01K\x02R.",
    b"}K\x01b.",
    b"T\xff\xff\xff\x7fabc.",
)


@pytest.mark.parametrize("content", [b"", b".", *(b"\x80\x02" + x for x in MALFORMED)])
def test_malformed_pickles_are_rejected(content):
    with pytest.raises(DataError, match=r"foreign is truncated or not a CIFAR-10 batch"):
        restricted_pickle.load_batch(content, "foreign")


@pytest.mark.parametrize(
    "name",
    ["builtins eval", "numpy loadtxt", "numpy.core.multiarray scalar", "numpy.testing runstring"],
)
def test_names_outside_the_allow_list_are_rejected(name):
    module, _, function = name.partition(" ")
    content = f"c{module}\n{function}\n(S'1 + 1'\ntR.".encode()
    with pytest.raises(DataError, match=rf"got a reference to {module}\.{function}"):
        restricted_pickle.load_batch(content, "foreign")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"img": None}, r"train\.parquet lacks column label or one of img, image, jpeg; it has"),
        ({"label": None}, r"train\.parquet lacks column label"),
        ({"label": [0.5] * 50}, r"column label has type double, .*; expected integers"),
        ({"label": [None] + [1] * 49}, "and 1 nulls; expected integers without nulls"),
        ({"label": [10] + [1] * 49}, r"train\.parquet: labels go from 1 to 10, expected 0 to 9"),
        ({"img": ["text"] * 50}, "column img has type string, expected bytes"),
        ({"img": [b""] * 50}, r"train\.parquet: row 0 is damaged or no PNG or JPEG"),
        ({"img": [None] * 50}, "type null"),
    ],
)
def test_parquet_file_with_other_columns_is_rejected(tmp_path, columns, reason):
    write_parquet(tmp_path)
    path = tmp_path / "train.parquet"
    table = {**pq.read_table(path).to_pydict(), **columns}
    pq.write_table(pa.table({k: v for k, v in table.items() if v is not None}), path)
    with pytest.raises(DataError, match=reason):
        collected(cifar.find(tmp_path))


def damaged():
    whole = encoded(pixels("test_batch", 1)[0])
    return {
        "is damaged": whole[: len(whole) // 2],
        "is 28 x 28 pixels, expected 32 x 32": encoded(np.zeros((28, 28, 3), np.uint8)),
        "is damaged or no PNG or JPEG": encoded(np.zeros((32, 32, 3), np.uint8), "GIF"),
    }


@pytest.mark.parametrize("reason", damaged())
def test_damaged_image_is_named_by_its_row(tmp_path, monkeypatch, reason):
    monkeypatch.setattr(cifar, "_CHUNK", 3)
    write_parquet(tmp_path)
    path = tmp_path / "train.parquet"
    table = pq.read_table(path).to_pydict()
    table["img"][7] = {"bytes": damaged()[reason], "path": None}
    pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=rf"train\.parquet: row 7 {reason}"):
        collected(cifar.find(tmp_path))


ARCHIVE = "cifar-10-batches-py_subset_from_jpeg.tar.gz"


def test_real_batches_are_read_as_python_reads_them():
    seen = set()
    with tarfile.open(real(f"cifar10/{ARCHIVE}")) as archive:
        for member in archive:
            raw = archive.extractfile(member).read()
            expected = pickle.loads(raw, encoding="latin1")
            found = restricted_pickle.load_batch(raw, member.name)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[key], expected[key]) for key in expected)
            seen.add(Path(member.name).name)
    assert seen == {*BATCHES, "batches.meta"}


def test_real_archive_and_real_parquet_hold_the_same_images(tmp_path):
    folder = real("cifar10", ARCHIVE, "train_jpeg.parquet", "test_jpeg.parquet")
    for part in cifar.SOURCE_SPLITS:
        (tmp_path / f"{part}.parquet").symlink_to(folder / f"{part}_jpeg.parquet")
    packed, table = (collected(cifar.find(one)) for one in (folder / ARCHIVE, tmp_path))
    for part, count in (("train", 2000), ("test", 1000)):
        assert np.bincount(packed[part][1]).tolist() == [count // 10] * 10
        assert packed[part][1] == table[part][1]
        # two versions of the JPEG library may round differently
        assert np.abs(packed[part][0].astype(int) - table[part][0]).max() <= 1


def test_real_full_set_is_found():
    source = cifar.find(real("cifar10", "full").parent)
    assert (source.form, source.rows) == ("parquet", 60_000)
    assert (source.exact, source.order) == (False, "own")
