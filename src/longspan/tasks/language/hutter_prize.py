"""enwik8 and text8: Wikipedia with its markup as bytes, or in 27 characters; predict the next one.

Mahoney, "About the Test Data", 2006 (http://mattmahoney.net/dc/textdata.html). enwik8 is the file
of the Hutter Prize: the first 10^8 bytes of an XML dump of Wikipedia, in UTF-8. text8 is the first
10^8 characters of Wikipedia without markup, in lower case, digits spelled out. The splits are those
of Mikolov et al., "Subword Language Modeling with Neural Networks", 2012.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.data.cache import BuildOutput
from longspan.data.source_files import SourceFiles
from longspan.data.stream_vocabularies import ByteVocabulary, CharacterVocabulary
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language.published_files import PublishedText, find, read_splits
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.registry import register


def _published(name: str, sha256: str) -> PublishedText:
    return PublishedText(
        name=name,
        url=f"http://mattmahoney.net/dc/{name}.zip",
        sizes={"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000},
        sha256=sha256,
    )


class PublishedTextTask(StreamTask):
    """Next bytes or characters of a published file; each split is one document."""

    text: ClassVar[PublishedText]

    @property
    def byte_ids(self) -> np.ndarray:
        """Id of each byte, (256,) uint8; 0 of those that the file lacks (UTF-8 has no 255)."""
        ids = np.zeros(256, np.int64)
        for token, text in enumerate(self.vocabulary.texts[1:], 1):
            ids[text[0]] = token
        return ids.astype(np.uint8)

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the copy of the file."""
        return find(self.text, data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the file, in constant memory."""
        copy = self.find_source(data)
        progress(f"reading {self.text.name}", 0, self.text.size)
        splits = read_splits(self.text, copy, self.byte_ids, scratch)
        return BuildOutput(
            splits=splits,
            source=f"{self.text.name}, {self.text.size:,} bytes",
            facts={
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
                "source_sha256": copy.checksums(),
            },
        )


@register
class Enwik8(PublishedTextTask):
    """Next bytes of enwik8."""

    vocabulary = ByteVocabulary()
    text: ClassVar[PublishedText] = _published(
        "enwik8", "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
    )
    info = TaskInfo(
        name="enwik8",
        title="enwik8 (bytes)",
        summary="Predict the next byte of Wikipedia with its markup.",
        source=f"enwik8, Mahoney 2006, {text.url}",
        checksum=text.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        vocab_size=vocabulary.size,
        num_classes=vocabulary.size,
        metrics=("bits_per_byte",),
        head="causal_lm",
        published=published_scores("enwik8"),
        notes=(
            "The splits are the first 90 million bytes, the next 5 million and the last 5 million; "
            "each is one document. The first byte of a split is not predicted, so 4,999,999 of the "
            "test split are scored. Papers call bits per byte of this file bits per character "
            "(bpc); a character of UTF-8 has one to four bytes. The published vocabulary has the "
            "205 bytes that occur, this one all 256 and padding. Intervals are over 100 blocks of "
            "the split, as there is one document. Published scores depend on the length of the "
            "segments and on how far windows overlap (evaluation='sliding')."
        ),
    )


@register
class Text8(PublishedTextTask):
    """Next characters of text8."""

    vocabulary = CharacterVocabulary(" abcdefghijklmnopqrstuvwxyz")
    text: ClassVar[PublishedText] = _published(
        "text8", "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"
    )
    info = TaskInfo(
        name="text8",
        title="text8 (characters)",
        summary="Predict the next of 27 characters of Wikipedia.",
        source=f"text8, Mahoney 2006, {text.url}",
        checksum=text.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        vocab_size=vocabulary.size,
        num_classes=vocabulary.size,
        metrics=("bits_per_character",),
        head="causal_lm",
        published=published_scores("text8"),
        notes=(
            "The splits are the first 90 million characters, the next 5 million and the last 5 "
            "million; each is one document. The first character of a split is not predicted, so "
            "4,999,999 of the test split are scored. Intervals are over 100 blocks of the split, "
            "as there is one document. A uniform guess has 4.755 bits per character. Published "
            "scores depend on the length of the segments and on how far windows overlap "
            "(evaluation='sliding')."
        ),
    )
