"""Second pass over a corpus: documents become token ids, in constant memory."""

import collections
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from longspan.data.cache import ProgressCallback
from longspan.data.corpora.survey import Survey, read_documents
from longspan.data.document_rows import DocumentWriter
from longspan.data.own_splits import DROPPED, SPLITS
from longspan.data.sources.documents import PART, CorpusSource, Document
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.data.stream_vocabularies import StreamVocabulary
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import DataError

# Characters that a thread hands to the cores at a time, and threads: while one turns ids into
# arrays, the cores work for the other.
BATCH, _THREADS = 8 * PART * (os.cpu_count() or 1), 2
Piece = tuple[int, str, bool]  # number of the document, text, and whether it is the last part
_CHANGE_MESSAGE = "has changed since the corpus was imported; import it again with --replace"


def separator_id(tokenizer: WordPieceTokenizer) -> int:
    """Return the id that ends a document: of "eos", else "sep".

    Raises:
        DataError: the tokenizer has neither.
    """
    kind = "sep" if tokenizer.fast.eos_token_id is None else "eos"
    return tokenizer.token_id(kind)


def surveyed_documents(
    sources: Sequence[CorpusSource], form: FileFormat, survey: Survey
) -> Iterator[tuple[int, Document]]:
    """Yield the documents that are kept, with their number in the survey; check them all.

    Raises:
        DataError: a document, or their number, differs from the survey.
    """
    report = ReadingReport(skip_bad=form.skip_bad)
    row = 0
    for _, document in read_documents(sources, form, report):
        parts = _skip_blank(document.parts)
        if parts is None:
            continue
        if row == len(survey.splits):
            raise DataError(f"{document.where} {_CHANGE_MESSAGE}")
        checked_parts = _check_parts(document, parts, survey.digests[row].tobytes())
        if survey.splits[row] == DROPPED:
            for _part in checked_parts:
                pass
        else:
            yield row, Document(document.where, checked_parts)
        row += 1
    if row < len(survey.splits):
        raise DataError(
            f"{sources[-1].path} {_CHANGE_MESSAGE}: {len(survey.splits) - row} documents less"
        )


def tokenize(
    documents: Iterable[tuple[int, Document]],
    survey: Survey,
    vocabulary: StreamVocabulary,
    scratch: Path,
    progress: ProgressCallback,
    *,
    end: tuple[int, ...] = (),
    min_length: int = 1,
    inspect: Callable[[str, np.ndarray], None] | None = None,
) -> dict[str, DocumentWriter]:
    """Tokenize documents into files; return the documents of each split.

    Args:
        documents: documents that are kept, with their number in the survey.
        survey: survey of the corpus.
        vocabulary: vocabulary of their parts.
        scratch: folder of the files.
        progress: called with the characters so far and the sum.
        end: ids that end a document.
        min_length: fewest ids of a document; shorter ones are left out.
        inspect: called with each part of a document and its ids.

    Raises:
        DataError: a document differs from the survey.
        RunError: the disk is full.
    """
    last = np.array(end, vocabulary.dtype)
    writers = [
        DocumentWriter(scratch / f"{name}.tokens", vocabulary.dtype, min_length=min_length)
        for name in SPLITS
    ]
    total, done = int(survey.characters[survey.splits != DROPPED].sum()), 0
    for batch, pieces in _encode(_batches(documents), vocabulary):
        for (row, text, is_last), ids in zip(batch, pieces, strict=True):
            writer = writers[survey.splits[row]]
            writer.add(ids)
            if inspect is not None:
                inspect(text, ids)
            if is_last:
                writer.add(last)
                writer.end_document()
            done += len(text)
        progress("tokenizing", done, total)
    return dict(zip(SPLITS, writers, strict=True))


def _encode(
    batches: Iterable[list[Piece]], vocabulary: StreamVocabulary
) -> Iterator[tuple[list[Piece], list[np.ndarray]]]:
    """Yield batches in their order, each with the ids of its pieces."""
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: collections.deque[tuple[list[Piece], Future[list[np.ndarray]]]] = collections.deque()
        for batch in batches:
            ahead.append((batch, pool.submit(vocabulary.encode_texts, [x[1] for x in batch])))
            if len(ahead) > _THREADS:
                done, future = ahead.popleft()
                yield done, future.result()
        for done, future in ahead:
            yield done, future.result()


def _batches(documents: Iterable[tuple[int, Document]]) -> Iterator[list[Piece]]:
    """Yield the parts of documents in batches."""
    batch: list[Piece] = []
    size = 0
    for row, document in documents:
        before = None
        for part in document.parts:
            if before is not None:
                batch.append((row, before, False))
            before, size = part, size + len(part)
            if size >= BATCH:
                yield batch
                batch, size = [], len(part)
        assert before is not None  # the survey left blank documents out
        batch.append((row, before, True))
    if batch:
        yield batch


def _skip_blank(parts: Iterator[str]) -> Iterator[str] | None:
    """Return the parts of a text, or None if it is blank."""
    before = []
    for part in parts:
        before.append(part)
        if part.strip():
            return itertools.chain(before, parts)
    return None


def _check_parts(document: Document, parts: Iterator[str], expected: bytes) -> Iterator[str]:
    """Yield the parts of a document; refuse it at its end if its sha256 is another one."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        yield part
    if digest.digest() != expected:
        raise DataError(f"{document.where} {_CHANGE_MESSAGE}")
