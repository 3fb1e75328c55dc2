"""Corpora in the cache: import of documents under a name, and their description.

An import is a folder `<cache>/corpora/<name>`: documents.parquet has the sha256, source, length and
split of each document, tokenizer/ the tokenizer, and import.json, which is written last, the
description. The tokens are a data set of the cache, as those of other tasks; they are rebuilt from
the files as long as these are unchanged.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longspan.data.cache import BuildOutput, ProgressCallback
from longspan.data.corpora.request import CorpusRequest, Objective
from longspan.data.corpora.survey import Survey, survey_corpus
from longspan.data.corpora.tokenizing import separator_id, surveyed_documents, tokenize
from longspan.data.corpora.vocabulary import (
    PartsCheck,
    choose_tokenizer,
    describe_symbols,
)
from longspan.data.document_rows import DocumentWriter
from longspan.data.imports.stored import (
    ImportDescription,
    check_task_name,
    count_splits,
)
from longspan.data.own_splits import SPLITS, TRAIN
from longspan.data.parquet import explain_parquet_errors
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.data.stream_vocabularies import (
    ByteVocabulary,
    CharacterVocabulary,
    StreamVocabulary,
    WordPieceVocabulary,
)
from longspan.data.word_pieces import (
    CORPUS_FOLDERS,
    OF_CORPUS,
    WordPieceTokenizer,
    folder_sha256,
    load_word_pieces,
)
from longspan.errors import DataError

_DOCUMENTS, _TOKENIZER = "documents.parquet", "tokenizer"
_MIN_LENGTH = 2  # tokens of a document of which one is predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusDescription(ImportDescription):
    """Description of an import, as stored.

    `sizes` are documents. `counts` are documents that were left out: empty, unreadable, repeated,
    or in a held-out source too. `rows_sha256` is that of the documents, their splits and sources.

    Attributes:
        objective: tokens that are predicted: masked ones, or the next one.
        sources: paths of the sources and their splits.
        weights: shares of the training sources in batches; none: by number of tokens.
        form: format of the files.
        tokenizer: name, sha256 and number of ids of the tokenizer, or of the vocabulary in its
            place: "bytes", or "characters" with their alphabet.
        characters: characters by split.
        reasons: first reasons why documents were unreadable, with their places.
        encodings: text files by encoding.
    """

    folder = "corpora"
    noun = "corpus"

    objective: Objective
    sources: list[dict[str, str]]
    weights: list[float]
    form: dict[str, Any]
    tokenizer: dict[str, Any]
    characters: dict[str, int]
    reasons: list[str]
    encodings: dict[str, int]
    schema: int = 3

    @property
    def training_paths(self) -> list[str]:
        """Paths of the training sources."""
        return [x["path"] for x in self.sources if x["split"] == SPLITS[TRAIN]]

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that are equal for two imports of the same documents and tokens."""
        tokenizer = (self.tokenizer["name"], self.tokenizer["ids"])
        return (self.rows_sha256, self.objective, self.weights, *tokenizer)

    @property
    def origin(self) -> dict[str, Any]:
        """Identity of the tokens: documents and tokenizer."""
        origin = {"form": "corpus", "sha256": self.rows_sha256}
        if self.objective == "masked":
            return {**origin, "tokenizer": self.tokenizer["sha256"]}
        vocabulary = self.tokenizer["sha256"] or self.tokenizer["name"]
        return {**origin, "objective": self.objective, "tokenizer": vocabulary}


def import_corpus(
    cache: Path,
    name: str,
    request: CorpusRequest,
    progress: ProgressCallback,
    *,
    replace: bool = False,
) -> CorpusDescription:
    """Read documents, split them, and store their description and the tokenizer.

    The tokens themselves are built when the task is opened. Nothing is written if a check fails.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        request: sources, splits, objective and vocabulary.
        progress: called with the number of documents so far.
        replace: replace another corpus of the same name.

    Raises:
        OptionError: a name, share or weight is invalid, or the name is taken.
        DataError: a source or the tokenizer is unusable; the message has file and line.
        RunError: the cache cannot be written.
    """
    check_task_name(name)
    request, sources, shares = request.resolve()
    request.check()
    report = ReadingReport(skip_bad=request.form.skip_bad)
    survey, dropped = survey_corpus(sources, request.form, report, shares, progress)
    _check_weighted(request, survey)
    tokenizer = None
    if request.vocabulary == "tokenizer":
        tokenizer = choose_tokenizer(request, sources, survey, progress)
        facts = tokenizer.facts["tokenizer"]
    else:
        facts = describe_symbols(request, sources, survey)
    description = _describe(name, request, sources, survey, report, dropped, facts)

    def write(folder: Path) -> CorpusDescription:
        digests = pa.array([x.tobytes() for x in survey.digests], pa.binary(32))
        columns = {
            "source": survey.sources,
            "characters": survey.characters,
            "split": survey.splits,
        }
        pq.write_table(pa.table({"sha256": digests, **columns}), folder / _DOCUMENTS)
        return description if tokenizer is None else _save_tokenizer(tokenizer, folder, description)

    return CorpusDescription.store(cache, name, write, replace=replace)


def _save_tokenizer(
    tokenizer: WordPieceTokenizer, folder: Path, description: CorpusDescription
) -> CorpusDescription:
    """Store the tokenizer of a corpus; return the description with its checksums."""
    tokenizer.save(folder / _TOKENIZER)
    saved_sha256 = folder_sha256(folder / _TOKENIZER)
    # one that was just trained has no files
    sha256 = description.tokenizer["sha256"] or saved_sha256
    facts = {**description.tokenizer, "sha256": sha256, "saved_sha256": saved_sha256}
    return dataclasses.replace(description, tokenizer=facts)


def name_tokenizers(folders: Iterable[Path]) -> None:
    """Make the tokenizers of the corpora in some folders known by name, and forget all others."""
    CORPUS_FOLDERS.clear()
    tokenizers = (folder / _TOKENIZER for folder in folders)
    CORPUS_FOLDERS.update({f"{OF_CORPUS}{x.parent.name}": x for x in tokenizers if x.is_dir()})


def load_corpus_tokenizer(folder: Path, description: CorpusDescription) -> WordPieceTokenizer:
    """Load the tokenizer that is stored with a corpus.

    Its name is that of the corpus, so that configurations of tasks that share it do not depend on
    where the cache is.

    Raises:
        DataError: it is missing or has changed.
    """
    path = folder / _TOKENIZER
    if folder_sha256(path) != description.tokenizer["saved_sha256"]:
        raise DataError(f"{path} has changed; import the corpus again with --replace")
    CORPUS_FOLDERS[name := f"{OF_CORPUS}{description.name}"] = path
    return load_word_pieces(name)


def build_tokens(
    folder: Path, description: CorpusDescription, scratch: Path, progress: ProgressCallback
) -> BuildOutput:
    """Tokenize the documents of a corpus, in constant memory.

    Raises:
        DataError: a source is missing, or has changed since the import.
        RunError: the disk is full.
    """
    survey = _read_survey(folder / _DOCUMENTS, description)
    sources = [CorpusSource(**source) for source in description.sources]
    form = FileFormat(**{**description.form, "encodings": tuple(description.form["encodings"])})
    documents = surveyed_documents(sources, form, survey)
    vocabulary, check = load_corpus_vocabulary(folder, description), None
    end: tuple[int, ...] = ()
    minimum = _MIN_LENGTH
    if isinstance(vocabulary, WordPieceVocabulary):
        if description.objective == "masked":
            end, minimum = (separator_id(vocabulary.tokenizer),), 1
        else:
            check = PartsCheck(vocabulary)
    writers = tokenize(
        documents, survey, vocabulary, scratch, progress, end=end, min_length=minimum, inspect=check
    )
    splits = {name: writer.examples() for name, writer in writers.items()}
    facts = _next_facts(description, writers, check) if description.objective == "next" else {}
    return BuildOutput(
        splits=splits,
        source=f"{', '.join(source['path'] for source in description.sources)}, imported",
        license="that of the files",
        facts={
            "documents": description.sizes,
            "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
            "training_sources": np.bincount(
                survey.sources[survey.splits == TRAIN], minlength=len(sources)
            ).tolist(),
            **description.counts,
            "tokenizer": description.tokenizer,
            **facts,
        },
    )


def _read_survey(path: Path, description: CorpusDescription) -> Survey:
    """Return the survey that is stored with a corpus; refuse one that has changed."""
    with explain_parquet_errors(path):
        table = pq.read_table(path)
    digests = b"".join(table["sha256"].to_pylist())
    survey = Survey(
        digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
        sources=table["source"].to_numpy(),
        characters=table["characters"].to_numpy(),
        splits=table["split"].to_numpy(),
    )
    if survey.sha256() != description.rows_sha256:
        raise DataError(f"{path} has changed; import the corpus again")
    return survey


def load_corpus_vocabulary(folder: Path, description: CorpusDescription) -> StreamVocabulary:
    """Return the vocabulary of a corpus.

    Raises:
        DataError: the tokenizer that is stored with it is missing or has changed.
    """
    if "saved_sha256" in description.tokenizer:
        return WordPieceVocabulary(load_corpus_tokenizer(folder, description))
    if "alphabet" in description.tokenizer:
        return CharacterVocabulary(description.tokenizer["alphabet"])
    return ByteVocabulary()


def _next_facts(
    description: CorpusDescription,
    writers: dict[str, DocumentWriter],
    check: PartsCheck | None,
) -> dict[str, Any]:
    """Return the facts of documents whose tokens predict the next one.

    Raises:
        DataError: all documents of a split are left out.
    """
    for name, writer in writers.items():
        if not writer.num_documents:
            raise DataError(
                f"{description.name}: each of the {writer.num_short:,} documents of {name} has "
                f"fewer than {_MIN_LENGTH} tokens, so that there is nothing to predict; import "
                "longer ones, or pass --document file"
            )
    part_counts = {} if check is None else {"parts": check.parts, "changed_parts": check.changed}
    return {
        "documents": {name: writer.num_documents for name, writer in writers.items()},
        "too_short": {name: writer.num_short for name, writer in writers.items()},
        **part_counts,
    }


def _check_weighted(request: CorpusRequest, survey: Survey) -> None:
    """Require a training document of each source that has a weight."""
    present = np.unique(survey.sources[survey.splits == TRAIN])
    for number, path in enumerate(request.paths if request.weights else ()):
        if number not in present:
            raise DataError(
                f"{path} has a weight, but no training document is left; add documents, or omit it"
            )


def _describe(
    name: str,
    request: CorpusRequest,
    sources: Sequence[CorpusSource],
    survey: Survey,
    report: ReadingReport,
    dropped: dict[str, int],
    tokenizer: dict[str, Any],
) -> CorpusDescription:
    """Return the description of an import."""
    return CorpusDescription(
        name=name,
        objective=request.objective,
        sources=[dataclasses.asdict(_make_absolute(source)) for source in sources],
        weights=list(request.weights),
        form={**dataclasses.asdict(request.form), "encodings": [*request.form.encodings]},
        tokenizer=tokenizer,
        sizes=count_splits(survey.splits),
        characters={
            x: int(survey.characters[survey.splits == n].sum()) for n, x in enumerate(SPLITS)
        },
        counts={
            "empty": report.num_empty,
            "unreadable": report.num_bad,
            **dropped,
        },
        reasons=report.reasons,
        encodings=dict(report.encodings),
        rows_sha256=survey.sha256(),
    )


def _make_absolute(source: CorpusSource) -> CorpusSource:
    """Return a source whose path does not depend on the working folder."""
    if source.is_dataset:
        return source
    return dataclasses.replace(source, path=str(Path(source.path).absolute()))
