"""Documents of coreference as they are stored: tokens, and details as JSON."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.store import Examples, Spool
from longspan.errors import DataError
from longspan.metrics.coreference import Mention
from longspan.tasks.documents import conll
from longspan.tasks.documents.coreference_encoding import DocumentEncoder, count_parts

GENRES = ("bc", "bn", "mz", "nw", "pt", "tc", "wb")


class SplitWriter:
    """Documents of a split in files, since they may be larger than memory."""

    def __init__(self, folder: Path, encoder: DocumentEncoder):
        self.encoder = encoder
        self.tokens = Spool(folder / "tokens", encoder.tokenizer.dtype)
        self.details = Spool(folder / "details", np.uint8)
        self.labels: list[int] = []
        self.counts: Counter[str] = Counter()

    def add(self, document: conll.Document) -> None:
        """Append a document."""
        if document.genre not in GENRES:
            raise DataError(
                f"document {document.id} is of genre {document.genre!r}; expected one of "
                f"{', '.join(GENRES)}"
            )
        ids, details = self.encoder.store(document)
        text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
        self.tokens.add(ids)
        self.details.add(np.frombuffer(text.encode(errors="replace"), np.uint8))
        self.labels.append(GENRES.index(document.genre))
        self.counts += count_parts(details)

    def examples(self) -> Examples:
        """Return all documents; their sequences are views of the files."""
        return Examples(
            tokens=self.tokens.ragged(),
            details=self.details.ragged(),
            labels=np.array(self.labels, np.uint8),
        )


def load_details(examples: Examples, row: int) -> dict[str, Any]:
    """Return what is known of a document beside its tokens."""
    assert examples.details is not None
    return json.loads(examples.details[row].tobytes())


def right_clusters(examples: Examples, row: int) -> list[list[Mention]]:
    """Return the annotated clusters of a document."""
    clusters = load_details(examples, row)["clusters"]
    return [[(first, last) for first, last in cluster] for cluster in clusters]
