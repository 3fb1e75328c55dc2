"""Rows of tokenized documents, as they are stored.

A document is stored in rows of up to `ROW` tokens, each with the number of its document as label
and a checksum, so that a window of a long document is verified without reading all of it.
"""

import array
from pathlib import Path

import numpy as np

from longspan.data.store import Examples, SequenceWriter

ROW = 4_096  # tokens


class DocumentWriter:
    """Documents of a split, whose rows are written as soon as they are full.

    Attributes:
        num_short: number of documents that were left out, as they have too few tokens.
    """

    def __init__(self, path: Path, dtype: type[np.unsignedinteger], *, min_length: int = 1):
        """Create an empty file.

        Args:
            path: file of the tokens.
            dtype: type of the tokens.
            min_length: fewest tokens of a document, at most `ROW`.

        Raises:
            RunError: the disk is full or the folder cannot be written; all methods raise it.
        """
        self._tokens, self._documents = SequenceWriter(path, dtype), array.array("q")
        self._min_length = min_length
        self._pending, self._length = np.empty(0, dtype), 0
        self._number, self.num_short = 0, 0

    @property
    def num_documents(self) -> int:
        """Number of documents that ended, those left out excluded."""
        return self._number

    def add(self, ids: np.ndarray) -> None:
        """Append tokens to the document."""
        self._length += len(ids)
        self._pending = np.concatenate((self._pending, ids))
        full = len(self._pending) // ROW
        if full:
            self._tokens.add_rows(self._pending[: full * ROW].reshape(full, ROW))
            self._documents.extend([self._number] * full)
            self._pending = self._pending[full * ROW :]

    def end_document(self) -> None:
        """Write the rest of the document, and begin the next one; leave out one that is short."""
        is_short = self._length < self._min_length
        if len(self._pending) and not is_short:
            self._tokens.add(self._pending)
            self._documents.append(self._number)
        self._pending, self._length = self._pending[:0], 0
        self._number += not is_short
        self.num_short += is_short

    def examples(self) -> Examples:
        """Return all rows; labels are the numbers of their documents."""
        labels = np.array(self._documents, np.int64)
        return Examples(tokens=self._tokens.ragged(), labels=labels)
