"""The official release is found in every nesting; errors name the file and line."""

import contextlib
import gzip
import io
import math
import os
import random
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from longspan.errors import DataError, RunError
from longspan.tasks.lra import pathfinder_release as lra_pathfinder
from longspan.tasks.lra import release as lra_release
from longspan.tasks.lra.generators import listops
from longspan.tasks.lra.release import AAN, LISTOPS, find
from real_data import real

HARD = lra_release.pathfinder_folder(32)
HARD_128 = lra_release.pathfinder_folder(128)

EXPRESSIONS = {
    "basic_train.tsv": [("( ( ( [MAX 2 ) 9 ) ] )", 9), ("( ( [MED 4 ) 9 ) ]", 6), ("7", 7)],
    "basic_val.tsv": [("( ( [SM 8 ) 7 ) ]", 5)],
    "basic_test.tsv": [("( ( [MIN 3 ) ( ( [MAX 1 ) 2 ) ] ) ]", 2)],
}
PAIRS = {
    "new_aan_pairs.train.tsv": [
        ("1.0", "P06-1", "P05-2", 'A "quoted text', "naïve — text"),
        ("0.0", "P06-1", "W02-9", "b'literal\\n'", 'no "'),
        ("1", "a", "b", "one", "two"),
        ("1.00", "a", "d", "", "four"),
    ],
    "new_aan_pairs.eval.tsv": [("0", "a", "c", "one", "three")],
    "new_aan_pairs.test.tsv": [("0.0", "b", "c", "two", "three")],
}
LISTOPS_FILES = {
    name: "".join(f"{a}\t{b}\r\n" for a, b in [("Source", "Target"), *rows]).encode()
    for name, rows in EXPRESSIONS.items()
}
AAN_FILES = {
    name: "".join("\t".join(row) + "\n" for row in rows).encode() for name, rows in PAIRS.items()
}
SPLITS = ("train", "validation", "test")


def png(pixels, mode="L"):
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


def drawn(resolution, folders=(0, 1, 2, 10), count=5, seed=0):
    """Return the files of a Pathfinder set, and its pixels and labels in order."""
    dice = np.random.default_rng(seed)
    files, images, labels = {}, [], []
    for folder in folders:
        lines = []
        # the order of the metadata differs from the order of the names and the files
        for number in dice.permutation(count):
            images.append(dice.integers(0, 256, (resolution, resolution), np.uint8))
            labels.append(len(labels) % 2)
            name = f"sample_{number}.png"
            files[f"imgs/{folder}/{name}"] = png(images[-1])
            lines.append(f"imgs/{folder} {name} {number} {labels[-1]} 1.8 14 4 5 1.5 2 1\n")
        files[f"metadata/{folder}.npy"] = "".join(lines).encode()
    return files, np.array(images), np.array(labels)


def below(folder, files):
    return {f"{folder}/{name}": content for name, content in files.items()}


def unpacked(place, files):
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return place


def tarred(path, files, shuffle=True):
    """Write a tar.gz with shuffled members under any name."""
    names = random.Random(0).sample(sorted(files), len(files)) if shuffle else list(files)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def nested(place, what, files, nesting):
    """Write the release or a part of it in some nesting; return the path that a user would name."""
    outer, inner = f"lra_release/{what}", f"lra_release/lra_release/{what}"
    top, other = what.split("/")[0], {"lra_release/lra_release/other/basic.tsv": b"not read"}
    if nesting == "archive itself":
        return tarred(place / "lra_release.gz", below(inner, files) | other)
    if nesting == "folder of the archive":
        tarred(place / "lra_release.gz", below(inner, files) | other)
        return place
    if nesting == "archive of the part":
        return tarred(place / f"{top}.tar.gz", below(what, files))
    if nesting == "zip":
        return zipped(place / "lra_release.zip", below(inner, files) | other)
    if nesting == "outer copy":
        return unpacked(place, below(outer, files))
    if nesting == "its parent":
        return unpacked(place, below(what, files))
    if nesting == "own folder":
        return unpacked(place, below(what, files)) / top
    unpacked(place, below(inner, files) | other)
    return place / nesting


NESTINGS = [
    "archive itself",
    "folder of the archive",
    "archive of the part",
    "zip",
    "outer copy",
    "its parent",
    "own folder",
    ".",
    "lra_release",
    "lra_release/lra_release",
]
every_nesting = pytest.mark.parametrize("nesting", NESTINGS)


pytestmark = pytest.mark.usefixtures("nowhere")


@pytest.fixture(params=["folder", "archive"])
def write(request, tmp_path):
    """Function that writes files anew as a folder or as an archive, and returns its path."""
    place = tmp_path / "release"

    def write(files):
        if request.param == "archive":
            return tarred(place, files)
        shutil.rmtree(place, ignore_errors=True)
        return unpacked(place, files)

    return write


def read_listops(source):
    found = {split: [] for split in SPLITS}
    for split, tokens, value in lra_release.read_listops(source):
        assert tokens.dtype == np.uint8
        found[split].append((" ".join(listops.ids_to_symbols(tokens)), value))
    return list(found.values())


def read_aan(source):
    found = {split: [] for split in SPLITS}
    for pair in lra_release.read_pairs(source):
        found[pair.split].append((pair.label, *pair.ids, *(one.decode() for one in pair.texts)))
    return list(found.values())


def read_pathfinder(source, scratch):
    return lra_pathfinder.read_images(source.path, source.part, scratch, lambda done, total: None)


def read_images(source, scratch):
    images = read_pathfinder(source, scratch)
    side = math.isqrt(images.pixels.shape[1])
    return images, images.pixels[images.places].reshape(-1, side, side)


def plain(expression):
    return expression.translate({ord("("): None, ord(")"): None, ord("]"): "X"}).split()


@every_nesting
def test_listops_is_found_and_read(tmp_path, nesting):
    source = find(nested(tmp_path, LISTOPS, LISTOPS_FILES, nesting), LISTOPS)
    truth = [[(" ".join(plain(a)), b) for a, b in rows] for rows in EXPRESSIONS.values()]
    assert read_listops(source) == truth


@pytest.mark.parametrize("nesting", ["archive itself", "own folder"])
def test_aan_is_found_and_read_literally(tmp_path, nesting):
    source = find(nested(tmp_path, AAN, AAN_FILES, nesting), AAN)
    truth = [[(int(float(label)), *rest) for label, *rest in rows] for rows in PAIRS.values()]
    assert read_aan(source) == truth


@every_nesting
def test_pathfinder_is_found_and_read_in_order(tmp_path, nesting):
    files, pixels, labels = drawn(32)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "data").mkdir()
    source = find(nested(tmp_path / "data", HARD, files, nesting), HARD)
    before = sorted((tmp_path / "data").rglob("*"))
    images, found = read_images(source, tmp_path / "scratch")
    assert (found == pixels).all()
    assert (found.dtype, images.labels.dtype, len(found)) == (np.uint8, np.uint8, 20)
    assert images.labels.tolist() == labels.tolist()
    assert images.contour_lengths.tolist() == [14] * 20
    assert sorted((tmp_path / "data").rglob("*")) == before


@pytest.mark.parametrize("named", [".", "lra_release"])
def test_inner_of_two_copies_in_a_folder_is_read(tmp_path, named):
    inner, outer = drawn(32), drawn(32, seed=1)
    for place, (files, _, _) in (("lra_release/lra_release", inner), ("lra_release", outer)):
        unpacked(tmp_path, below(f"{place}/{HARD}", files))
    assert (read_images(find(tmp_path / named, HARD), tmp_path)[1] == inner[1]).all()


@pytest.mark.parametrize("variable", ["LONGSPAN_DATA", "LONGSPAN_TEST_DATA"])
def test_without_a_folder_the_environment_is_searched(monkeypatch, tmp_path, variable):
    with pytest.raises(DataError, match=r"listops-1000 .* not here \(searched nothing, since"):
        find(None, LISTOPS)
    monkeypatch.setenv(variable, str(unpacked(tmp_path, below(LISTOPS, LISTOPS_FILES))))
    assert find(None, LISTOPS).path == tmp_path / LISTOPS


def test_missing_parts_and_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist"):
        find(tmp_path / "nowhere", AAN)
    with pytest.raises(DataError, match=r"tsv_data .* is not here \(searched .*lra_release\.gz"):
        find(tmp_path, AAN)
    files = {name: content for name, content in AAN_FILES.items() if "eval" not in name}
    unpacked(tmp_path, below(AAN, files))
    with pytest.raises(DataError, match=r"tsv_data lacks new_aan_pairs\.eval\.tsv"):
        find(tmp_path, AAN)
    tarred(tmp_path / "aan.tar.gz", files)
    with pytest.raises(DataError, match=r"aan\.tar\.gz lacks new_aan_pairs\.eval\.tsv"):
        read_aan(find(tmp_path / "aan.tar.gz", AAN))
    unpacked(tmp_path, below(HARD, {"imgs/0/sample_0.png": b""}))
    with pytest.raises(DataError, match=r"curv_contour_length_14 lacks metadata"):
        find(tmp_path, HARD)
    with pytest.raises(DataError, match=r"length_14 .* is not here \(searched .*aan\.tar\.gz"):
        read_pathfinder(find(tmp_path / "aan.tar.gz", HARD), tmp_path)


def test_origin_identifies_a_copy_independently_of_its_folder(tmp_path):
    files, _, _ = drawn(32)
    more, _, _ = drawn(32, folders=(0, 1))
    for what, one, other in ((HARD, files, more), (LISTOPS, LISTOPS_FILES, None)):
        other = other or {**one, "basic_test.tsv": one["basic_test.tsv"] * 2}
        first, same, different = (
            find(unpacked(tmp_path / f"{n} {what[:4]}", below(what, content)), what)
            for n, content in enumerate((one, one, other))
        )
        assert first.origin == same.origin != different.origin
        assert first.checksums() == same.checksums() != different.checksums()


def test_compressed_table_is_read_if_there_is_no_plain_one(tmp_path):
    files = {f"{name}.gz": gzip.compress(text) for name, text in LISTOPS_FILES.items()}
    files["basic_val.tsv"] = LISTOPS_FILES["basic_val.tsv"]
    files["basic_val.tsv.gz"] = b"never read"
    source = find(unpacked(tmp_path, files), LISTOPS)
    names = ["basic_train.tsv.gz", "basic_val.tsv", "basic_test.tsv.gz"]
    assert [x.name for x in source.paths] == names
    del files["basic_val.tsv.gz"]
    packed = find(tarred(tmp_path / "all.tar.gz", files), LISTOPS)
    assert read_listops(source) == read_listops(packed)


def test_two_copies_in_an_archive_must_be_equal(tmp_path):
    both = below(f"lra_release/{LISTOPS}", LISTOPS_FILES)
    both |= below(f"lra_release/lra_release/{LISTOPS}", LISTOPS_FILES)
    source = find(tarred(tmp_path / "lra_release.gz", both), LISTOPS)
    assert [len(rows) for rows in read_listops(source)] == [3, 1, 1]
    both[f"lra_release/{LISTOPS}/basic_val.tsv"] += b"7\t7\r\n"
    tarred(tmp_path / "lra_release.gz", both)
    with pytest.raises(DataError, match=r"basic_val\.tsv differs from another copy of it"):
        read_listops(source)


@pytest.mark.parametrize(
    ("what", "rows", "text"),
    [
        (LISTOPS, {"train": 96_000, "validation": 2_000, "test": 2_000}, "whole release (100,000"),
        (AAN, {"train": 147_086, "validation": 18_090, "test": 17_437}, "whole release (182,613"),
        (AAN, {"train": 147_085, "validation": 18_091, "test": 17_437}, "a subset of the release"),
        (HARD, {"all": 200_000}, "the whole release (200,000 rows)"),
        (HARD, {"train": 160_000, "validation": 20_000, "test": 20_000}, "the whole release"),
        (HARD, {"all": 3_000}, "a subset of the release (3,000 rows)"),
    ],
)
def test_description_distinguishes_the_whole_release_from_a_subset(tmp_path, what, rows, text):
    assert text in lra_release.LraFiles(part=what, path=tmp_path).describe(rows)


def both_copies():
    inner, outer = drawn(128, (0, 1), 3), drawn(128, (0,), 3, seed=1)
    files = below(f"lra_release/lra_release/{HARD_128}", inner[0])
    return inner, files, below(f"lra_release/{HARD_128}", outer[0])


@pytest.mark.parametrize("form", ["folder", "outer first", "inner first"])
def test_inner_copy_is_read(tmp_path, form):
    inner, inside, outside = both_copies()
    if form == "folder":
        data = unpacked(tmp_path, inside | outside)
    else:
        files = outside | inside if form == "outer first" else inside | outside
        data = tarred(tmp_path / "lra_release.gz", files, shuffle=False)
    source = find(data, HARD_128)
    assert (read_images(source, tmp_path)[1] == inner[1]).all()


def test_outer_copy_alone_is_rejected(tmp_path):
    _, _, outside = both_copies()
    files = outside | below(f"lra_release/lra_release/{LISTOPS}", LISTOPS_FILES)
    reason = r"pathfinder128.*is the outer copy, which is reported unlearnable .*issues/38\)"
    data = unpacked(tmp_path / "folder", files)
    for place in (data, data / "lra_release", data / "lra_release" / "pathfinder128"):
        with pytest.raises(DataError, match=reason):
            find(place, HARD_128)
    archive = tarred(tmp_path / "lra_release.gz", files)
    with pytest.raises(DataError, match=reason):
        read_pathfinder(find(archive, HARD_128), tmp_path)


def test_two_copies_at_the_same_depth_are_rejected(tmp_path):
    files, _, _ = drawn(32, (0,), 2)
    archive = tarred(tmp_path / "a.tar", below(f"a/{HARD}", files) | below(f"b/{HARD}", files))
    with pytest.raises(DataError, match=r"pathfinder32/.* exists twice, below '[ab]/' and"):
        read_pathfinder(find(archive, HARD), tmp_path)


def changed(files, name, old, new):
    assert old in files[name]
    return {**files, name: files[name].replace(old, new, 1)}


HEADER = b"Source\tTarget"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (HEADER, b"Target\tSource", r"line 1 is b'Target.*; expected the header b'Source"),
        (HEADER, b"Source", "line 1 is b'Source'; expected the header"),
        (HEADER + b"\r\n", b"", r"line 1 is b'\( .*; expected the header"),
        (b"\t9\r", b"\r", "line 2 has 1 columns; expected 2"),
        (b"\t9\r", b"\t9\t9\r", "line 2 has 3 columns; expected 2"),
        (b"\t9\r", b"\t10\r", "line 2: label b'10'; expected a digit"),
        (b"\t6\r", b"\t-1\r", "line 3: label b'-1'; expected a digit"),
        (b"\t6\r", b"\tx\r", "line 3: label b'x'; expected a digit"),
        (b"\t6\r", b"\t\r", "line 3: label b''; expected a digit"),
        (b"\t6\r", b"\t\xb2\r", "line 3: label .*; expected a digit"),
        (b"\t6\r", b"\t5\r", "line 3: label 5, but the expression has the value 6"),
        (b"7\t7", b"77\t7", "line 4: symbol b'77' is not one of ListOps"),
        (b"7\t7", b"( )\t7", "line 4 has no expression"),
        (b"7\t7", b"7 7\t7", "line 4: ListOps expression: .* 2 values; expected 0 and 1"),
        (b"7\t7\r\n", b"\r\n", "line 4 has 1 columns"),
        (b"7\t7", b"7 " * (1 << 20), "line 4 has more than 1 MiB"),
    ],
)
def test_malformed_listops_is_rejected_with_file_and_line(tmp_path, old, new, reason):
    data = unpacked(tmp_path, changed(LISTOPS_FILES, "basic_train.tsv", old, new))
    with pytest.raises(DataError, match=rf"basic_train\.tsv: {reason}"):
        read_listops(find(data, LISTOPS))


@pytest.mark.parametrize(
    ("what", "files", "read"), [(LISTOPS, LISTOPS_FILES, read_listops), (AAN, AAN_FILES, read_aan)]
)
def test_empty_table_is_rejected(write, what, files, read):
    name = list(files)[1]
    with pytest.raises(DataError, match=rf"{name} is empty"):
        read(find(write({**files, name: b""}), what))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"1.0\t", b"", "line 1 has 4 columns; expected 5"),
        (b"1.0\t", b"1.0\t\t", "line 1 has 6 columns; expected 5"),
        (b"1.0\t", b"0.5\t", "line 1: label b'0.5'; expected 0 or 1"),
        (b"0.0\t", b"2\t", "line 2: label b'2'; expected 0 or 1"),
        (b"0.0\t", b"nan\t", "line 2: label b'nan'; expected 0 or 1"),
        (b"0.0\t", b"label\t", "line 2: label b'label'; expected 0 or 1"),
        ("naïve".encode(), "naïve".encode("latin-1"), r"line 1 is not UTF-8 text \(byte 33\)"),
        (b"one\ttwo", b"one", "line 3 has 4 columns"),
        (b"two", b"two " * (1 << 23), "line 3 has more than 32 MiB"),
    ],
)
def test_malformed_aan_is_rejected_with_file_and_line(tmp_path, old, new, reason):
    files = changed(AAN_FILES, "new_aan_pairs.train.tsv", old, new)
    data = tarred(tmp_path / "a.gz", files)
    with pytest.raises(DataError, match=rf"new_aan_pairs\.train\.tsv: {reason}"):
        read_aan(find(data, AAN))


LINE = b"imgs/0 sample_2.png 2 0 1.8 14 4"
PIXELS = np.zeros((32, 32), np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("metadata/0.npy", b"", r"metadata/0\.npy is empty"),
        ("metadata/0.npy", b"\xff\xfe", r"metadata/0\.npy is not metadata of Pathfinder"),
        ("metadata/0.npy", b"\x93NUMPY\1\0\0\0", r"metadata/0\.npy is not metadata"),
        ("metadata/0.npy", LINE[:24] + b"\n", r"metadata/0\.npy: line 1 has 4 fields"),
        ("metadata/0.npy", LINE.replace(b" 0 ", b" 2 "), r"line 1: label '2'; expected 0 or 1"),
        ("metadata/0.npy", LINE.replace(b"14", b"-4"), r"line 1: contour length '-4'"),
        ("metadata/0.npy", LINE.replace(b"14", b"99999"), r"line 1: contour length '99999'"),
        ("metadata/0.npy", LINE.replace(b"imgs/0", b"../x"), r"line 1: '\.\./x/sample_2\.png' is"),
        ("metadata/0.npy", LINE.replace(b"_2", b"_9"), r"line 1 names imgs/0/sample_9\.png, which"),
        ("metadata/0.npy", LINE + b"\n" + LINE, r"line 2 names .*sample_2\.png again; .* line 1"),
        ("imgs/0/sample_2.png", b"", r"sample_2\.png is empty; expected a PNG"),
        ("imgs/0/sample_2.png", b"no image", r"sample_2\.png is truncated or no PNG"),
        ("imgs/0/sample_2.png", png(PIXELS)[:-20], r"sample_2\.png is truncated or no PNG"),
        ("imgs/0/sample_2.png", png(PIXELS[:16]), r"sample_2\.png is an image of 32 x 16 pixels"),
        ("imgs/0/sample_2.png", png(PIXELS, "RGB"), r"of 32 x 32 pixels, mode RGB; expected 32"),
        ("imgs/0/sample_2.png", png(PIXELS, "I;16"), r"of 32 x 32 pixels, mode I;16"),
    ],
)
def test_malformed_pathfinder_is_rejected_with_file_and_line(
    write, tmp_path, name, content, reason
):
    files, _, _ = drawn(32, (0, 1), 4)
    data = write(below(HARD, {**files, name: content}))
    with pytest.raises(DataError, match=reason) as caught:
        read_images(find(data, HARD), tmp_path)
    assert HARD in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_damaged_png_is_never_read_as_another_image():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)
    whole = png(pixels)
    unnoticed = []
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        with contextlib.suppress(DataError):
            assert (lra_pathfinder.decode_png(bytes(broken), 32, "image") == pixels).all()
            unnoticed.append(place)
    # only damage to the chunk after the image, which is empty, is not detected
    assert min(unnoticed) >= len(whole) - 12


def test_huge_image_is_rejected_before_decoding(tmp_path):
    bomb = bytearray(png(np.zeros((1, 1), np.uint8)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(DataError, match=r"x\.png is truncated or no PNG|60000 x 60000"):
        lra_pathfinder.decode_png(bytes(bomb), 32, "x.png")
    whole = png(np.zeros((9_000, 9_000), np.uint8))
    with pytest.raises(DataError, match=r"x\.png is an image of 9000 x 9000 pixels"):
        lra_pathfinder.decode_png(whole, 32, "x.png")


def test_known_empty_image_is_omitted(write, tmp_path):
    easy = lra_release.pathfinder_folder(32, "easy")
    files, pixels, _ = drawn(32, (0,), 173)
    names = [line.split()[1] for line in files["metadata/0.npy"].decode().splitlines()]
    place = names.index("sample_172.png")
    rest = np.delete(pixels, place, 0)

    def read(what, **other):
        data = write(below(what, {**files, **other}))
        return read_images(find(data, what), tmp_path)

    images, found = read(easy, **{"imgs/0/sample_172.png": b""})
    assert (found == rest).all()
    assert images.facts["empty_images"] == ["imgs/0/sample_172.png"]
    assert len(images.labels) == 172
    with pytest.raises(DataError, match=r"sample_172\.png is empty"):
        read(lra_release.pathfinder_folder(32, "intermediate"), **{"imgs/0/sample_172.png": b""})
    with pytest.raises(DataError, match=r"sample_171\.png is empty"):
        read(easy, **{"imgs/0/sample_171.png": b""})
    images, found = read(easy)
    assert (found == pixels).all()
    assert images.facts["empty_images"] == []


def test_images_without_metadata_are_counted_and_omitted_and_old_scratch_files_not_read(
    write, tmp_path
):
    files, pixels, _ = drawn(32)
    data = write(below(HARD, {**files, "imgs/3/sample_0.png": png(PIXELS)}))
    (tmp_path / "images.u8").write_bytes(bytes(5000))
    images, found = read_images(find(data, HARD), tmp_path)
    assert (found == pixels).all()
    assert images.facts["images_without_metadata"] == 1


class Trap:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def saved_array(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_real_npy_metadata_is_read_and_pickled_metadata_rejected(tmp_path):
    files, pixels, labels = drawn(32)
    for name in [name for name in files if name.startswith("metadata/")]:
        table = np.array([line.split() for line in files[name].decode().splitlines()])
        files[name] = saved_array(table.astype("S") if "10" in name else table)
    source = find(unpacked(tmp_path, below(HARD, files)), HARD)
    images, found = read_images(source, tmp_path)
    assert (found == pixels).all()
    assert images.labels.tolist() == labels.tolist()
    trap = np.array([[Trap(tmp_path / "sprung")]], object)
    for array in (table.astype(object), np.zeros(3), table[:, 0], trap):
        (tmp_path / HARD / "metadata" / "0.npy").write_bytes(saved_array(array))
        with pytest.raises(DataError, match=r"metadata/0\.npy is not metadata of Pathfinder"):
            read_pathfinder(source, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_unbalanced_labels_are_logged(tmp_path, logged):
    files, _, _ = drawn(32)
    source = find(unpacked(tmp_path, below(HARD, files)), HARD)
    assert read_pathfinder(source, tmp_path).facts["share_of_label_1"] == 0.5
    assert not logged.messages
    for number in (0, 1, 2):
        path = tmp_path / HARD / "metadata" / f"{number}.npy"
        path.write_text(path.read_text().replace(" 0 1.8", " 1 1.8"))
    assert read_pathfinder(source, tmp_path).facts["share_of_label_1"] > 0.8
    assert "of the images have label 1; expected half" in logged.text


def test_full_disk_is_reported(tmp_path, small_disk):
    files, _, _ = drawn(32, (0,), 150)
    source = find(tarred(tmp_path / "a.tar.gz", below(HARD, files)), HARD)
    with pytest.raises(RunError, match=r"cannot write .*: No space left"):
        read_pathfinder(source, small_disk)
    (small_disk / "images.u8").unlink(missing_ok=True)


def test_real_aan_keeps_its_quotes(tmp_path):
    folder = real("aan")
    source = find(folder, AAN)
    pairs = list(lra_release.read_pairs(source))
    counts = {split: sum(pair.split == split for pair in pairs) for split in SPLITS}
    assert counts == {"train": 200, "validation": 60, "test": 60}
    assert "a subset of the release (320 rows)" in source.describe(counts)
    with gzip.open(folder / "new_aan_pairs.eval.tsv.gz") as file:
        rows = [line.rstrip(b"\n").split(b"\t") for line in file]
    found = [pair for pair in pairs if pair.split == "validation"]
    assert [list(pair.texts) for pair in found] == [row[3:] for row in rows]
    assert [pair.label for pair in found] == [int(float(row[0])) for row in rows]
    assert any(b'"' in text for pair in pairs for text in pair.texts)


@pytest.fixture(scope="module")
def real_pathfinder(tmp_path_factory):
    """Return the archive, and the folder that it unpacks to."""
    archive = real("pathfinder32_generated/pathfinder32.tar.gz")
    place = tmp_path_factory.mktemp("pathfinder")
    with tarfile.open(archive) as content:
        content.extractall(place, filter="data")
    return archive, place


@pytest.mark.parametrize("difficulty", ["easy", "intermediate", "hard"])
def test_real_pathfinder_is_the_same_from_every_form(tmp_path, real_pathfinder, difficulty):
    archive, place = real_pathfinder
    what = lra_release.pathfinder_folder(32, difficulty)
    packed, pixels = read_images(find(archive, what), tmp_path)
    folder, same = read_images(find(place, what), tmp_path)
    assert (pixels == same).all()
    assert packed.labels.tolist() == folder.labels.tolist()
    assert packed.facts == folder.facts
    count = {"easy": 400, "intermediate": 400, "hard": 3000}[difficulty]
    assert pixels.shape == (count, 32, 32)
    assert 0.4 < packed.facts["share_of_label_1"] < 0.6
    lengths = {"easy": {6}, "intermediate": {9}, "hard": {14}}[difficulty]
    assert set(packed.contour_lengths.tolist()) == lengths
    for row in random.Random(0).sample(range(count), 20):
        number, line = divmod(row, 1000)
        path = place / what / "metadata" / f"{number}.npy"
        name, file, _, label, *_ = path.read_text().splitlines()[line].split()
        image = np.asarray(Image.open(place / what / name / file))
        assert (pixels[row] == image).all()
        assert packed.labels[row] == int(label)
