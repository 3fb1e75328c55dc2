"""Text: "I saw this movie twice and ..."; decide whether a film review is positive.

Maas et al., "Learning Word Vectors for Sentiment Analysis", 2011 (IMDB); read byte by byte, as in
Tay et al., "Long Range Arena", 2021, by characters, as in Gu et al., "S4", 2022, by words, or by
word pieces.
"""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples
from longspan.data.tokenizers import ByteTokenizer
from longspan.errors import DataError
from longspan.tasks.base import ProgressCallback, Split
from longspan.tasks.encoded_text import (
    BothClasses,
    EncodedTextTask,
    EncodingOptions,
    count_unknown,
    encode_texts,
    sample_balanced,
)
from longspan.tasks.info import TaskInfo
from longspan.tasks.lra import imdb
from longspan.tasks.lra.published import published_scores
from longspan.tasks.registry import register
from longspan.tasks.rules import TOKEN_COUNTS, Rule

# Purposes of the random streams, so that the splits are sampled independently.
_VALIDATION, _TRAIN, _TEST = range(3)


@settings
class TextOptions(EncodingOptions):
    """Encoding of the reviews, and the splits."""

    length: Length = setting("tokens of a review that are kept", 1024)
    minimum: PositiveInt = setting(
        "occurrences in the training reviews that make a character known", 15
    )
    seed: NonNegativeInt = setting("seed that chooses which reviews are held out or kept", 0)
    validation: BothClasses | Literal["test"] = setting(
        "reviews held out of the training part, equally many of each class; test: the test split, "
        "as in the paper",
        5_000,
    )
    train: BothClasses | None = setting(
        "training reviews, equally many of each class; none: all", None
    )
    test: BothClasses | None = setting("test reviews, equally many of each class; none: all", None)


@register
class Text(EncodedTextTask):
    """Two classes, film reviews as bytes, characters, words or word pieces."""

    Options = TextOptions
    options: TextOptions
    class_names = imdb.LABELS
    info = TaskInfo(
        name="text",
        title="Text (IMDB, bytes)",
        summary="Decide whether a film review is positive, byte by byte.",
        source=f"IMDB, Maas et al. 2011, {imdb.URL}",
        checksum=imdb.SHA256,
        license="none stated; the README asks to cite Maas et al. 2011",
        sizes={"train": 19_860, "validation": 5_000, "test": 25_000},
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=2,
        metrics=("accuracy",),
        chance=0.5,
        head="sequence_classification",
        hub=imdb.HUB,
        published=published_scores("text"),
        notes=(
            "The published scores select on the test set, which is also the validation set there "
            "(validation='test'); here validation is held out of the training part. 406 texts "
            "occur more than once in the whole data set, 418 reviews too many: a training review "
            "whose text is also in validation or test is dropped, so the training split is a "
            "little smaller than 20,000. With validation='test' none is dropped, as in the paper,"
            " and the manifest counts the training reviews whose text is in test. Characters "
            "(vocabulary='characters') and words (vocabulary=30000) are chosen from the training "
            "split. No published score of the table is at the level of words; the code of Long "
            "Range Arena can read words, and gives the paper's task bytes."
        ),
    )

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split; the build tells how many duplicates of held-out reviews it drops."""
        options, default, sizes = self.options, self.Options(), super().sizes
        if self.validation_is_test:
            return {**sizes, "train": options.train or 25_000, "validation": sizes["test"]}
        is_default = (options.validation, options.seed) == (default.validation, default.seed)
        return sizes if is_default else {**sizes, "train": options.train}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Prediction from the counts of the tokens, without their order."""
        return (TOKEN_COUNTS,)

    @property
    def validation_is_test(self) -> bool:
        """True if the test split selects the checkpoint, as in the paper."""
        return self.options.validation == "test"

    def find_source(self, data: Path | None) -> imdb.ImdbFiles:
        """Return the copy of IMDB."""
        return imdb.find(data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the reviews, hold out validation, drop duplicates, select subsets."""
        source = self.find_source(data)
        progress("reading IMDB", 0, source.rows or 0)
        reviews = imdb.read(source)
        rows = {part: len(reviews[part].texts) for part in reviews}
        chosen, duplicates = self._choose_rows(reviews)
        _, train_rows = chosen["train"]
        tokenizer = self.make_tokenizer(
            lambda: ((reviews["train"].texts[row], 1) for row in train_rows)
        )
        extent = "the whole set" if sum(rows.values()) == 50_000 else "a subset"
        note = "; validation is the test split" if self.validation_is_test else ""
        splits: dict[str, Examples] = {}
        cut: dict[str, int] = {}
        for split, (part, own) in chosen.items():
            texts = (reviews[part].texts[row] for row in own)
            tokens, cut[split] = encode_texts(tokenizer, texts, self.options.length)
            splits[split] = Examples(tokens=tokens, labels=reviews[part].labels[own])
        return BuildOutput(
            splits=splits,
            source=f"IMDB, {extent} ({rows['train']} train and {rows['test']} test reviews){note}",
            license=self.info.license,
            facts={
                "source_rows": rows,
                "source_sha256": source.checksums(),
                **duplicates,
                "cut": cut,
                **count_unknown(tokenizer, splits),
                **tokenizer.facts,
            },
        )

    def show(self, split: Split, row: int) -> str:
        """Return the review and its label."""
        tokens, label = self._example(split, row)
        return f"{self.decode(tokens)} = {imdb.LABELS[label]}"

    def _choose_rows(
        self, reviews: dict[str, imdb.Reviews]
    ) -> tuple[dict[Split, tuple[str, np.ndarray]], dict[str, dict[str, int]]]:
        """Return the part of the source and the rows of each split, and counts of duplicates."""
        labels = {part: reviews[part].labels for part in reviews}
        all_rows = {part: np.arange(len(labels[part])) for part in labels}
        test = self._sample(all_rows["test"], labels["test"], self.options.test, _TEST, "test")
        if self.validation_is_test:
            rows, held_out = all_rows["train"], ("test", test)
            test_texts = set(reviews["test"].texts)
            shared = sum(text in test_texts for text in reviews["train"].texts)
            duplicates = {"kept": {"train_text_in_test": shared}}
        else:
            rows, validation, dropped = self._hold_out(reviews)
            held_out, duplicates = ("train", validation), {"dropped": dropped}
        train = self._sample(rows, labels["train"], self.options.train, _TRAIN, "train")
        chosen: dict[Split, tuple[str, np.ndarray]] = {
            "train": ("train", train),
            "validation": held_out,
            "test": ("test", test),
        }
        return chosen, duplicates

    def _hold_out(
        self, reviews: dict[str, imdb.Reviews]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        """Return the training rows, the held-out rows, and the numbers of dropped reviews."""
        texts, labels = reviews["train"].texts, reviews["train"].labels
        test_texts = set(reviews["test"].texts)
        unseen = [row for row, text in enumerate(texts) if text not in test_texts]
        # One row of each text, so that validation counts no review twice.
        first_rows = {texts[row]: row for row in reversed(unseen)}
        unique = np.array(list(first_rows.values()), np.int64)[::-1]
        if set(labels[unique]) != {0, 1}:
            raise DataError(
                f"IMDB: of {len(texts):,} training reviews, {len(texts) - len(unseen):,} are in "
                "the test split too, and of the others a class has none; expected different "
                "reviews in train and test"
            )
        count = int(self.options.validation)
        validation = self._sample(unique, labels, count, _VALIDATION, "validation")
        held_out = {texts[row] for row in validation}
        train = np.array([row for row in unseen if texts[row] not in held_out], np.int64)
        dropped = {
            "train_text_in_test": len(texts) - len(unseen),
            "train_text_in_validation": len(unseen) - len(train) - len(validation),
        }
        return train, validation, dropped

    def _sample(
        self, rows: np.ndarray, labels: np.ndarray, count: int | None, purpose: int, split: Split
    ) -> np.ndarray:
        stream = (self.options.seed, purpose)
        return sample_balanced(rows, labels, count, stream, split, ("neg reviews", "pos reviews"))
