"""Image: 1,024 gray pixels of a CIFAR-10 photograph in row order; name one of ten objects.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; as a sequence: Tay et
al., "Long Range Arena", 2021.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt

from longspan.config import NumExamples, setting, settings
from longspan.data.cache import BuildOutput
from longspan.errors import OptionError
from longspan.tasks.base import ProgressCallback, Split
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.lra import cifar
from longspan.tasks.lra.cifar import SourceSplit
from longspan.tasks.lra.pixels import LEVELS, PixelOptions, PixelTask, pack_images
from longspan.tasks.lra.tfds import tfds_order
from longspan.tasks.registry import register
from longspan.tasks.rules import NEAREST_CENTROID

GrayscaleMethod = Literal["tf", "pil"]


def to_grayscale(pixels: np.ndarray, method: GrayscaleMethod) -> np.ndarray:
    """Convert colors (N, 3, T) of uint8 (red, green, blue) to gray levels (N, T) of uint8.

    Args:
        pixels: the colors.
        method: "tf" computes as `tf.image.rgb_to_grayscale`, which Long Range Arena calls. It
            scales to [0, 1] in float32, weighs with 0.2989, 0.5870, 0.1140, scales by 255.5 and
            truncates; truncating the weighted sum of the levels gives another result for one color
            in four.
            https://github.com/tensorflow/tensorflow/blob/v2.4.0/tensorflow/python/ops/image_ops_impl.py
            (rgb_to_grayscale, convert_image_dtype).
            "pil" computes as Pillow's conversion to "L" (ITU-R 601-2, rounded), which torchvision
            and so S4 call; it differs from "tf" by one level for one color in four.
            https://pillow.readthedocs.io/en/stable/reference/Image.html#PIL.Image.Image.convert
    """
    red, green, blue = pixels.swapaxes(0, 1)
    if method == "pil":
        # weights 0.299, 0.587, 0.114 as fixed-point numbers of 16 bits
        integers = np.arange(256, dtype=np.uint32)
        total = (integers * 19595)[red] + (integers * 38470)[green] + (integers * 7471)[blue]
        return ((total + 0x8000) >> 16).astype(np.uint8)
    # the sum runs from left to right; fused multiply-add changes 31 of the 2^24 colors
    levels = np.arange(256, dtype=np.float32) * np.float32(1 / 255)
    weighted = [levels * np.float32(weight) for weight in (0.2989, 0.5870, 0.1140)]
    sums = weighted[0][red] + weighted[1][green] + weighted[2][blue]
    return (sums * np.float32(255.5)).astype(np.uint8)


@settings
class ImageOptions(PixelOptions):
    """Conversion of colors to gray levels, and the splits."""

    grayscale: Literal["tf", "pil"] = setting(
        "conversion of colors: as TensorFlow (Long Range Arena), or as Pillow (S4)", "tf"
    )
    split: Literal["lra", "random"] = setting(
        "held-out training images: those of Long Range Arena, or random ones", "lra"
    )
    validation: NumExamples = setting("images held out of the training files", 5_000)
    train: NumExamples | None = setting("training images; none: all that are not held out", None)
    test: NumExamples | None = setting("test images; none: all", None)
    seed: NonNegativeInt = setting("seed of split=random; S4: 42", 0)


@register
class ImageTask(PixelTask):
    """Ten classes, images of 32 x 32 pixels."""

    Options = ImageOptions
    options: ImageOptions
    # of the gray levels: https://github.com/state-spaces/s4, src/dataloaders/basic.py
    mean, std = 122.6 / 255, 61.0 / 255
    class_names = cifar.CLASSES
    side = cifar.SIDE
    rules = (NEAREST_CENTROID,)
    info = TaskInfo(
        name="image",
        title="Image (CIFAR-10, gray pixels)",
        summary="Name which of ten objects a photograph shows, pixel by pixel.",
        source=f"CIFAR-10, Krizhevsky 2009, {cifar.URL}",
        checksum=cifar.SHA256,
        license="none stated; the page of the data set asks to cite Krizhevsky 2009",
        sizes={"train": 45_000, "validation": 5_000, "test": 10_000},
        vocab_size=LEVELS,
        num_classes=len(cifar.CLASSES),
        metrics=("accuracy",),
        chance=0.1,
        head="sequence_classification",
        hub=cifar.HUB,
        published=published_scores("image"),
        notes=(
            "The published scores were obtained with black pixels masked as padding; here every "
            "pixel is real. The held-out images are those of Long Range Arena (train[90%:] in the "
            "order of TensorFlow Datasets) if the copy that is read has the official order. A "
            "copy in JPEG has other pixels, so its scores are not comparable. Scores with "
            "continuous pixels belong to other protocols."
        ),
    )

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split; the training images that are not held out are for training."""
        left = max(50_000 - self.options.validation, 0)
        return {**super().sizes, "train": self.options.train or left}

    find_source = staticmethod(cifar.find)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the images, convert them to gray levels, hold out validation, select subsets."""
        source = self.find_source(data)
        images = self._read(source, progress)
        rows = {split: len(labels) for split, (_, labels) in images.items()}
        train, validation = self._hold_out(rows["train"])
        test = _first_rows(self._order("test", rows["test"]), self.options.test, "test")
        return BuildOutput(
            splits={
                "train": pack_images(*images["train"], train),
                "validation": pack_images(*images["train"], validation),
                "test": pack_images(*images["test"], test),
            },
            source=source.describe(rows),
            facts={
                "source_rows": rows,
                "source_sha256": source.checksums(),
                "exact_pixels": source.exact,
                "order": source.order,
            },
        )

    def _read(
        self, source: cifar.CifarFiles, progress: ProgressCallback
    ) -> dict[SourceSplit, tuple[np.ndarray, np.ndarray]]:
        """Return the gray levels (N, 1024) and labels (N,) of both splits of the source."""
        split_chunks: dict[SourceSplit, list[tuple[np.ndarray, ...]]] = {
            split: [] for split in cifar.SOURCE_SPLITS
        }
        done = 0
        for images in cifar.read(source):
            levels = to_grayscale(images.pixels, self.options.grayscale)
            split_chunks[images.split].append((images.rows, levels, images.labels))
            done += len(images.rows)
            progress("reading CIFAR-10", done, source.rows or 0)
        levels_and_labels = {}
        for split, chunks in split_chunks.items():
            rows, levels, labels = (np.concatenate(column) for column in zip(*chunks, strict=True))
            order = np.argsort(rows)
            levels_and_labels[split] = levels[order], labels[order]
        return levels_and_labels

    def _hold_out(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to train on and the held-out rows of the training images."""
        num_training = count - self.options.validation
        if num_training < 1:
            raise OptionError(
                f"validation={self.options.validation} leaves none of {count} training images; "
                f"use {count - 1} or less"
            )
        order = self._order("train", count)
        return _first_rows(order[:num_training], self.options.train, "train"), np.sort(
            order[num_training:]
        )

    def _order(self, split: SourceSplit, count: int) -> np.ndarray:
        """Return the shuffled rows of a split of the source; the last ones are held out.

        LRA holds out the last tenth of TensorFlow Datasets' order, in which the key of an image
        is its row (https://github.com/tensorflow/datasets, image_classification/cifar.py). S4
        holds out the last tenth of a permutation (https://github.com/state-spaces/s4,
        src/dataloaders/base.py).
        """
        if self.options.split == "lra":
            return tfds_order(split, [str(row) for row in range(count)])
        generator = torch.Generator().manual_seed(self.options.seed)
        return torch.randperm(count, generator=generator).numpy()


def _first_rows(order: np.ndarray, count: int | None, split: str) -> np.ndarray:
    """Return the first `count` rows of an order, ascending; all if it is None."""
    if count is not None and count > len(order):
        raise OptionError(
            f"{split}={count}, but there are {len(order)} images; use {len(order)} or less"
        )
    return np.sort(order[:count])
