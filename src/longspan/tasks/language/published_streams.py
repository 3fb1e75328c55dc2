"""Left-to-right language modeling of a text that is published as one file."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.data.cache import BuildOutput
from longspan.data.source_files import SourceFiles
from longspan.tasks.base import ProgressCallback
from longspan.tasks.language import published_files as published_text
from longspan.tasks.language.published_files import PublishedText
from longspan.tasks.language.streams import StreamTask


class PublishedTextTask(StreamTask):
    """A file with one document for each split; a subclass names it and the id of each byte."""

    text: ClassVar[PublishedText]

    @property
    @abstractmethod
    def byte_ids(self) -> np.ndarray:
        """Id of each byte, (256,) uint8; 0 of those that the file lacks."""

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the copy of the file."""
        return published_text.find(self.text, data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the file, in constant memory."""
        copy = self.find_source(data)
        progress(f"reading {self.text.name}", 0, self.text.size)
        splits = published_text.read_splits(self.text, copy, self.byte_ids, scratch)
        return BuildOutput(
            splits=splits,
            source=f"{self.text.name}, {self.text.size:,} bytes",
            facts={
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
                "source_sha256": copy.checksums(),
            },
        )
