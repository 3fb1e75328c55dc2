"""The image task: gray pixels, the held-out images of LRA and of S4, subsets, the real files."""

import hashlib
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from task_calls import open_beside

from cifar_files import BATCHES, labels, pixels, write_batches, write_parquet
from longspan.errors import OptionError
from longspan.tasks import SPLITS, build
from real_data import real

COUNT = 8  # images in a batch
OPTIONS = {"validation": 10}
opened = partial(open_beside, "image", **OPTIONS)


@pytest.fixture
def data(nowhere):
    return write_batches(nowhere / "data", COUNT)


def shown(task, split):
    """Return the images of a split and their labels."""
    images = [task.image(split, row) for row in range(task.size(split))]
    return np.stack(images), task.labels(split).tolist()


def colors(part):
    names = BATCHES[:5] if part == "train" else BATCHES[5:]
    found = np.concatenate([pixels(name, COUNT) for name in names])
    return found, [one for name in names for one in labels(name, COUNT)]


def rows_of(task, split, part):
    """Return the rows of a split in its source, found by the gray levels of Pillow."""
    every = {
        np.asarray(Image.fromarray(one).convert("L")).tobytes(): row
        for row, one in enumerate(colors(part)[0])
    }
    images, classes = shown(task, split)
    rows = [every[image.tobytes()] for image in images]
    assert classes == [colors(part)[1][row] for row in rows]
    return rows


def tfds(part, count):
    """Return the order of TensorFlow Datasets: by md5 of the split's name and the row."""
    digests = [hashlib.md5(part.encode() + str(row).encode()).hexdigest() for row in range(count)]
    return sorted(range(count), key=lambda row: int(digests[row], 16))


def test_images_are_the_gray_levels_of_the_files(data):
    task = opened(data)
    images, classes = shown(task, "test")
    red, green, blue = np.moveaxis(colors("test")[0].astype(np.float64), -1, 0)
    exact = (0.2989 * red + 0.5870 * green + 0.1140 * blue) * 255.5 / 255
    near = np.abs(exact - np.round(exact)) < 1e-4
    assert ((images == np.floor(exact)) | near).all()
    assert classes == colors("test")[1]
    assert rows_of(opened(data, grayscale="pil"), "test", "test") == list(range(COUNT))


def test_validation_is_held_out_of_train(data):
    task = opened(data, grayscale="pil")
    assert [task.size(split) for split in SPLITS] == [30, 10, 8]
    train, validation = (rows_of(task, split, "train") for split in ("train", "validation"))
    assert sorted(train + validation) == list(range(5 * COUNT))
    assert sorted(validation) == sorted(tfds("train", 40)[30:])


def test_order_is_that_of_tensorflow_datasets():
    """The sha256 covers the names of the first 5,000 images, as the library orders them.

    https://github.com/avitai/datarax, tests of its reader of TensorFlow Datasets.
    """
    order = build("image")._order("train", 50_000)
    assert order[:3].tolist() == [16399, 1680, 47917]
    names = "\n".join(f"train_{row:05d}" for row in order[:5_000])
    assert hashlib.sha256(names.encode()).hexdigest() == (
        "826f1dad26a11a20249e95c71c6f1532d857fb35e648694f9758d4c5c1747679"
    )


def test_random_split_with_seed_42_is_that_of_s4(data):
    task = opened(data, grayscale="pil", split="random", seed=42)
    generator = torch.Generator().manual_seed(42)
    expected = torch.utils.data.random_split(range(40), (30, 10), generator=generator)
    for split, subset in zip(("train", "validation"), expected, strict=True):
        assert sorted(rows_of(task, split, "train")) == sorted(subset.indices)
    other = opened(data, grayscale="pil", split="random", seed=43)
    assert rows_of(other, "validation", "train") != rows_of(task, "validation", "train")


@pytest.mark.parametrize("split", ["lra", "random"])
def test_smaller_subsets_are_part_of_larger_ones(data, split):
    wanted = {"grayscale": "pil", "split": split}
    whole = opened(data, **wanted)
    for train, test in ((20, 5), (7, 1)):
        part = opened(data, **wanted, train=train, test=test)
        assert (part.size("train"), part.size("test")) == (train, test)
        assert rows_of(part, "validation", "train") == rows_of(whole, "validation", "train")
        assert set(rows_of(part, "train", "train")) < set(rows_of(whole, "train", "train"))
        assert set(rows_of(part, "test", "test")) < set(rows_of(whole, "test", "test"))


def test_source_names_a_copy_in_jpeg(tmp_path, data):
    task = opened(write_parquet(tmp_path / "jpeg", COUNT, "JPEG"))
    assert "decoded from JPEG, not the official pixels" in task.source
    assert task.facts["exact_pixels"] is False


def test_build_reports_progress(data):
    seen = []
    task = build("image", OPTIONS)
    task.open(data.parent / "cache", data, lambda *args: seen.append(args))
    assert [done for _, done, _ in seen] == [8, 16, 24, 32, 40, 48]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"validation": 0}, "validation should be greater than 0, got 0"),
        ({"train": 0}, "train should be greater than 0, got 0"),
        ({"seed": -1}, "seed should be greater than or equal to 0, got -1"),
        ({"grayscale": "red"}, "grayscale should be 'tf' or 'pil', got 'red'"),
        ({"split": "last"}, "split should be 'lra' or 'random', got 'last'"),
        ({"validation": 40}, "validation=40 leaves none of 40 training images; use 39 or less"),
        ({"train": 31}, "train=31, but there are 30 images; use 30 or less"),
        ({"test": 9}, "test=9, but there are 8 images; use 8 or less"),
    ],
)
def test_invalid_options_are_rejected(data, change, reason):
    with pytest.raises(OptionError, match=reason):
        opened(data, **change)


def test_show_names_the_class(data):
    assert opened(data).show("test", 0).splitlines()[-1] == "= dog (label 5)"


def test_real_batches(tmp_path):
    path = real("cifar10/cifar-10-batches-py_subset_from_jpeg.tar.gz")
    task = build("image", {"validation": 200, "pixels": "continuous"})
    task.open(tmp_path / "cache", path)
    assert [task.size(split) for split in SPLITS] == [1800, 200, 1000]
    assert task.labels("test").bincount().tolist() == [100] * 10
    inputs = torch.cat(
        [batch.inputs["input_values"] for batch in task.batches("test", batch_size=250)]
    )
    assert inputs.shape == (1000, 1024, 1)
    # The constants are those of the whole training split.
    assert abs(inputs.mean()) < 0.1
    assert abs(inputs.std() - 1) < 0.1


@pytest.mark.slow
def test_real_full_data_set(tmp_path):
    task = build("image")
    task.open(tmp_path / "cache", real("cifar10/full"))
    assert {split: task.size(split) for split in SPLITS} == task.info.sizes
    assert task.source == (
        "CIFAR-10, the whole set (50000 train and 10000 test images), decoded from JPEG, not the "
        "official pixels, not in the official order"
    )
    # The classes follow one another in this copy; the order by hash mixes them.
    counts = task.labels("validation").bincount(minlength=10)
    assert 400 < counts.min() <= counts.max() < 600
    levels = next(task.batches("train", batch_size=10_000)).inputs["input_values"]
    assert abs(levels.double().mean() - 122.6) < 1
    assert abs(levels.double().std() - 61.0) < 1
