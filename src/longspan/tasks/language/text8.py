"""text8: Wikipedia in 27 characters; predict the next one.

Mahoney, "About the Test Data", 2006 (http://mattmahoney.net/dc/textdata.html): the first 10^8
characters of Wikipedia without markup, in lower case, digits spelled out. The splits are those of
Mikolov et al., "Subword Language Modeling with Neural Networks", 2012.
"""

from typing import ClassVar

import numpy as np

from longspan.data.stream_vocabularies import CharacterVocabulary
from longspan.tasks.info import TaskInfo
from longspan.tasks.language.published import published_language_scores
from longspan.tasks.language.published_files import PublishedText
from longspan.tasks.language.published_streams import PublishedTextTask
from longspan.tasks.registry import register

VOCABULARY = CharacterVocabulary(" abcdefghijklmnopqrstuvwxyz")
TEXT8 = PublishedText(
    name="text8",
    url="http://mattmahoney.net/dc/text8.zip",
    sizes={"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000},
    sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
)


@register
class Text8(PublishedTextTask):
    """Next characters of text8."""

    text: ClassVar[PublishedText] = TEXT8
    info = TaskInfo(
        name="text8",
        version=1,
        title="text8 (characters)",
        summary="Predict the next of 27 characters of Wikipedia.",
        source=f"text8, Mahoney 2006, {TEXT8.url}",
        checksum=TEXT8.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        sizes={},
        vocab_size=VOCABULARY.size,
        num_classes=VOCABULARY.size,
        metrics=("bits_per_character",),
        chance=None,
        head="causal_lm",
        published=published_language_scores("text8", "bits_per_character"),
        notes=(
            "The splits are the first 90 million characters, the next 5 million and the last 5 "
            "million; each is one document. The first character of a split is not predicted, so "
            "4,999,999 of the test split are scored. Intervals are over 100 blocks of the split, "
            "as there is one document. A uniform guess has 4.755 bits per character. Published "
            "scores depend on the length of the segments and on how far windows overlap "
            "(evaluation='sliding')."
        ),
    )

    @property
    def vocabulary(self) -> CharacterVocabulary:
        """Space and the letters a to z."""
        return VOCABULARY

    @property
    def byte_ids(self) -> np.ndarray:
        """Id of each byte."""
        ids = np.zeros(256, np.uint8)
        ids[np.frombuffer(VOCABULARY.alphabet.encode(), np.uint8)] = np.arange(1, VOCABULARY.size)
        return ids
