"""Archives are read completely or rejected by name; nothing is ever written."""

import bz2
import gc
import gzip
import io
import lzma
import os
import random
import struct
import tarfile
import tracemalloc
import zipfile

import pytest

from longspan.data import archives
from longspan.data.archives import Limits
from longspan.errors import DataError

LIMITS = Limits(member=1 << 20, total=1 << 21)
CONTENT = {
    "top/a.txt": b"first\nsecond\r\n\nlast",
    "top/deep/b.txt": bytes(range(256)) * 700,
    "top/deep/empty.txt": b"",
    "c.txt": b"c\n",
    "top/other.bin": b"not wanted",
}
WANTED = {name: content for name, content in CONTENT.items() if name.endswith(".txt")}


def wanted(name):
    return name.endswith(".txt")


def read(path, limits=LIMITS, **options):
    return {one.name: one.read() for one in archives.read_members(path, wanted, limits, **options)}


def tar_bytes(content=CONTENT, members=(), prefix=""):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in members:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return file.getvalue()


def zip_bytes(content=CONTENT, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("top/", b"")
        for name, data in content.items():
            archive.writestr(name, data)
    return file.getvalue()


PACK = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


def written(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", [*PACK, "zip", "folder"])
@pytest.mark.parametrize("name", ["lra_release.gz", "archive.tar", "no_suffix"])
def test_every_format_gives_the_same_members_for_any_suffix(tmp_path, kind, name):
    path = tmp_path / name
    if kind == "folder":
        for member, content in CONTENT.items():
            (path / member).parent.mkdir(parents=True, exist_ok=True)
            (path / member).write_bytes(content)
    else:
        path.write_bytes(zip_bytes() if kind == "zip" else PACK[kind](tar_bytes()))
    before = sorted(tmp_path.rglob("*"))
    assert read(path) == WANTED
    assert sorted(tmp_path.rglob("*")) == before


def test_lines_have_a_location_and_no_line_end(tmp_path):
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(CONTENT["top/a.txt"]))
    (tmp_path / "a.txt").write_bytes(CONTENT["top/a.txt"])
    for name in ("a.txt", "b.txt.gz"):
        with archives.open_member(tmp_path, name, LIMITS) as member:
            found = list(member.lines(6))
        assert [line for _, line in found] == [b"first", b"second", b"", b"last"]
        assert [where for where, _ in found] == [
            f"{tmp_path / name}: line {number}" for number in (1, 2, 3, 4)
        ]
        with archives.open_member(tmp_path, name, LIMITS) as member:
            lines = member.lines(5)
            next(lines)
            with pytest.raises(DataError, match=rf"{name}: line 2 has more than 5 bytes"):
                next(lines)


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 1])
def test_truncated_tar_is_rejected(tmp_path, kind, share):
    noise = random.Random(0).randbytes(100_000)
    whole = PACK[kind](tar_bytes({"a.txt": noise, "b.bin": noise, "c.txt": b"c"}))
    # a plain tar ends in padding, which is not needed
    end = len(whole) - 9 if kind != "tar" else len(whole) - 10240
    path = written(tmp_path / f"a.{kind}", whole[: int(share * end)])
    with pytest.raises(DataError, match=r"(: \w\.txt)? is truncated, damaged or no archive"):
        read(path)


@pytest.mark.parametrize("kind", PACK)
def test_tar_truncated_between_two_members_is_rejected(tmp_path, kind):
    """The compression is valid, but the tar inside stops at the end of a member."""
    cut = tar_bytes({"a.txt": b"a" * 512, "b.txt": b"b" * 512})[:1024]
    with pytest.raises(DataError, match=r"is truncated, damaged or no archive"):
        read(written(tmp_path / f"a.{kind}", PACK[kind](cut)))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_zip_is_rejected(tmp_path, share):
    whole = zip_bytes()
    with pytest.raises(DataError, match=r"a\.zip is truncated, damaged or no archive"):
        read(written(tmp_path / "a.zip", whole[: int(share * len(whole))]))


def test_wrong_crc_is_rejected(tmp_path):
    packed = bytearray(gzip.compress(tar_bytes()))
    packed[-6] ^= 1
    with pytest.raises(DataError, match=r"a\.tar\.gz is truncated, damaged or no archive \(CRC"):
        read(written(tmp_path / "a.tar.gz", bytes(packed)))
    whole = bytearray(zip_bytes({"a.txt": b"content"}, zipfile.ZIP_STORED))
    whole[whole.index(b"content")] ^= 1
    with pytest.raises(DataError, match=r"a\.zip: a\.txt is truncated, .*CRC"):
        read(written(tmp_path / "a.zip", bytes(whole)))


OTHER_FILES = {
    "text": b"text" * 999,
    "damaged zip": b"PK\3\4" + b"x" * 999,
    "damaged gzip": b"\x1f\x8b" + b"x" * 999,
    "damaged bzip2": b"BZh" + b"x" * 999,
    "damaged xz": b"\xfd7zXZ\0" + b"x" * 999,
    "gzip without tar": gzip.compress(b"text" * 999),
    "empty": b"",
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_files_are_rejected(tmp_path, kind):
    reason = "empty; expected a tar or zip" if kind == "empty" else "truncated, damaged or no"
    with pytest.raises(DataError, match=rf"a\.tar is {reason} archive"):
        read(written(tmp_path / "a.tar", OTHER_FILES[kind]))


@pytest.mark.parametrize("kind", [*PACK, "zip"])
def test_damage_anywhere_is_rejected_or_harmless(tmp_path, kind):
    """Only `DataError` is raised, and formats with checksums never give wrong content."""
    whole = zip_bytes() if kind == "zip" else PACK[kind](tar_bytes())
    rng = random.Random(1)
    refused = []
    for _ in range(300):
        broken = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4))):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            found = read(written(tmp_path / "a", bytes(broken)))
        except DataError as error:
            refused.append(str(error))
        else:
            same = all(WANTED.get(name) in (None, data) for name, data in found.items())
            assert same or kind == "tar"
    assert len(refused) > (0 if kind == "tar" else 100)
    assert all(len(message.splitlines()) == 1 for message in refused)


def test_unreadable_file_is_rejected(tmp_path):
    path = tmp_path / "absent.tar"
    with pytest.raises(DataError, match=r"absent\.tar cannot be read \(No such file"):
        read(path)
    with (
        pytest.raises(DataError, match=r"absent\.txt cannot be read"),
        archives.open_member(tmp_path, "absent.txt", LIMITS),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_rejected(tmp_path):
    path = written(tmp_path / "a.tar", tar_bytes())
    path.chmod(0)
    with pytest.raises(DataError, match=r"a\.tar cannot be read \(Permission denied"):
        read(path)


OUTSIDE = ["../a.txt", "top/../../a.txt", "../place/../../a.txt", "../../etc/a.txt"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_path_outside_is_rejected(tmp_path, name):
    place = tmp_path / "place"
    place.mkdir()
    content = {**CONTENT, name: b"evil"}
    for path, whole in (
        (place / "a.tar.gz", gzip.compress(tar_bytes(content))),
        (place / "a.zip", zip_bytes(content)),
    ):
        with pytest.raises(DataError, match=r"a\.(tar\.gz|zip) contains .*, which is unsafe"):
            read(written(path, whole))
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a.tar.gz", "a.zip", "place"]


@pytest.mark.parametrize(
    "kind", ["SYMTYPE", "LNKTYPE", "CHRTYPE", "BLKTYPE", "FIFOTYPE", "GNUTYPE_SPARSE"]
)
def test_wanted_link_or_device_is_rejected(tmp_path, kind):
    info = tarfile.TarInfo("top/x.txt")
    info.type, info.linkname = getattr(tarfile, kind), "/etc/passwd"
    path = written(tmp_path / "a.tar", tar_bytes(members=[info]))
    with pytest.raises(
        DataError, match=r"a\.tar(: top/x\.txt is | contains .top/x\.txt., |.*sparse)"
    ):
        read(path)
    if kind != "GNUTYPE_SPARSE":
        info.name = "top/x.bin"
        assert read(written(path, tar_bytes(members=[info]))) == WANTED


def test_link_in_a_zip_is_rejected(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("x.txt")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=r"a\.zip: x\.txt is a link, .*; expected a regular file"):
        read(tmp_path / "a.zip")


def test_links_in_a_folder_must_stay_inside(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "real.txt").write_bytes(b"real")
    (folder / "inside.txt").symlink_to("real.txt")
    (folder / "not wanted").symlink_to("/etc/passwd")
    assert read(folder) == {"real.txt": b"real", "inside.txt": b"real"}
    (folder / "outside.txt").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match=r"outside\.txt leads outside .*folder"):
        read(folder)
    (folder / "outside.txt").unlink()
    (folder / "nowhere.txt").symlink_to("nothing")
    with pytest.raises(DataError, match=r"nowhere\.txt cannot be read"):
        read(folder)
    (folder / "nowhere.txt").unlink()
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"sub is a link to a folder"):
        read(folder)
    (folder / "sub").unlink()
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(
        DataError, match=r"pipe\.txt is a link, a folder or a device; expected a regular"
    ):
        read(folder)


def test_name_cannot_lead_outside_the_folder(tmp_path):
    for name in ("../a.txt", "/etc/passwd"):
        with (
            pytest.raises(DataError, match=r"leads outside .*; put the file itself there"),
            archives.open_member(tmp_path, name, LIMITS),
        ):
            pass


def test_duplicate_member_is_rejected(tmp_path):
    info = tarfile.TarInfo("top/a.txt")
    path = written(tmp_path / "a.tar", tar_bytes(members=[info]))
    with pytest.raises(DataError, match=r"a\.tar contains top/a\.txt twice"):
        read(path)


def test_more_bytes_than_allowed_are_rejected(tmp_path):
    content = {f"{number}.txt": os.urandom(1000) for number in range(5)}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    places = (
        folder,
        written(tmp_path / "a.tar", tar_bytes(content)),
        written(tmp_path / "a.zip", zip_bytes(content)),
    )
    for path in places:
        assert read(path, Limits(1000, 5000)) == content
        with pytest.raises(DataError, match=r"0\.txt is 1000 bytes; .* file of at most 999 bytes"):
            read(path, Limits(999, 5000))
        with pytest.raises(DataError, match=rf"{path.name}: .* have more than 4999 bytes"):
            read(path, Limits(1000, 4999))


def test_false_size_in_a_zip_is_rejected(tmp_path):
    whole = bytearray(zip_bytes({"a.txt": os.urandom(5000)}))
    for signature, place in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        # the last header of each kind, since the first belongs to the folder
        at = whole.rindex(signature) + place
        assert struct.unpack_from("<I", whole, at) == (5000,)
        struct.pack_into("<I", whole, at, 100)
    with pytest.raises(DataError, match=r"a\.zip: a\.txt is truncated"):
        read(written(tmp_path / "a.zip", bytes(whole)), Limits(4999, 9999))


def test_packed_member_is_bounded_by_its_unpacked_size(tmp_path):
    packed = gzip.compress(b"line\n" * 1000)
    (tmp_path / "a.txt.gz").write_bytes(packed)
    for most, is_allowed in ((5000, True), (4999, False)):
        limits = Limits(most, 10_000)
        with archives.open_member(tmp_path, "a.txt.gz", limits) as member:
            if is_allowed:
                assert len(list(member.lines(10))) == 1000
                continue
            with pytest.raises(DataError, match=r"a\.txt\.gz unpacks to more than 4999 bytes"):
                list(member.lines(10))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_too_many_members_are_rejected(tmp_path, kind):
    path = written(tmp_path / "a", zip_bytes() if kind == "zip" else tar_bytes())
    count = len(CONTENT) + (kind == "zip")
    assert read(path, Limits(1 << 20, 1 << 21, count)) == WANTED
    with pytest.raises(DataError, match=rf"a has more than {count - 1} members; refused"):
        read(path, Limits(1 << 20, 1 << 21, count - 1))


def test_names_are_normalized(tmp_path):
    """Python's extraction filter drops a slash too; the name only selects what is read."""
    assert read(written(tmp_path / "a.tar", tar_bytes(prefix="./"))) == WANTED
    content = {"/top/a.txt": b"a"}
    for name, whole in (("a.tar", tar_bytes(content)), ("a.zip", zip_bytes(content))):
        assert read(written(tmp_path / name, whole)) == {"top/a.txt": b"a"}


@pytest.mark.parametrize("before", [b"", tar_bytes({"a.txt": b"a"})[:1024]])
def test_huge_header_is_rejected(tmp_path, before):
    """Python would read a header that claims 4 GiB of attributes into memory."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    path = written(tmp_path / "a.tar", before + info.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 1 << 32)
    with pytest.raises(
        DataError, match=r"a\.tar is truncated, damaged .*a header of 4294967296 bytes"
    ):
        read(path)


def test_sparse_member_is_rejected(tmp_path):
    """A few bytes may represent a gigabyte of zeros, declared in extended attributes."""
    info = tarfile.TarInfo("x.txt")
    info.pax_headers = {"GNU.sparse.size": "1000", "GNU.sparse.map": "0,0"}
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with tarfile.open(path) as archive:
        assert archive.getmember("x.txt").issparse()
    with pytest.raises(DataError, match=r"a\.tar: x\.txt is a link, .*; expected a regular file"):
        read(path)


def test_memory_does_not_grow_with_the_number_of_members(tmp_path):
    def peak(count):
        names = (f"x/{number}.png" for number in range(count))
        path = written(tmp_path / "a.tar", tar_bytes(dict.fromkeys(names, b"")))
        # without this, garbage of other tests delays the collection of this test's garbage
        gc.collect()
        gc.freeze()
        tracemalloc.start()
        assert not read(path)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    assert peak(4500) < peak(1500) + (1 << 19)
