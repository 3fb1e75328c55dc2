"""What Pathfinder and Path-X share: images drawn here or those of the release, and their splits."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from longspan.config import setting, settings
from longspan.data import lra_release
from longspan.data.build_shards import BuildShards
from longspan.data.cache import BuildOutput
from longspan.data.pathfinder import (
    AnnotatedImage,
    PathfinderSettings,
    generate,
    lra_settings,
    redraw,
)
from longspan.data.pathfinder_markers import find_markers
from longspan.data.store import Examples, Ragged, Spool
from longspan.errors import OptionError
from longspan.tasks import _groups
from longspan.tasks._pixels import PixelOptions, PixelTask, marked
from longspan.tasks.base import SPLITS, Grouping, ProgressCallback, Split, check_least

SIZES = {"train": 160_000, "validation": 20_000, "test": 20_000}
CLASSES = ("the markers lie on two contours", "one contour joins the markers")
GENERATED = (
    "A generated set has the distribution of the published files but is not they: its card says "
    "so, and its scores are not scores on those files."
)

_CHUNK = 1000  # images drawn, or copied, in one go
_COLOURS = ("#e6550d", "#3182bd")  # of the two marked contours


@settings
class PathOptions(PixelOptions):
    """Origin and difficulty of the images, and how they are split."""

    source: Literal["generated", "release"] = setting(
        "who drew the images: longspan, or the authors (files of lra_release)", "generated"
    )
    difficulty: Literal["easy", "intermediate", "hard"] = setting(
        "contours of 6, 9 or 14 paddles; Long Range Arena takes the hard ones", "hard"
    )
    split: Literal["lra", "random"] = setting(
        "which images are held out: the last fifth (Long Range Arena), or random ones (S4)", "lra"
    )
    train: int | None = setting("training images; none: 160,000, or all of the release", None)
    validation: int | None = setting("validation images; none: 20,000, or all of the release", None)
    test: int | None = setting("test images; none: 20,000, or all of the release", None)
    seed: int = setting("seed of generated images", 0)
    split_seed: int = setting("seed of split=random; 42 gives the split of S4", 42)

    def __post_init__(self) -> None:
        """Refuse empty splits, and options that would have no effect."""
        check_least(self, dict.fromkeys(SPLITS, 1) | {"seed": 0, "split_seed": 0})
        if self.source == "release" and self.seed:
            raise OptionError(f"seed={self.seed} draws images; source=release has its own")
        if self.split == "lra" and self.split_seed != 42:
            raise OptionError(f"split_seed={self.split_seed} needs split=random")


class _Images(NamedTuple):
    """All images of a set, in the order in which they were drawn or published."""

    labels: np.ndarray  # (N,)
    pixels: np.ndarray  # (N, R * R), mapped from a file
    built: dict[str, Any]  # source, license and facts of what is built from them


class PathTask(PixelTask):
    """Whether two marked contour ends are ends of one contour."""

    options: PathOptions
    # https://github.com/state-spaces/s4, src/dataloaders/lra.py
    mean, std = 0.5, 0.5
    classes: ClassVar[tuple[str, ...]] = CLASSES

    @property
    def settings(self) -> PathfinderSettings:
        """What generated images look like."""
        return lra_settings(self.side, self.options.difficulty)

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Which files of the release are read; none for generated images."""
        return {} if self.options.source == "generated" else self._release(data).origin

    def make(
        self, data: Path | None, scratch: Path, report: ProgressCallback | None
    ) -> BuildOutput:
        """Draw the images, or read them, and split them."""
        if self.options.source == "generated":
            images = self._draw(scratch, report)
        else:
            images = self._read(data, scratch, report)
        splits: dict[str, Examples] = {
            split: _examples(images, rows, scratch / f"{split}.u8")
            for split, rows in self._rows(len(images.labels)).items()
        }
        return BuildOutput(splits=splits, **images.built)

    def grouped(self, examples: Examples) -> list[Grouping]:
        """By distance of the markers, measured from the pixels, in thirds; and by contour.

        All long contours have as many paddles, so one whose ends are near winds most.
        """
        side = self.side
        images = examples.tokens.values.reshape(-1, side, side)
        first, second = find_markers(images, self.settings.marker_radius).swapaxes(0, 1)
        distance = np.rint(np.hypot(*(first - second).T)).astype(np.int64)
        return [
            *_groups.even("distance of markers", distance, 3, " px"),
            _by_contour(distance, examples.labels == 1),
        ]

    def drawing(self, split: Split, row: int) -> AnnotatedImage | None:
        """A generated image drawn again, with what is in it; None for the release."""
        if self.options.source == "release":
            return None
        self._example(split, row)  # refuses a row that is not there
        number = self._rows(sum(self._sizes().values()))[split][row]
        return redraw(self.settings, int(number), seed=self.options.seed)

    def show(self, split: Split, row: int) -> str:
        """The image in ten shades, its label, and where its markers are."""
        drawing = self.drawing(split, row)
        text = super().show(split, row)
        if drawing is None:
            return text
        places = " and ".join(f"row {r}, column {c}" for r, c in drawing.markers)
        return f"{text}\nmarkers: {places}"

    def overlay(self, split: Split, row: int) -> str:
        """The marked contours in colour, one or two of them; nothing for the release."""
        drawing = self.drawing(split, row)
        if drawing is None:
            return ""
        chosen = dict.fromkeys(drawing.marked_contours)
        return "".join(
            marked(drawing.owner == contour, colour)
            for contour, colour in zip(chosen, _COLOURS, strict=False)
        )

    def _draw(self, scratch: Path, report: ProgressCallback | None) -> _Images:
        total, seed = sum(self._sizes().values()), self.options.seed
        shards, settings = BuildShards(scratch / "shards"), self.settings

        def drawn(first: int) -> dict[str, np.ndarray]:
            numbers = range(first, min(first + _CHUNK, total))
            images, labels = generate(settings, numbers, seed=seed)
            return {"images": images, "labels": labels}

        def chunks() -> Iterator[np.ndarray]:
            for first in range(0, total, _CHUNK):
                part = shards.get_or_build(first // _CHUNK, lambda first=first: drawn(first))  # type: ignore[misc]
                labels.append(part["labels"])
                yield part["images"]

        labels: list[np.ndarray] = []
        pixels = self._spooled(chunks(), total, scratch, report, "generating")
        return _Images(
            labels=np.concatenate(labels),
            pixels=pixels,
            built={
                "source": f"generated by longspan, seed {seed}; not the published files",
                "license": "Apache-2.0 (generated by longspan)",
                "facts": {
                    "settings": dataclasses.asdict(settings),
                    "share_of_label_1": round(float(np.concatenate(labels).mean()), 4),
                },
            },
        )

    def _read(self, data: Path | None, scratch: Path, report: ProgressCallback | None) -> _Images:
        source = self._release(data)
        images = lra_release.read_pathfinder(source, scratch)
        pixels = self._spooled(images.chunks(_CHUNK), len(images), scratch, report, "reading")
        lengths, counts = np.unique(images.contour_lengths, return_counts=True)
        return _Images(
            labels=images.labels,
            pixels=pixels,
            built={
                "source": source.describe({"all": len(images)}),
                "license": "Apache-2.0 (google-research/long-range-arena)",
                "facts": {
                    **images.facts,
                    "contour_lengths": {
                        str(length): int(count)
                        for length, count in zip(lengths, counts, strict=True)
                    },
                    "source_sha256": source.checksums(),
                },
            },
        )

    def _spooled(
        self,
        chunks: Iterator[np.ndarray],
        total: int,
        scratch: Path,
        report: ProgressCallback | None,
        doing: str,
    ) -> np.ndarray:
        """Images (n, R, R), as they come, in one file: (total, R * R), mapped."""
        spool = Spool(scratch / "all.u8", np.uint8)
        done = 0
        for images in chunks:
            spool.add_rows(images.reshape(len(images), -1))
            done += len(images)
            if report:
                report(f"{doing} {self.info.title}", done, total)
        return spool.ragged().values.reshape(total, self.length)

    def _release(self, data: Path | None) -> lra_release.LraFiles:
        folder = lra_release.pathfinder_folder(self.side, self.options.difficulty)
        return lra_release.find(data, folder)

    def _sizes(self) -> dict[Split, int]:
        """How many generated images each split gets."""
        return {split: getattr(self.options, split) or SIZES[split] for split in SPLITS}

    def _rows(self, total: int) -> dict[Split, np.ndarray]:
        """Which of `total` images each split holds.

        Long Range Arena takes them in order. S4 permutes them first
        (https://github.com/state-spaces/s4, src/dataloaders/lra.py).
        """
        order = np.arange(total)
        if self.options.split == "random":
            generator = torch.Generator().manual_seed(self.options.split_seed)
            order = torch.randperm(total, generator=generator).numpy()
        shares = self._sizes()
        if self.options.source == "release":
            tenth = total // 10
            shares = {"train": total - 2 * tenth, "validation": tenth, "test": tenth}
        rows, first = {}, 0
        for split, share in shares.items():
            wanted = getattr(self.options, split) or share
            if not 0 < wanted <= share:
                raise OptionError(
                    f"{split}={wanted}, but {share} of the {total} images are in that split"
                )
            rows[split] = order[first : first + wanted]
            first += share
        return rows


def _by_contour(distance: np.ndarray, joined: np.ndarray) -> Grouping:
    """Markers on one contour, by the distance of its ends in thirds; and those on two."""
    group, labels = np.zeros(len(joined), np.int64), ["one contour"]
    for found in _groups.even("", distance[joined], 3, " px") if joined.any() else []:
        labels = [f"one contour, ends {label} apart" for label in found.labels]
        group[joined] = found.group
    group[~joined] = len(labels)
    return Grouping(name="contour", labels=(*labels, "two contours"), group=group)


def _examples(images: _Images, rows: np.ndarray, path: Path) -> Examples:
    """The examples of these rows: a stretch of the images, or else a copy in a file."""
    if (np.diff(rows) == 1).all():
        values = images.pixels[rows[0] : rows[-1] + 1].reshape(-1)
    else:
        spool = Spool(path, np.uint8)
        for first in range(0, len(rows), _CHUNK):
            spool.add_rows(images.pixels[rows[first : first + _CHUNK]])
        values = spool.ragged().values
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * images.pixels.shape[1]
    return Examples(tokens=Ragged(values, offsets), labels=images.labels[rows])
