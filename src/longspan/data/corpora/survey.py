"""First pass over a corpus: identity, size and split of every document, before any is stored."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from longspan.data.cache import ProgressCallback
from longspan.data.own_splits import DROPPED, SPLITS, Shares, assign_digests
from longspan.data.sources.documents import CorpusSource, Document
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.errors import DataError

_REPORT_EVERY = 256  # documents


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """Documents of all sources in reading order, empty ones left out.

    Attributes:
        digests: sha256 of the UTF-8 text of each document, (N, 32) uint8.
        sources: number of the source of each document.
        characters: length of each document.
        splits: split of each document, or `DROPPED`: it repeats an earlier one, or a held-out one.
    """

    digests: np.ndarray
    sources: np.ndarray
    characters: np.ndarray
    splits: np.ndarray

    def sha256(self) -> str:
        """Return the sha256 of the documents with their sources and splits, in order."""
        digest = hashlib.sha256(np.ascontiguousarray(self.digests).data)
        for numbers in (self.sources, self.splits):
            digest.update(np.ascontiguousarray(numbers, "<i8").data)
        return digest.hexdigest()


def read_documents(
    sources: Sequence[CorpusSource], form: FileFormat, report: ReadingReport
) -> Iterator[tuple[int, Document]]:
    """Yield every document with the number of its source, empty ones included."""
    for number, source in enumerate(sources):
        for document in source.read(form, report):
            yield number, document


def survey_corpus(
    sources: Sequence[CorpusSource],
    form: FileFormat,
    report: ReadingReport,
    shares: Shares,
    progress: ProgressCallback,
) -> tuple[Survey, dict[str, int]]:
    """Read all documents once and assign them to splits.

    Args:
        sources: sources in the order of the corpus.
        form: format of their files.
        report: takes what is left out.
        shares: share of the documents of training sources to hold out, by split.
        progress: called with the number of documents so far.

    Returns:
        The documents, and how many are dropped: those that an earlier one of the same split equals,
        `repeated`, and those that a held-out source contains too, `in_another_split`.

    Raises:
        DataError: a source is unusable, or there are too few documents for the splits.
    """
    digests, numbers, lengths = bytearray(), [], []
    for number, document in read_documents(sources, form, report):
        digest, length = _hash_parts(document.parts)
        if digest is None:
            report.add_empty(document.where)
            continue
        digests += digest
        numbers.append(number)
        lengths.append(length)
        if len(lengths) % _REPORT_EVERY == 0:
            progress("reading documents", len(lengths), 0)
    hashes = np.frombuffer(bytes(digests), np.uint8).reshape(-1, 32)
    initial_splits = np.array([SPLITS.index(sources[x].split) for x in numbers], np.int64)
    splits, dropped = _assign(hashes, initial_splits, shares, report.left_out())
    survey = Survey(
        digests=hashes,
        sources=np.array(numbers, np.int64),
        characters=np.array(lengths, np.int64),
        splits=splits,
    )
    return survey, dropped


def _hash_parts(parts: Iterator[str]) -> tuple[bytes | None, int]:
    """Return the sha256 and the length of a text in parts; None if it is blank."""
    digest, length, is_blank = hashlib.sha256(), 0, True
    for part in parts:
        digest.update(part.encode())
        length += len(part)
        is_blank = is_blank and not part.strip()
    return None if is_blank else digest.digest(), length


def _assign(
    digests: np.ndarray, initial_splits: np.ndarray, shares: Shares, left_out: str
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the split of each document, and how many are dropped; see `survey_corpus`."""
    hint = (
        f"{left_out}; add documents, pass --document paragraph or line to split text files into "
        "more, or name files with --validation and --test"
    )
    assignment = assign_digests(digests, initial_splits, shares, noun="document", hint=hint)
    if (empty := assignment.find_empty()) is not None:
        raise DataError(f"no document is left for {empty}{left_out}; choose other files or shares")
    splits, is_repeated = assignment.splits, assignment.is_repeated
    in_another = int((splits == DROPPED).sum())
    splits[is_repeated] = DROPPED
    return splits, {"repeated": int(is_repeated.sum()), "in_another_split": in_another}
