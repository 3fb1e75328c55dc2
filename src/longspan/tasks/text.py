"""Text: "I saw this movie twice and ..."; say whether the reviewer liked it.

Maas et al., "Learning Word Vectors for Sentiment Analysis", 2011 (IMDB); read byte by byte, as in
Tay et al., "Long Range Arena", 2021, or by characters, as in Gu et al., "S4", 2022.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.config import setting, settings
from longspan.data import imdb
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged
from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer
from longspan.tasks._reading import ReadingOptions, ReadingTask, pick
from longspan.tasks.base import ProgressCallback, Split, TaskInfo, check_least, published, register
from longspan.tasks.layout import SequenceLayout

# purposes of the random streams, so that one does not depend on another
_VALIDATION, _TRAIN, _TEST = range(3)


@settings
class TextOptions(ReadingOptions):
    """How reviews are read, and sizes of the splits."""

    length: int = setting("tokens (bytes or characters) of a review that are kept", 1024)
    minimum: int = setting(
        "a character that occurs less often in the training reviews is unknown", 15
    )
    validation: int | Literal["test"] = setting(
        "reviews held out of the training part, by class; test: the test split, as in the paper",
        5_000,
    )
    train: int | None = setting("training reviews, as many of each class; none: all", None)
    test: int | None = setting("test reviews, as many of each class; none: all", None)
    seed: int = setting("seed that chooses which reviews are held out or kept", 0)

    def __post_init__(self) -> None:
        """Refuse empty splits, and what cannot be read."""
        # two reviews are one of each class
        least = {"train": 2, "validation": 2, "test": 2}
        if self.validation == "test":
            del least["validation"]
        check_least(self, least)
        super().__post_init__()


@register
class Text(ReadingTask):
    """Two classes, film reviews by bytes or characters."""

    Options = TextOptions
    options: TextOptions
    info = TaskInfo(
        name="text",
        version=1,
        title="Text (IMDB, bytes)",
        summary="Whether a film review, read byte by byte, is positive.",
        source=f"IMDB, Maas et al. 2011, {imdb.URL}",
        checksum=imdb.SHA256,
        license="none stated; the README asks to cite Maas et al. 2011",
        sizes={"train": 19_860, "validation": 5_000, "test": 25_000},
        vocabulary=ByteTokenizer.vocab_size,
        classes=2,
        metrics=("accuracy",),
        chance=0.5,
        layout=SequenceLayout(),
        hub=imdb.HUB,
        published=(
            *published(
                "lra-paper",
                "Tay et al. 2021, Long Range Arena, table 1 (best of lengths 1K to 4K)",
                {
                    "full": 64.27,
                    "local": 52.98,
                    "sparse_transformer": 63.58,
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
                    "long_short": 65.7,
                    "local": 65.7,
                    "blockwise": 65.6,
                },
            ),
        ),
        notes=(
            "The published scores select on the test set, which is also the validation set there "
            "(validation='test'); here validation is held out of the training part. 418 texts "
            "occur twice or more in the whole set: a training review whose text is also in "
            "validation or test is left out, so the training split is a little smaller than "
            "20,000. With validation='test' nothing is left out, as in the paper, and the set's "
            "record counts the training reviews whose text is in test. Characters "
            "(vocabulary='characters') are chosen from the reviews that are trained on."
        ),
    )

    @property
    def validation_is_test(self) -> bool:
        """Whether selection looks at the test split, as in the paper."""
        return self.options.validation == "test"

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Which copy of IMDB is read."""
        return imdb.find(data).origin

    def make(
        self, data: Path | None, scratch: Path, report: ProgressCallback | None
    ) -> BuildOutput:
        """Read the reviews, hold out validation, leave duplicates out, cut to size."""
        source = imdb.find(data)
        if report:
            report("reading IMDB", 0, source.rows or 0)
        reviews = imdb.read(source)
        rows = {part: len(reviews[part].texts) for part in reviews}
        chosen, duplicates = self._choose(reviews)
        trained_on = chosen["train"][1]
        encoding = self.encoding(lambda: ((reviews["train"].texts[row], 1) for row in trained_on))
        whole = "the whole set" if sum(rows.values()) == 50_000 else "a subset"
        choice = "; validation is the test split" if self.validation_is_test else ""
        return BuildOutput(
            splits={
                split: self._encode(encoding, reviews[part], own)
                for split, (part, own) in chosen.items()
            },
            source=f"IMDB, {whole} ({rows['train']} train and {rows['test']} test reviews){choice}",
            license=self.info.license,
            facts={
                "source_rows": rows,
                "source_sha256": source.checksums(),
                **duplicates,
                **encoding.facts,
            },
        )

    def show(self, split: Split, row: int) -> str:
        """The review and its label."""
        tokens, label = self._example(split, row)
        return f"{self.text(tokens)} = {imdb.LABELS[label]}"

    def _choose(
        self, reviews: dict[str, imdb.Reviews]
    ) -> tuple[dict[Split, tuple[str, np.ndarray]], dict[str, dict[str, int]]]:
        """Part of the source and rows of each split; what became of duplicates."""
        labels = {part: reviews[part].labels for part in reviews}
        every = {part: np.arange(len(labels[part])) for part in labels}
        test = self._pick(every["test"], labels["test"], self.options.test, _TEST, "test")
        if self.validation_is_test:
            rows, held = every["train"], ("test", test)
            tested = set(reviews["test"].texts)
            shared = sum(text in tested for text in reviews["train"].texts)
            duplicates = {"kept": {"train_text_in_test": shared}}
        else:
            rows, validation, dropped = self._hold_out(reviews)
            held, duplicates = ("train", validation), {"dropped": dropped}
        train = self._pick(rows, labels["train"], self.options.train, _TRAIN, "train")
        return {"train": ("train", train), "validation": held, "test": ("test", test)}, duplicates

    def _hold_out(
        self, reviews: dict[str, imdb.Reviews]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        """Rows of the training part: those to train on, those held out; how many were dropped."""
        texts, labels = reviews["train"].texts, reviews["train"].labels
        tested = set(reviews["test"].texts)
        clean = [row for row, text in enumerate(texts) if text not in tested]
        # one row of each text, so that no review is counted twice
        unique = np.array(list({texts[row]: row for row in reversed(clean)}.values()))[::-1]
        count = int(self.options.validation)
        validation = self._pick(unique, labels, count, _VALIDATION, "validation")
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

    def _pick(
        self, rows: np.ndarray, labels: np.ndarray, count: int | None, purpose: int, split: Split
    ) -> np.ndarray:
        stream = (self.options.seed, purpose)
        return pick(rows, labels, count, stream, split, ("neg reviews", "pos reviews"))

    def _encode(
        self, encoding: ByteTokenizer | CharacterTokenizer, reviews: imdb.Reviews, rows: np.ndarray
    ) -> Examples:
        kept = [encoding.encode(reviews.texts[row], self.options.length) for row in rows]
        return Examples(tokens=Ragged.pack(kept, np.uint8), labels=reviews.labels[rows])
