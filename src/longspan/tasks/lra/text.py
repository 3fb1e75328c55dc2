"""Text: "I saw this movie twice and ..."; decide whether a film review is positive.

Maas et al., "Learning Word Vectors for Sentiment Analysis", 2011 (IMDB); read byte by byte, as in
Tay et al., "Long Range Arena", 2021, by characters, as in Gu et al., "S4", 2022, by words, or by
word pieces.

A copy of IMDB is the unpacked `aclImdb` folder, an `aclImdb*.tar.gz` archive (read, never
unpacked), `{train,test}.parquet` with columns text and label, or the same in the cache of the
Hugging Face hub. The reviews are sorted, so every form gives the same data.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import NonNegativeInt, PositiveInt

from longspan.config import Length, setting, settings
from longspan.data import archives
from longspan.data.cache import BuildOutput
from longspan.data.json_files import field
from longspan.data.parquet import (
    SOURCE_SPLITS,
    explain_parquet_errors,
    read_records,
    split_files,
)
from longspan.data.source_files import (
    CountedFiles,
    find_archives,
    find_most_complete,
    usual_folders,
)
from longspan.data.sources.text import decode_utf8
from longspan.data.tokenizers import ByteTokenizer
from longspan.errors import DataError
from longspan.tasks.base import ProgressCallback, Split
from longspan.tasks.encoded_text import (
    BothClasses,
    EncodedTextTask,
    EncodingOptions,
    LabeledTexts,
    sample_balanced,
)
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.registry import register
from longspan.tasks.rules import TOKEN_COUNTS

URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
HUB = "stanfordnlp/imdb"
LABELS = ("neg", "pos")

_WHOLE = 50_000  # reviews in the whole set
_MEMBER = re.compile(r"(?:aclImdb/)?(train|test)/(neg|pos)/[^/]+\.txt")
# the longest review has 13,704 bytes, all of them have 66 million
_LIMITS = archives.Limits(member=1 << 20, total=1 << 30)


def find(data: Path | None) -> CountedFiles:
    """Find the most complete copy of IMDB; of equals the one that is read fastest.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA, $LONGSPAN_TEST_DATA, then the cache of the
            Hugging Face hub. In a folder, its `imdb` and `imdb/full` are searched too.

    Raises:
        DataError: there is no copy (the message says how to get one), or it is malformed.
    """
    return find_most_complete(
        "IMDB",
        _copies_in,
        data=data,
        hub_name=HUB,
        remedy=f"download {URL} to FOLDER and run `longspan data build text --data FOLDER`",
        whole=_WHOLE,
        count_rows=lambda copy: sum(1 for _ in _rows(copy.path)),
    )


def read(source: CountedFiles) -> dict[str, LabeledTexts]:
    """Return all reviews of both splits, sorted by text: 0 is negative, 1 positive.

    Raises:
        DataError: a file is truncated or malformed; the message names it and says why.
    """
    if source.form == "archive":
        rows = list(_rows(source.path))
    elif source.form == "folder":
        rows = [row for one in SOURCE_SPLITS for row in _rows(source.path / one, f"{one}/")]
    else:
        rows = [row for split, path in source.firsts.items() for row in _parquet_rows(split, path)]
    reviews: dict[str, LabeledTexts] = {}
    for split in SOURCE_SPLITS:
        split_rows = sorted((text, label) for where, label, text in rows if where == split)
        labels = np.array([label for _, label in split_rows], np.uint8)
        if set(labels) != {0, 1}:
            raise DataError(f"{source.path}: split {split!r} lacks positive or negative reviews")
        reviews[split] = LabeledTexts(texts=[text for text, _ in split_rows], labels=labels)
    return reviews


def _copies_in(path: Path) -> Iterator[CountedFiles]:
    """Yield the copies in a search path; parquet first, since it is read fastest."""
    folders = usual_folders(path, "imdb")
    for folder in folders:
        files = {split: split_files(folder, split) for split in SOURCE_SPLITS}
        if all(files.values()):
            rows = sum(_parquet_size(path) for paths in files.values() for path in paths)
            yield CountedFiles(form="parquet", path=folder, files=files, rows=rows)
    for folder in (*folders, path / "aclImdb", path / "imdb" / "aclImdb"):
        classes = [folder / split / label for split in SOURCE_SPLITS for label in LABELS]
        if all(one.is_dir() for one in classes):
            rows = sum(1 for one in classes for _ in one.glob("*.txt"))
            yield CountedFiles(form="folder", path=folder, rows=rows)
    for archive in find_archives(path, folders, "aclImdb*.tar.gz", _MEMBER.fullmatch, _LIMITS):
        yield CountedFiles(form="archive", path=archive, rows=None)


def _check_text(raw: bytes, where: str) -> bytes:
    """Return the review if it is UTF-8 and not empty."""
    if not decode_utf8(raw, where):
        raise DataError(f"{where} is empty; expected a review")
    return raw


def _rows(path: Path, prefix: str = "") -> Iterator[tuple[str, int, bytes]]:
    """Yield split, label and text from an archive, or from a folder that `prefix` locates in it."""

    def match(name: str) -> re.Match[str] | None:
        return _MEMBER.fullmatch(prefix + name)

    for member in archives.read_members(path, match, _LIMITS):
        if groups := match(member.name):
            yield groups[1], LABELS.index(groups[2]), _check_text(member.read(), member.where)


def _parquet_size(path: Path) -> int:
    with explain_parquet_errors(path):
        return pq.read_metadata(path).num_rows


def _parquet_rows(split: str, path: Path) -> Iterator[tuple[str, int, bytes]]:
    """Yield split, label and text of the rows of a split, given the first of its files."""
    for number, row in enumerate(read_records(path)):
        where = f"{path}: row {number}"
        text, label = field(row, "text", str, where), field(row, "label", int, where)
        if label not in (0, 1):
            raise DataError(f"{where}: label {label}, expected 0 or 1")
        yield split, label, _check_text(text.encode(), where)


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
    class_names = LABELS
    rules = (TOKEN_COUNTS,)
    info = TaskInfo(
        name="text",
        title="Text (IMDB, bytes)",
        summary="Decide whether a film review is positive, byte by byte.",
        source=f"IMDB, Maas et al. 2011, {URL}",
        checksum=SHA256,
        license="none stated; the README asks to cite Maas et al. 2011",
        sizes={"train": 19_860, "validation": 5_000, "test": 25_000},
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=2,
        metrics=("accuracy",),
        chance=0.5,
        head="sequence_classification",
        hub=HUB,
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
    def validation_is_test(self) -> bool:
        """True if the test split selects the checkpoint, as in the paper."""
        return self.options.validation == "test"

    find_source = staticmethod(find)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the reviews, hold out validation, drop duplicates, select subsets."""
        source = self.find_source(data)
        progress("reading IMDB", 0, source.rows or 0)
        reviews = read(source)
        rows = {part: len(reviews[part].texts) for part in reviews}
        selection, duplicates = self._choose_rows(reviews)
        splits, facts = self.encode_splits(
            {
                split: reviews[part].select(part_rows)
                for split, (part, part_rows) in selection.items()
            }
        )
        extent = "the whole set" if sum(rows.values()) == 50_000 else "a subset"
        note = "; validation is the test split" if self.validation_is_test else ""
        return BuildOutput(
            splits=splits,
            source=f"IMDB, {extent} ({rows['train']} train and {rows['test']} test reviews){note}",
            facts={
                "source_rows": rows,
                "source_sha256": source.checksums(),
                **duplicates,
                **facts,
            },
        )

    def show(self, split: Split, row: int) -> str:
        """Return the review and its label."""
        tokens, label = self._example(split, row)
        return f"{self.decode(tokens)} = {LABELS[label]}"

    def _choose_rows(
        self, reviews: dict[str, LabeledTexts]
    ) -> tuple[dict[Split, tuple[str, np.ndarray]], dict[str, dict[str, int]]]:
        """Return the part of the source and the rows of each split, and counts of duplicates."""
        labels = {part: reviews[part].labels for part in reviews}
        all_rows = {part: np.arange(len(labels[part])) for part in labels}
        test = self._sample(all_rows["test"], labels["test"], self.options.test, _TEST, "test")
        if self.validation_is_test:
            rows, held_out = all_rows["train"], ("test", test)
            test_texts = set(reviews["test"].texts)
            overlap = sum(text in test_texts for text in reviews["train"].texts)
            duplicates = {"kept": {"train_text_in_test": overlap}}
        else:
            rows, validation, counts = self._hold_out(reviews)
            held_out, duplicates = ("train", validation), {"dropped": counts}
        train = self._sample(rows, labels["train"], self.options.train, _TRAIN, "train")
        selection: dict[Split, tuple[str, np.ndarray]] = {
            "train": ("train", train),
            "validation": held_out,
            "test": ("test", test),
        }
        return selection, duplicates

    def _hold_out(
        self, reviews: dict[str, LabeledTexts]
    ) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        """Return the training rows, the held-out rows, and the numbers of dropped reviews."""
        texts, labels = reviews["train"].texts, reviews["train"].labels
        test_texts = set(reviews["test"].texts)
        new_rows = [row for row, text in enumerate(texts) if text not in test_texts]
        # One row of each text, so that validation counts no review twice.
        first_rows = {texts[row]: row for row in reversed(new_rows)}
        unique = np.array(list(first_rows.values()), np.int64)[::-1]
        if set(labels[unique]) != {0, 1}:
            raise DataError(
                f"IMDB: of {len(texts):,} training reviews, {len(texts) - len(new_rows):,} are in "
                "the test split too, and of the others a class has none; expected different "
                "reviews in train and test"
            )
        count = int(self.options.validation)
        validation = self._sample(unique, labels, count, _VALIDATION, "validation")
        held_out = {texts[row] for row in validation}
        train = np.array([row for row in new_rows if texts[row] not in held_out], np.int64)
        counts = {
            "train_text_in_test": len(texts) - len(new_rows),
            "train_text_in_validation": len(new_rows) - len(train) - len(validation),
        }
        return train, validation, counts

    def _sample(
        self, rows: np.ndarray, labels: np.ndarray, count: int | None, purpose: int, split: Split
    ) -> np.ndarray:
        stream = (self.options.seed, purpose)
        return sample_balanced(rows, labels, count, stream, split, ("neg reviews", "pos reviews"))
