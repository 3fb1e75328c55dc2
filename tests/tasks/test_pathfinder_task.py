"""Pathfinder and Path-X: images of each split, resumed builds, files of the release."""

import dataclasses
import hashlib
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from longspan.errors import DataError, OptionError
from longspan.tasks import SPLITS, TASKS, build
from longspan.tasks.lra import pathfinder as _pathfinder_images
from longspan.tasks.lra.generators.pathfinder import generate, lra_settings, redraw

SIZES = {"train": 12, "validation": 3, "test": 4}


pytestmark = pytest.mark.usefixtures("nowhere")


def opened(folder, name="pathfinder", data=None, progress=None, **options):
    task = build(name, {**(SIZES if data is None else {}), **options})
    task.open(folder / "cache", data, progress)
    return task


def shown(task, split):
    return np.stack([task.image(split, row) for row in range(task.size(split))])


def write_release(folder, images, labels, resolution=32, length=14):
    """Write the folder of a difficulty as Long Range Arena published it, in two batches.

    The image of row n is in batch `2 n // N` on line `n % (N / 2) + 1`.
    """
    place = folder / f"pathfinder{resolution}" / f"curv_contour_length_{length}"
    half = len(images) // 2
    for batch, rows in enumerate((range(half), range(half, len(images)))):
        (place / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for row in rows:
            Image.fromarray(images[row]).save(place / "imgs" / str(batch) / f"sample_{row}.png")
            fields = f"imgs/{batch} sample_{row}.png {row} {labels[row]} 1.0 {length} 4 2 0.5 1 1"
            lines.append(f"{fields}\n")
        (place / "metadata").mkdir(exist_ok=True)
        (place / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    images, labels = generate(lra_settings(32), range(40), seed=9)
    return write_release(tmp_path_factory.mktemp("release"), images, labels), images, labels


@pytest.mark.parametrize(
    ("name", "resolution"),
    [("pathfinder", 32), ("pathfinder", 64), ("path_x", 128), ("path_x", 256)],
)
def test_splits_are_consecutive_images_of_one_seed(tmp_path, name, resolution):
    task = opened(tmp_path, name, resolution=resolution, seed=5)
    images, labels = generate(lra_settings(resolution), range(19), seed=5)
    assert task.length == resolution**2
    first = 0
    for split, size in SIZES.items():
        np.testing.assert_array_equal(shown(task, split), images[first : first + size])
        assert task.labels(split).tolist() == labels[first : first + size].tolist()
        first += size


def test_random_splits_are_those_of_torch(tmp_path):
    task = opened(tmp_path, split="random")
    images, labels = generate(lra_settings(32), range(19), seed=0)
    parts = torch.utils.data.random_split(
        range(19), list(SIZES.values()), torch.Generator().manual_seed(42)
    )
    for split, part in zip(SIZES, parts, strict=True):
        np.testing.assert_array_equal(shown(task, split), images[list(part)])
        assert task.labels(split).tolist() == labels[list(part)].tolist()
        for row in range(task.size(split)):
            drawing = task.annotated_image(split, row)
            np.testing.assert_array_equal(drawing.image, task.image(split, row))


@pytest.mark.parametrize("difficulty", ["easy", "intermediate"])
def test_difficulty_sets_the_contour_length(tmp_path, difficulty):
    task = opened(tmp_path, difficulty=difficulty)
    images, _ = generate(lra_settings(32, difficulty), range(12), seed=0)
    np.testing.assert_array_equal(shown(task, "train"), images)
    assert task.facts["settings"]["contour_length"] == {"easy": 6, "intermediate": 9}[difficulty]


def test_gray_levels_are_an_option_of_pathfinder(tmp_path):
    older, newer = opened(tmp_path), opened(tmp_path, gray_levels="2026")
    images, _ = generate(lra_settings(32, gray_levels="2026"), range(12), seed=0)
    np.testing.assert_array_equal(shown(newer, "train"), images)
    assert older.checksum != newer.checksum
    assert newer.facts["settings"]["gray_levels"] == "2026"
    drawing = newer.annotated_image("train", 3)
    np.testing.assert_array_equal(drawing.image, images[3])


def test_pixels_are_ids_or_numbers_and_none_is_padding(tmp_path):
    tokens, numbers = opened(tmp_path), opened(tmp_path, pixels="continuous")
    assert tokens.checksum == numbers.checksum
    first, second = (next(task.batches("test", batch_size=4)) for task in (tokens, numbers))
    assert first.inputs["input_ids"].shape == (4, 1024)
    assert first.inputs["input_ids"].dtype == torch.int64
    assert first.inputs["attention_mask"].all()
    assert (first.inputs["input_ids"] == 0).any()
    # S4 has mean and standard deviation 0.5.
    torch.testing.assert_close(
        second.inputs["input_values"][..., 0], first.inputs["input_ids"] / 255 * 2 - 1
    )


def test_interrupted_build_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(_pathfinder_images, "_CHUNK", 4)
    generated = []

    def interrupted(settings, numbers, *, seed):
        if len(generated) == 2:
            raise KeyboardInterrupt
        generated.append(numbers)
        return generate(settings, numbers, seed=seed)

    monkeypatch.setattr(_pathfinder_images, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path)
    monkeypatch.setattr(
        _pathfinder_images,
        "generate",
        lambda settings, numbers, *, seed: (
            generated.append(numbers),
            generate(settings, numbers, seed=seed),
        )[1],
    )
    reports = []
    task = opened(tmp_path, progress=lambda *report: reports.append(report))
    assert generated == [range(0, 4), range(4, 8), range(8, 12), range(12, 16), range(16, 19)]
    assert reports[-1] == ("generating Pathfinder", 19, 19)
    assert [done for _, done, _ in reports] == [4, 8, 12, 16, 19]
    whole = generate(lra_settings(32), range(19), seed=0)[0]
    np.testing.assert_array_equal(np.concatenate([shown(task, split) for split in SPLITS]), whole)


def test_source_says_that_images_are_generated(tmp_path):
    task = opened(tmp_path)
    assert task.source == "generated by longspan, seed 0; not the published files"
    assert task.facts["settings"] == {**dataclasses.asdict(lra_settings(32)), "margins": [1]}
    assert 0 <= task.facts["share_of_label_1"] <= 1


def test_default_sizes_are_those_of_long_range_arena():
    for name in ("pathfinder", "path_x"):
        rows = build(name)._split_rows(200_000)
        assert {split: len(found) for split, found in rows.items()} == TASKS[name].info.sizes
        assert (rows["train"][-1], rows["validation"][0], rows["test"][0]) == (
            159_999,
            160_000,
            180_000,
        )


def lra_rows(count, difficulty="hard", missing=()):
    """Return the rows of each split of Long Range Arena in files of `write_release`.

    Its builder of TensorFlow Datasets yields each image with the key FOLDER_FILE_LINE, sorts by the
    md5 of the split's name and the key, and slices before empty images are dropped.
    """
    half = count // 2
    keys = [f"imgs/{row // half}_sample_{row}.png_{row % half + 1}" for row in range(count)]
    hashes = [int(hashlib.md5((difficulty + key).encode()).hexdigest(), 16) for key in keys]
    order = [row for _, row in sorted(zip(hashes, range(count), strict=True))]
    first, second = round(0.8 * count), round(0.9 * count)
    slices = order[:first], order[first:second], order[second:]
    return [[row for row in rows if row not in missing] for rows in slices]


@pytest.mark.parametrize("packed", [False, True])
def test_release_is_split_like_long_range_arena(tmp_path, release, packed):
    folder, images, labels = release
    if packed:
        with tarfile.open(tmp_path / "lra_release.tar.gz", "w:gz") as archive:
            archive.add(folder / "pathfinder32", "lra_release/lra_release/pathfinder32")
        folder = tmp_path / "lra_release.tar.gz"
    task = opened(tmp_path, data=folder, source="release")
    for split, rows in zip(SPLITS, lra_rows(40), strict=True):
        np.testing.assert_array_equal(shown(task, split), images[rows])
        assert task.labels(split).tolist() == labels[rows].tolist()
    assert task.facts["contour_lengths"] == {"14": 40}
    assert task.source.startswith("lra_release, pathfinder32/curv_contour_length_14, a subset")


def test_empty_image_of_the_release_counts_in_its_slice(tmp_path):
    count = 348  # with a boundary that moves by one if the image does not count
    images, labels = generate(lra_settings(32, "easy"), range(count), seed=9)
    folder = write_release(tmp_path, images, labels, length=6)
    easy = folder / "pathfinder32" / "curv_contour_length_6"
    easy = easy.rename(easy.with_name("curv_baseline"))
    (easy / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    task = opened(tmp_path, data=folder, source="release", difficulty="easy")
    expected = lra_rows(count, "easy", missing={172})
    assert sum(map(len, expected)) == count - 1
    for split, rows in zip(SPLITS, expected, strict=True):
        np.testing.assert_array_equal(shown(task, split), images[rows])


def test_path_x_of_the_release_is_split_like_long_range_arena(tmp_path):
    images, labels = generate(lra_settings(128), range(20), seed=9)
    folder = write_release(tmp_path, images, labels, resolution=128)
    task = opened(tmp_path, "path_x", data=folder, source="release", train=10)
    train, validation, test = lra_rows(20)
    for split, rows in zip(SPLITS, (train[:10], validation, test), strict=True):
        np.testing.assert_array_equal(shown(task, split), images[rows])


def test_release_is_permuted_and_cut_to_size(tmp_path, release):
    folder, images, _ = release
    task = opened(tmp_path, data=folder, source="release", train=5, test=2, split="random")
    order = torch.randperm(40, generator=torch.Generator().manual_seed(42)).numpy()
    np.testing.assert_array_equal(shown(task, "train"), images[order[:5]])
    np.testing.assert_array_equal(shown(task, "validation"), images[order[32:36]])
    np.testing.assert_array_equal(shown(task, "test"), images[order[36:38]])


def test_sizes_beyond_the_release_are_rejected(tmp_path, release):
    with pytest.raises(OptionError, match="test=5, but the split has 4 of the 40 images; use 4"):
        opened(tmp_path, data=release[0], source="release", test=5)
    assert not list((tmp_path / "cache").rglob("*.arrow"))


def test_missing_release_is_rejected(tmp_path):
    task = build("path_x", {"source": "release"})
    assert "pathfinder128" in task.describe_missing_data(tmp_path)
    assert build("path_x").describe_missing_data(None) is None
    with pytest.raises(DataError, match="pathfinder128"):
        task.open(tmp_path / "cache", tmp_path)


@pytest.mark.parametrize("name", ["pathfinder", "path_x"])
def test_marked_contours_are_colored(tmp_path, name):
    task = opened(tmp_path, name, train=8)
    seen = set()
    for row in range(8):
        drawing = redraw(task.settings, row, seed=0)
        svg = task.svg("train", row)
        assert ("#3182bd" in svg) == (drawing.label == 0)
        assert svg.count("<path") == 2 - drawing.label
        seen.add(drawing.label)
        text = task.show("train", row)
        (a, b), (c, d) = drawing.markers
        assert text.endswith(f"markers: row {a}, column {b} and row {c}, column {d}")
        assert f"(label {drawing.label})" in text
    assert seen == {0, 1}


def test_images_of_the_release_have_no_contours(tmp_path, release):
    task = opened(tmp_path, data=release[0], source="release")
    assert task.annotated_image("test", 0) is None
    assert "<path" not in task.svg("test", 0)
    assert "markers:" not in task.show("test", 0)
    with pytest.raises(OptionError, match="row 4 of 'test'"):
        task.show("test", 4)
