"""CIFAR-10 fixtures in every published form."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


def python2(value):
    """Pickle a value as Python 2 does (protocol 2, without the memo)."""
    return b"\x80\x02" + _code(value) + b"."


def _code(value):
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + value.to_bytes(4, "little", signed=True)
    if isinstance(value, str | bytes):
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        return b"T" + len(raw).to_bytes(4, "little") + raw
    if isinstance(value, list):
        return b"](" + b"".join(map(_code, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_code, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_code(key) + _code(one) for key, one in value.items()) + b"u"
    kind = b"cnumpy\ndtype\n" + _code((value.dtype.str[1:], 0, 1)) + b"R"
    kind += _code((3, value.dtype.str[0], None, None, None, -1, -1, 0)) + b"b"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _code((0,)) + _code("b")
    state = b"(" + _code(1) + _code(value.shape) + kind + _code(False) + _code(value.tobytes())
    return empty + b"tR" + state + b"tb"


def pixels(name, count):
    """Return the colors (count, 32, 32, 3) of a batch, different for each image."""
    seed = BATCHES.index(name)
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def labels(name, count):
    """Return balanced labels that begin with a different class in each batch."""
    return [(row + BATCHES.index(name)) % 10 for row in range(count)]


def planes(images):
    """Reshape colors (N, 32, 32, 3) to (N, 3, 1024)."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3, 1024)


def batch(name, count=10, **change):
    """Return the content of a batch; `change` replaces entries, None removes one."""
    entries = {
        "batch_label": name,
        "labels": labels(name, count),
        "data": planes(pixels(name, count)).reshape(count, 3072),
        "filenames": [f"{row}.png" for row in range(count)],
    } | change
    return python2({key: value for key, value in entries.items() if value is not None})


def write_batches(place, count=10, root="cifar-10-batches-py", **replaced):
    """Write the folder of batches; `replaced` has the content of some of them."""
    folder = place / root
    folder.mkdir(parents=True)
    for name in BATCHES:
        (folder / name).write_bytes(replaced.get(name) or batch(name, count))
    (folder / "batches.meta").write_bytes(python2({"num_vis": 3072}))
    return place


def write_archive(place, count=10, name="cifar-10-some.tar.gz", **replaced):
    """Write the archive, with members in the order of the official one."""
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(place / name, "w:gz") as archive:
        for k in (4, 6, 3, 2, 5, 1):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{BATCHES[k - 1]}")
            content = replaced.get(BATCHES[k - 1]) or batch(BATCHES[k - 1], count)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return place


def encoded(image, kind="PNG"):
    """Encode an image (H, W, 3) as a file."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, kind)
    return content.getvalue()


def write_parquet(place, count=10, kind="PNG", column="img", **columns):
    """Write `{train,test}.parquet`, the batches one after the other."""
    place.mkdir(parents=True, exist_ok=True)
    for part, names in (("train", BATCHES[:5]), ("test", BATCHES[5:])):
        images = [encoded(one, kind) for name in names for one in pixels(name, count)]
        table = {
            column: [{"bytes": one, "path": None} for one in images],
            "label": [one for name in names for one in labels(name, count)],
        } | columns
        pq.write_table(
            pa.table({key: value for key, value in table.items() if value is not None}),
            place / f"{part}.parquet",
        )
    return place
