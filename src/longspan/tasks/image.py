"""Image: 1,024 grey pixels of a CIFAR-10 photograph, row by row; say which of ten things it shows.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; as a sequence: Tay et
al., "Long Range Arena", 2021.
"""

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from longspan.config import setting, settings
from longspan.data import cifar
from longspan.data.cache import BuildOutput
from longspan.data.cifar import SourceSplit
from longspan.data.grayscale import to_grayscale
from longspan.errors import OptionError
from longspan.tasks._pixels import LEVELS, PixelOptions, PixelTask, packed
from longspan.tasks.base import ProgressCallback, TaskInfo, check_least, published, register
from longspan.tasks.layout import ImageLayout


@settings
class ImageOptions(PixelOptions):
    """How colours become grey levels, and sizes of the splits."""

    grey: Literal["tf", "pil"] = setting(
        "how colours become grey: as TensorFlow does (Long Range Arena), or as Pillow (S4)", "tf"
    )
    split: Literal["lra", "random"] = setting(
        "which training images are held out: those of Long Range Arena, or random ones", "lra"
    )
    validation: int = setting("images held out of the training part", 5_000)
    train: int | None = setting("training images; none: all that are not held out", None)
    test: int | None = setting("test images; none: all", None)
    seed: int = setting("seed of split=random; 42 gives the split of S4", 0)

    def __post_init__(self) -> None:
        """Refuse empty splits."""
        check_least(self, {"validation": 1, "train": 1, "test": 1, "seed": 0})


@register
class ImageTask(PixelTask):
    """Ten classes, images of 32 x 32 pixels."""

    Options = ImageOptions
    options: ImageOptions
    # of the grey levels: https://github.com/state-spaces/s4, src/dataloaders/basic.py
    mean, std = 122.6 / 255, 61.0 / 255
    classes = cifar.CLASSES
    side = cifar.SIDE
    info = TaskInfo(
        name="image",
        version=1,
        title="Image (CIFAR-10, grey pixels)",
        summary="Which of ten things a photograph, read pixel by pixel, shows.",
        source=f"CIFAR-10, Krizhevsky 2009, {cifar.URL}",
        checksum=cifar.SHA256,
        license="none stated; the page of the set asks to cite Krizhevsky 2009",
        sizes={"train": 45_000, "validation": 5_000, "test": 10_000},
        vocabulary=LEVELS,
        classes=len(cifar.CLASSES),
        metrics=("accuracy",),
        chance=0.1,
        layout=ImageLayout(cifar.SIDE),
        hub=cifar.HUB,
        published=(
            *published(
                "lra-paper",
                "Tay et al. 2021, Long Range Arena, table 1",
                {
                    "full": 42.44,
                    "local": 41.46,
                    "sparse_transformer": 44.24,
                    "longformer": 42.22,
                    "linformer": 38.56,
                    "reformer": 38.07,
                    "sinkhorn": 41.23,
                    "synthesizer": 41.61,
                    "bigbird": 40.83,
                    "linear": 42.34,
                    "performer": 42.77,
                },
            ),
            *published(
                "lra-small",
                "Xiong et al. 2021, Nystromformer, LRA table of its repository",
                {
                    "full": 38.20,
                    "reformer": 43.29,
                    "linformer": 37.84,
                    "performer": 37.07,
                    "nystrom": 41.58,
                },
            ),
            *published(
                "lra-small",
                "xformers v0.0.22, BENCHMARKS.md",
                {
                    "full": 38.69,
                    "nystrom": 42.86,
                    "performer": 36.09,
                    "fouriermix": 36.53,
                    "linformer": 35.57,
                    "lambda": 35.04,
                    "orthoformer": 34.5,
                },
            ),
        ),
        notes=(
            "The published scores were obtained with black pixels masked as padding; here every "
            "pixel is real. The images held out are those of Long Range Arena (train[90%:] in "
            "the order of TensorFlow Datasets) if the copy that is read has the official order. "
            "A copy in JPEG has other pixels, so its scores are not comparable. Scores with "
            "continuous pixels belong to other protocols."
        ),
    )

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Which copy of CIFAR-10 is read."""
        return cifar.find(data).origin

    def make(
        self, data: Path | None, scratch: Path, report: ProgressCallback | None
    ) -> BuildOutput:
        """Read the images, turn them grey, hold out validation, cut to size."""
        source = cifar.find(data)
        read = self._read(source, report)
        rows = {part: len(labels) for part, (_, labels) in read.items()}
        train, validation = self._hold_out(rows["train"])
        test = _first(self._order("test", rows["test"]), self.options.test, "test")
        return BuildOutput(
            splits={
                "train": packed(*read["train"], train),
                "validation": packed(*read["train"], validation),
                "test": packed(*read["test"], test),
            },
            source=source.describe(rows),
            license=self.info.license,
            facts={
                "source_rows": rows,
                "source_sha256": source.checksums(),
                "exact_pixels": source.exact,
                "order": source.order,
            },
        )

    def _read(
        self, source: cifar.CifarFiles, report: ProgressCallback | None
    ) -> dict[SourceSplit, tuple[np.ndarray, np.ndarray]]:
        """Grey levels (N, 1024) and labels (N,) of both parts."""
        chunks: dict[SourceSplit, list[tuple[np.ndarray, ...]]] = {
            part: [] for part in cifar.SOURCE_SPLITS
        }
        done = 0
        for images in cifar.read(source):
            levels = to_grayscale(images.pixels, self.options.grey)
            chunks[images.split].append((images.rows, levels, images.labels))
            done += len(images.rows)
            if report:
                report("reading CIFAR-10", done, source.rows or 0)
        read = {}
        for part, found in chunks.items():
            rows, levels, labels = (np.concatenate(column) for column in zip(*found, strict=True))
            order = np.argsort(rows)
            read[part] = levels[order], labels[order]
        return read

    def _hold_out(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the training part: those to train on, those held out."""
        kept = count - self.options.validation
        if kept < 1:
            raise OptionError(
                f"validation={self.options.validation} leaves none of {count} training images; "
                f"use {count - 1} or less"
            )
        order = self._order("train", count)
        return _first(order[:kept], self.options.train, "train"), np.sort(order[kept:])

    def _order(self, part: SourceSplit, count: int) -> np.ndarray:
        """The rows of a part, shuffled; the last ones are held out, the first ones are kept.

        LRA holds out the last tenth of TensorFlow Datasets' order, which is that of the md5 of
        the part's name and the row (https://github.com/tensorflow/datasets,
        image_classification/cifar.py and core/hashing.py). S4 holds out the last tenth of a
        permutation (https://github.com/state-spaces/s4, src/dataloaders/base.py).
        """
        if self.options.split == "lra":
            keys = [
                hashlib.md5(f"{part}{row}".encode(), usedforsecurity=False).digest()
                for row in range(count)
            ]
            return np.array(sorted(range(count), key=keys.__getitem__))
        generator = torch.Generator().manual_seed(self.options.seed)
        return torch.randperm(count, generator=generator).numpy()


def _first(order: np.ndarray, count: int | None, split: str) -> np.ndarray:
    """The first `count` rows of an order, ascending; all when it is None."""
    if count is not None and count > len(order):
        raise OptionError(f"{split}={count}: there are {len(order)} images; use that or less")
    return np.sort(order[:count])
