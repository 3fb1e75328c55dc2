"""PG-19: whole books, as bytes; predict the next one.

Rae et al., "Compressive Transformers", 2020 (https://arxiv.org/abs/1911.05507): books of
Project Gutenberg that were published before 1919.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.data.cache import BuildOutput
from longspan.data.document_rows import DocumentWriter
from longspan.data.stream_vocabularies import ByteVocabulary
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language import pg19_files as pg19
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.registry import register
from longspan.tasks.task_data import SPLITS

VOCABULARY = ByteVocabulary()


@register
class PG19(StreamTask):
    """Next bytes of books."""

    books: ClassVar[Mapping[str, int]] = pg19.BOOKS
    info = TaskInfo(
        name="pg19",
        title="PG-19 (bytes)",
        summary="Predict the next byte of a book.",
        source=f"PG-19, Rae et al. 2020, {pg19.URL}",
        license="Apache-2.0 (the collection); the books are in the public domain in the US",
        vocab_size=VOCABULARY.size,
        num_classes=VOCABULARY.size,
        metrics=("bits_per_byte", "word_perplexity"),
        head="causal_lm",
        published=published_scores("pg19"),
        notes=(
            "Documents are the books, split as published: 28,602, 50 and 100. Bytes are those of "
            "the files, line ends included. The first byte of a book is not predicted, nor is its "
            "end. Perplexity per word is that of all bytes, divided by the words, runs of "
            "characters between ASCII white space; the first word of a book does not count. The "
            "paper counts 1,973,136,207 words in training, 3,007,061 in validation and 6,966,499 "
            "in the test split; the data card has the counts of the files that were read. "
            "held_out_tokens limits what is scored of each held-out book. A part of the set, or "
            "other books, become a task by `longspan data import corpus FOLDER --objective "
            "next`."
        ),
    )

    @property
    def vocabulary(self) -> ByteVocabulary:
        """Bytes."""
        return VOCABULARY

    def find_source(self, data: Path | None) -> pg19.BookFiles:
        """Return the copy of the set."""
        return pg19.find(data, self.books)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the books, in constant memory."""
        copy = self.find_source(data)
        total = sum(self.books.values())
        writers: dict[str, DocumentWriter] = {}
        words: dict[str, int] = {}
        for split in SPLITS:
            progress(f"reading {split}", sum(x.num_documents for x in writers.values()), total)
            writers[split] = DocumentWriter(scratch / f"{split}.tokens", np.uint8, min_length=2)
            words[split] = pg19.read_split(copy.files[split], writers[split])
        splits = {split: writer.examples() for split, writer in writers.items()}
        return BuildOutput(
            splits=splits,
            source=f"PG-19, {sum(x.num_documents for x in writers.values()):,} books",
            facts={
                "books": {split: x.num_documents for split, x in writers.items()},
                "too_short": {split: x.num_short for split, x in writers.items()},
                "words": words,
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
            },
        )
