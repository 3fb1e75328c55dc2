"""Corpora in the cache: import of documents under a name, and their description.

An import is a folder `<cache>/corpora/<name>`: documents.parquet has the sha256, source, length and
split of each document, tokenizer/ the tokenizer, and import.json, which is written last, the
description. The tokens are a data set of the cache, as those of other tasks; they are rebuilt from
the files as long as these are unchanged.
"""

import dataclasses
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.cache import BuildOutput
from longspan.data.corpora.documents import CorpusFormat, Document, ReadingReport
from longspan.data.corpora.sources import Source
from longspan.data.corpora.survey import Progress, Survey, survey
from longspan.data.corpora.tokenizing import separator_id, surveyed_documents, tokenize
from longspan.data.imports import (
    ImportDescription,
    ImportKind,
    hide,
    is_complete,
    write_description,
)
from longspan.data.own_import import check_task_name
from longspan.data.own_splits import DROPPED, NAMES, TEST, TRAIN, VALIDATION
from longspan.data.parquet import explain_parquet_errors
from longspan.data.tokenizer_training import TokenizerKind, train_tokenizer
from longspan.data.word_pieces import (
    CORPUS_FOLDERS,
    OF_CORPUS,
    WordPieceTokenizer,
    folder_sha256,
    load_word_pieces,
)
from longspan.errors import DataError, OptionError
from longspan.files import atomic_write

SCHEMA = 1
_DOCUMENTS, _TOKENIZER = "documents.parquet", "tokenizer"
HELD_OUT_SHARE = 0.05
VOCAB_SIZE = 8_192


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusRequest:
    """Sources, splits and tokenizer of an import.

    Attributes:
        paths: files, folders, or data sets "hf:NAME".
        weights: share of each path in training batches, in any unit; none: by number of tokens.
        validation: share of the documents to hold out, or a path.
        test: likewise.
        tokenizer: folder or name of a Hugging Face tokenizer; None: train one on the training
            documents.
        vocab_size: number of ids of a tokenizer that is trained.
        kind: its kind.
        form: format of the files.
    """

    paths: tuple[str, ...]
    weights: tuple[float, ...] = ()
    validation: float | str = HELD_OUT_SHARE
    test: float | str = HELD_OUT_SHARE
    tokenizer: str | None = None
    vocab_size: int = VOCAB_SIZE
    kind: TokenizerKind = "byte-level"
    form: CorpusFormat = dataclasses.field(default_factory=CorpusFormat)

    @property
    def sources(self) -> list[Source]:
        """Sources of training, then those held out."""
        held_out = {NAMES[VALIDATION]: self.validation, NAMES[TEST]: self.test}
        given = [Source(path=x, split=n) for n, x in held_out.items() if isinstance(x, str)]
        return [*(Source(path=path) for path in self.paths), *given]

    @property
    def shares(self) -> dict[int, float]:
        """Shares of the documents to hold out, by split."""
        held_out = {VALIDATION: self.validation, TEST: self.test}
        return {split: x for split, x in held_out.items() if not isinstance(x, str)}

    def check(self) -> None:
        """Check shares and weights.

        Raises:
            OptionError: one is out of range.
        """
        for split, share in self.shares.items():
            if not 0 < share < 1:
                raise OptionError(
                    f"--{NAMES[split]} must be a share between 0 and 1 or a path, got {share:g}"
                )
        if sum(self.shares.values()) >= 1:
            raise OptionError(
                "--validation and --test leave no document for training: "
                f"{sum(self.shares.values()):g} of all"
            )
        if self.weights and (len(self.weights) != len(self.paths) or min(self.weights) <= 0):
            raise OptionError(
                f"--weights needs a number above 0 for each of the {len(self.paths)} paths, got "
                f"{', '.join(f'{x:g}' for x in self.weights)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusDescription(ImportDescription):
    """Description of an import, as stored.

    Attributes:
        sources: paths of the sources and their splits.
        weights: shares of the training sources in batches; none: by number of tokens.
        form: format of the files.
        tokenizer: name, sha256 and number of ids of the tokenizer.
        documents: documents by split.
        characters: characters by split.
        counts: documents left out: empty, unreadable, repeated, or in a held-out source too.
        reasons: first reasons why documents were unreadable, with their places.
        encodings: text files by encoding.
        documents_sha256: of the documents, their splits and sources; of any file format.
    """

    sources: list[dict[str, str]]
    weights: list[float]
    form: dict[str, Any]
    tokenizer: dict[str, Any]
    documents: dict[str, int]
    characters: dict[str, int]
    counts: dict[str, int]
    reasons: list[str]
    encodings: dict[str, int]
    documents_sha256: str
    schema: int = SCHEMA

    @property
    def training_paths(self) -> list[str]:
        """Paths of the training sources."""
        return [x["path"] for x in self.sources if x["split"] == NAMES[TRAIN]]

    @property
    def identity(self) -> dict[str, Any]:
        """Origin of the tokens: documents and tokenizer."""
        return {
            "form": "corpus",
            "sha256": self.documents_sha256,
            "tokenizer": self.tokenizer["sha256"],
        }


CORPORA = ImportKind("corpora", "a corpus", CorpusDescription, SCHEMA)


def import_corpus(
    cache: Path, name: str, request: CorpusRequest, progress: Progress, *, replace: bool = False
) -> CorpusDescription:
    """Read documents, split them, and store their description and the tokenizer.

    The tokens themselves are built when the task is opened. Nothing is written if a check fails.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        request: sources, splits and tokenizer.
        progress: called with the number of documents so far.
        replace: replace another corpus of the same name.

    Raises:
        OptionError: a name, share or weight is invalid, or the name is taken.
        DataError: a source or the tokenizer is unusable; the message has file and line.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    request.check()
    report = ReadingReport(skip_bad=request.form.skip_bad)
    found = survey(request.sources, request.form, report, request.shares, progress)
    _check_weighted(request, found)
    tokenizer = _make_tokenizer(request, found, progress)
    for required in ("mask", "pad"):
        tokenizer.token_id(required)
    separator_id(tokenizer)
    described = _describe(name, request, found, report, tokenizer)
    folder = CORPORA.path(cache, name)
    if not replace:
        _check_same(folder, described)
    hide(folder)
    shutil.rmtree(folder / _TOKENIZER, ignore_errors=True)
    with atomic_write(folder / _DOCUMENTS) as temporary:
        pq.write_table(_to_table(found), temporary)
    tokenizer.save(folder / _TOKENIZER)
    saved = folder_sha256(folder / _TOKENIZER)
    sha256 = described.tokenizer["sha256"] or saved  # one that was just trained has no files
    stored = {**described.tokenizer, "sha256": sha256, "saved_sha256": saved}
    described = dataclasses.replace(described, tokenizer=stored)
    write_description(folder, described)
    return described


def name_tokenizers(folders: Iterable[Path]) -> None:
    """Make the tokenizers of the corpora in some folders known by name, and forget all others."""
    CORPUS_FOLDERS.clear()
    CORPUS_FOLDERS.update({f"{OF_CORPUS}{x.name}": x / _TOKENIZER for x in folders})


def load_corpus_tokenizer(folder: Path, described: CorpusDescription) -> WordPieceTokenizer:
    """Load the tokenizer that is stored with a corpus.

    Its name is that of the corpus, so that configurations of tasks that share it do not depend on
    where the cache is.

    Raises:
        DataError: it is missing or has changed.
    """
    path = folder / _TOKENIZER
    if folder_sha256(path) != described.tokenizer["saved_sha256"]:
        raise DataError(f"{path} has changed; import the corpus again with --replace")
    CORPUS_FOLDERS[name := f"{OF_CORPUS}{described.name}"] = path
    return load_word_pieces(name)


def build_tokens(
    folder: Path, described: CorpusDescription, scratch: Path, progress: Progress
) -> BuildOutput:
    """Tokenize the documents of a corpus, in constant memory.

    Raises:
        DataError: a source is missing, or has changed since the import.
        RunError: the disk is full.
    """
    with explain_parquet_errors(folder / _DOCUMENTS):
        found = _from_table(pq.read_table(folder / _DOCUMENTS))
    if found.sha256() != described.documents_sha256:
        raise DataError(f"{folder / _DOCUMENTS} has changed; import the corpus again")
    tokenizer = load_corpus_tokenizer(folder, described)
    sources = [Source(**source) for source in described.sources]
    form = CorpusFormat(**{**described.form, "encodings": tuple(described.form["encodings"])})
    documents = surveyed_documents(sources, form, found)
    splits = tokenize(documents, found, tokenizer, scratch, progress)
    kept = found.splits != DROPPED
    return BuildOutput(
        splits=splits,
        source=f"{', '.join(source['path'] for source in described.sources)}, imported",
        license="that of the files",
        facts={
            "documents": described.documents,
            "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
            "training_sources": np.bincount(
                found.sources[kept & (found.splits == TRAIN)], minlength=len(sources)
            ).tolist(),
            **described.counts,
            "tokenizer": described.tokenizer,
        },
    )


def _check_weighted(request: CorpusRequest, found: Survey) -> None:
    """Require a training document of each source that has a weight."""
    present = np.unique(found.sources[found.splits == TRAIN])
    for number, path in enumerate(request.paths if request.weights else ()):
        if number not in present:
            raise DataError(
                f"{path} has a weight, but no training document is left; add documents, or omit it"
            )


def _make_tokenizer(
    request: CorpusRequest, found: Survey, progress: Progress
) -> WordPieceTokenizer:
    """Load the tokenizer of a request, or train one on the training documents."""
    if request.tokenizer is not None:
        return load_word_pieces(request.tokenizer)
    progress("training the tokenizer", 0, 0)
    documents = surveyed_documents(request.sources, request.form, found)
    fast = train_tokenizer(
        _training_parts(documents, found), vocab_size=request.vocab_size, kind=request.kind
    )
    return WordPieceTokenizer(f"{request.kind} of {request.vocab_size} ids", "", fast)


def _training_parts(documents: Iterable[tuple[int, Document]], found: Survey) -> Iterator[str]:
    """Yield the parts of training documents; held-out ones are read, as the order requires."""
    for row, document in documents:
        for part in document.parts:
            if found.splits[row] == TRAIN:
                yield part


def _describe(
    name: str,
    request: CorpusRequest,
    found: Survey,
    report: ReadingReport,
    tokenizer: WordPieceTokenizer,
) -> CorpusDescription:
    """Return the description of an import."""
    return CorpusDescription(
        name=name,
        sources=[dataclasses.asdict(_absolute(source)) for source in request.sources],
        weights=list(request.weights),
        form=dataclasses.asdict(request.form),
        tokenizer=tokenizer.facts["tokenizer"],
        documents={x: int((found.splits == n).sum()) for n, x in enumerate(NAMES)},
        characters={x: int(found.characters[found.splits == n].sum()) for n, x in enumerate(NAMES)},
        counts={
            "empty": report.num_empty,
            "unreadable": report.num_bad,
            "repeated": found.repeated,
            "in_another_split": found.in_another_split,
        },
        reasons=report.reasons,
        encodings=dict(report.encodings),
        documents_sha256=found.sha256(),
    )


def _absolute(source: Source) -> Source:
    """Return a source whose path does not depend on the working folder."""
    if source.is_dataset:
        return source
    return dataclasses.replace(source, path=str(Path(source.path).absolute()))


def _check_same(folder: Path, described: CorpusDescription) -> None:
    """Refuse a name that is taken by other documents or another tokenizer."""
    if not is_complete(folder):
        return
    one, other = (
        (x.documents_sha256, x.weights, x.tokenizer["name"], x.tokenizer["ids"])
        for x in (CORPORA.load(folder), described)
    )
    if one != other:
        raise OptionError(
            f"{described.name!r} is the name of another corpus; choose another name, or pass "
            "--replace"
        )


def _to_table(found: Survey) -> pa.Table:
    digests = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(32), len(found.digests), [None, pa.py_buffer(found.digests.tobytes())]
    )
    names = ("source", "characters", "split")
    columns = (found.sources, found.characters, found.splits)
    return pa.table({"sha256": digests, **dict(zip(names, columns, strict=True))})


def _from_table(table: pa.Table) -> Survey:
    digests = b"".join(table["sha256"].to_pylist())
    columns = (table[name].to_numpy() for name in ("source", "characters", "split"))
    sources, characters, splits = columns
    return Survey(
        digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
        sources=sources,
        characters=characters,
        splits=splits,
        repeated=0,
        in_another_split=0,
    )
