"""enwik8: Wikipedia with its markup, as bytes; predict the next one.

Mahoney, "About the Test Data", 2006 (http://mattmahoney.net/dc/textdata.html), the file of the
Hutter Prize: the first 10^8 bytes of an XML dump of Wikipedia, in UTF-8.
"""

from typing import ClassVar

import numpy as np

from longspan.data.stream_vocabularies import ByteVocabulary
from longspan.tasks.info import TaskInfo
from longspan.tasks.language.published import published_language_scores
from longspan.tasks.language.published_files import PublishedText
from longspan.tasks.language.published_streams import PublishedTextTask
from longspan.tasks.registry import register

VOCABULARY = ByteVocabulary()
ENWIK8 = PublishedText(
    name="enwik8",
    url="http://mattmahoney.net/dc/enwik8.zip",
    sizes={"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000},
    sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
)


@register
class Enwik8(PublishedTextTask):
    """Next bytes of enwik8."""

    text: ClassVar[PublishedText] = ENWIK8
    info = TaskInfo(
        name="enwik8",
        version=1,
        title="enwik8 (bytes)",
        summary="Predict the next byte of Wikipedia with its markup.",
        source=f"enwik8, Mahoney 2006, {ENWIK8.url}",
        checksum=ENWIK8.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        sizes={},
        vocab_size=VOCABULARY.size,
        num_classes=VOCABULARY.size,
        metrics=("bits_per_byte",),
        chance=None,
        head="causal_lm",
        published=published_language_scores("enwik8", "bits_per_byte"),
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

    @property
    def vocabulary(self) -> ByteVocabulary:
        """Bytes."""
        return VOCABULARY

    @property
    def byte_ids(self) -> np.ndarray:
        """Id of each byte; UTF-8 has none of 255, whose id does not fit."""
        return np.arange(1, 257).astype(np.uint8)
