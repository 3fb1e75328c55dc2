"""Text: "I saw this movie twice and ..." as bytes; say whether the reviewer liked it.

Maas et al., "Learning Word Vectors for Sentiment Analysis", 2011 (IMDB); read byte by byte, as in
Tay et al., "Long Range Arena", 2021.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data import imdb
from longspan.data.cache import Built
from longspan.data.store import Examples, Ragged
from longspan.errors import OptionError
from longspan.fields import setting
from longspan.tasks.base import Report, Split, TaskInfo, check_whole, published, register
from longspan.tasks.sequence import SequenceTask

# purposes of the random streams, so that one does not depend on another
_VALIDATION, _TRAIN, _TEST = range(3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Length of a review and sizes of the splits."""

    length: int = setting("bytes of a review that are kept", 1024)
    validation: int = setting("reviews held out of the training part, by class", 5_000)
    train: int | None = setting("training reviews, as many of each class; none: all", None)
    test: int | None = setting("test reviews, as many of each class; none: all", None)
    seed: int = setting("seed that chooses which reviews are held out or kept", 0)

    def __post_init__(self) -> None:
        """Refuse empty splits."""
        # two reviews are one of each class
        check_whole(self, {"length": 1, "validation": 2, "train": 2, "test": 2, "seed": 0})


@register
class Text(SequenceTask):
    """Two classes, bytes of film reviews."""

    Options = TextOptions
    options: TextOptions
    info = TaskInfo(
        name="text",
        version=1,
        title="Text (IMDB, bytes)",
        summary="Whether a film review, read byte by byte, is positive.",
        source=f"IMDB, Maas et al. 2011, {imdb.URL}",
        checksum=imdb.SHA256,
        licence="none stated; the README asks to cite Maas et al. 2011",
        sizes={"train": 19_860, "validation": 5_000, "test": 25_000},
        vocabulary=257,
        classes=2,
        metric="accuracy",
        higher_is_better=True,
        chance=0.5,
        pair=False,
        published=(
            *published(
                "lra-paper",
                "Tay et al. 2021, Long Range Arena, table 1 (best of lengths 1K to 4K)",
                {
                    "full": 64.27,
                    "local": 52.98,
                    "sparse": 63.58,
                    "longformer": 62.85,
                    "linformer": 53.94,
                    "reformer": 56.10,
                    "sinkhorn": 61.20,
                    "synthesizer": 61.68,
                    "bigbird": 64.02,
                    "linear": 65.90,
                    "performer": 65.40,
                },
            ),
            *published(
                "lra-small",
                "Xiong et al. 2021, Nystromformer, LRA table of its repository",
                {
                    "full": 65.02,
                    "reformer": 64.88,
                    "linformer": 55.91,
                    "performer": 63.81,
                    "nystrom": 65.52,
                },
            ),
            *published(
                "lra-small",
                "xformers v0.0.22, BENCHMARKS.md",
                {
                    "full": 62.66,
                    "nystrom": 63.24,
                    "performer": 62.76,
                    "fouriermix": 60.72,
                    "linformer": 57.39,
                    "lambda": 62.47,
                    "orthoformer": 63.96,
                },
            ),
            *published(
                "xiong",
                "Xiong et al. 2022, Simple Local Attentions Remain Competitive, table 1",
                {
                    "sinkhorn": 63.8,
                    "reformer": 62.5,
                    "linformer": 61.9,
                    "nystrom": 66.1,
                    "performer": 66.1,
                    "longshort": 65.7,
                    "local": 65.7,
                    "blockwise": 65.6,
                },
            ),
        ),
        notes=(
            "The published scores select on the test set, which is also the validation set there; "
            "here validation is held out of the training part. 418 texts occur twice or more in "
            "the whole set: a training review whose text is also in validation or test is left "
            "out, so the training split is a little smaller than 20,000."
        ),
    )

    @property
    def length(self) -> int:
        """The most bytes that a review can have."""
        return self.options.length

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Which copy of IMDB is read."""
        return imdb.find(data).origin

    def make(self, data: Path | None, scratch: Path, report: Report | None) -> Built:
        """Read the reviews, hold out validation, leave duplicates out, cut to size."""
        source = imdb.find(data)
        if report:
            report("reading IMDB", 0, source.rows or 0)
        reviews = imdb.read(source)
        rows = {part: len(reviews[part].texts) for part in reviews}
        train, validation, dropped = self._hold_out(reviews)
        every = np.arange(rows["test"])
        seed = self.options.seed
        train = _pick(train, reviews["train"].labels, self.options.train, seed, _TRAIN, "train")
        test = _pick(every, reviews["test"].labels, self.options.test, seed, _TEST, "test")
        whole = "the whole set" if sum(rows.values()) == 50_000 else "a subset"
        return Built(
            splits={
                "train": self._encode(reviews["train"], train),
                "validation": self._encode(reviews["train"], validation),
                "test": self._encode(reviews["test"], test),
            },
            source=f"IMDB, {whole} ({rows['train']} train and {rows['test']} test reviews)",
            licence=self.info.licence,
            facts={"source_rows": rows, "source_sha256": source.checksums(), "dropped": dropped},
        )

    def show(self, split: Split, row: int) -> str:
        """The review and its label."""
        tokens, label = self._example(split, row)
        text = (tokens - 1).astype(np.uint8).tobytes().decode("utf-8", errors="replace")
        return f"{text} = {imdb.LABELS[label]}"

    def _hold_out(
        self, reviews: dict[str, imdb.Reviews]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        """Rows of the training part: those to train on, those held out; how many were dropped."""
        texts, labels = reviews["train"].texts, reviews["train"].labels
        tested = set(reviews["test"].texts)
        clean = [row for row, text in enumerate(texts) if text not in tested]
        # one row of each text, so that no review is counted twice
        unique = np.array(list({texts[row]: row for row in reversed(clean)}.values()))[::-1]
        count, seed = self.options.validation, self.options.seed
        validation = _pick(unique, labels, count, seed, _VALIDATION, "validation")
        held = {texts[row] for row in validation}
        train = np.array([row for row in clean if texts[row] not in held], np.int64)
        return (
            train,
            validation,
            {
                "train_text_in_test": len(texts) - len(clean),
                "train_text_in_validation": len(clean) - len(train) - len(validation),
            },
        )

    def _encode(self, reviews: imdb.Reviews, rows: np.ndarray) -> Examples:
        kept = [np.frombuffer(reviews.texts[row][: self.options.length], np.uint8) for row in rows]
        # UTF-8 has no byte above 0xF4, so that a byte plus one is a byte
        packed = Ragged.pack(kept, np.uint8)
        return Examples(
            tokens=Ragged(packed.values + 1, packed.offsets), labels=reviews.labels[rows]
        )


def _pick(
    rows: np.ndarray, labels: np.ndarray, count: int | None, seed: int, purpose: int, split: str
) -> np.ndarray:
    """`count` of the rows, as many of each class, in ascending order; all when it is None.

    A larger count contains a smaller one, since each class is a prefix of one permutation.
    """
    if count is None:
        return rows
    chosen = []
    for label in range(2):
        wanted = count // 2 + (label < count % 2)
        own = rows[labels[rows] == label]
        if wanted > len(own):
            raise OptionError(
                f"{split}={count} needs {wanted} {imdb.LABELS[label]} reviews, there are "
                f"{len(own)}; use {2 * len(own)} or less"
            )
        stream = np.random.SeedSequence([seed, purpose, label])
        order = np.random.Generator(np.random.PCG64(stream)).permutation(len(own))
        chosen.append(own[order[:wanted]])
    return np.sort(np.concatenate(chosen))
