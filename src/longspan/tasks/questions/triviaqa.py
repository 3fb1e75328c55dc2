"""TriviaQA: "Which Lloyd Webber musical premiered in 1993?"; find the answer in long documents.

Joshi et al., "TriviaQA: A Large Scale Distantly Supervised Challenge Dataset for Reading
Comprehension", 2017 (https://arxiv.org/abs/1705.03551). No place of an answer is annotated: all of
its mentions are right, as in Beltagy et al., "Longformer", 2020, section 6. Official layout:

    qa/{wikipedia,web}-{train,dev}.json
    evidence/wikipedia/*.txt (`EntityPages`), evidence/web/*/*.txt (`SearchResults`)

or the parquet files of the hub, of the configuration rc.wikipedia or rc.web, whose rows have the
texts of the documents. In the domain wikipedia a question has one answer, found in any of its
documents, which are joined here. In the domain web each document of a question is an example of its
own. The official evaluation scores them so, too.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from longspan.config import setting, settings
from longspan.data.json_files import field, load_json, zip_columns
from longspan.data.own_splits import VALIDATION
from longspan.data.parquet import read_records, split_files
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.errors import DataError, MissingSourceError
from longspan.files import explain_read_error, read_file
from longspan.metrics.answers import normalize_triviaqa_answer
from longspan.tasks.base import Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions.encoding import Question, join_passages
from longspan.tasks.questions.question_data import (
    QuestionOptions,
    QuestionTask,
    Share,
    assign_questions,
)
from longspan.tasks.registry import register
from longspan.tasks.source_report import Report

Domain = Literal["wikipedia", "web"]
PublishedSplit = Literal["train", "dev"]

URL = "https://nlp.cs.washington.edu/triviaqa/data/triviaqa-rc.tar.gz"

_FILES: dict[PublishedSplit, str] = {"train": "{}-train.json", "dev": "{}-dev.json"}
_ROOT = "evidence"
# Lists of a question's documents, and the folders of their texts.
_EVIDENCE = {"EntityPages": f"{_ROOT}/wikipedia", "SearchResults": f"{_ROOT}/web"}
# Folders of the documents that questions of a domain name.
_FOLDERS: dict[Domain, tuple[str, ...]] = {
    "wikipedia": (_EVIDENCE["EntityPages"],),
    "web": tuple(_EVIDENCE.values()),
}
_SEPARATOR = "\n\n"  # of joined documents
# On the hub: splits, and columns of the documents with their texts.
_HUB_SPLITS: dict[PublishedSplit, str] = {"train": "train", "dev": "validation"}
_HUB_COLUMNS = {
    "EntityPages": ("entity_pages", "wiki_context"),
    "SearchResults": ("search_results", "search_context"),
}


def find(data: Path | None, domain: Domain) -> SourceFiles:
    """Find a copy.

    Args:
        data: the folder of parquet files, that of `qa` and `evidence`, or one above it. None:
            $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA. In a folder, its `triviaqa` and `triviaqa-rc`
            are searched too.
        domain: source of the documents.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, "the unpacked files of TriviaQA")
    for path in paths:
        for root in (*usual_folders(path, "triviaqa"), path / "triviaqa-rc"):
            files = {x: (root / "qa" / name.format(domain),) for x, name in _FILES.items()}
            if all(x.is_file() for (x,) in files.values()) and (root / _ROOT).is_dir():
                return SourceFiles(form="folder", path=root, files=files)
        shards = {x: split_files(path, y) for x, y in _HUB_SPLITS.items() if data is not None}
        if shards and all(shards.values()):
            return SourceFiles(form="parquet", path=path, files=shards)
    raise MissingSourceError(
        f"TriviaQA ({domain}) is not here (searched {format_paths(paths)}); download {URL}, and "
        "run `longspan data build triviaqa --data FILE`"
    )


def load_records(files: SourceFiles, domain: Domain, split: PublishedSplit) -> Iterator[Any]:
    """Yield the questions of a split as published; of a verified file, the verified ones.

    Those of the hub are read one by one.

    Raises:
        DataError: the file is missing or malformed.
    """
    path = files.firsts[split]
    if files.form == "parquet":
        yield from _read_rows(path, domain)
        return
    content = load_json(path)
    records = field(content, "Data", list, str(path))
    if not records:
        raise DataError(f"{path} has no question; download it again")
    is_verified = bool(content.get("VerifiedEval"))
    for number, record in enumerate(records):
        where = f"{path}: question {number}"
        field(record, "QuestionId", str, where)
        if is_verified and not record.get("QuestionPartOfVerifiedEval"):
            continue
        # As in the official evaluation, all documents from the web count.
        selects = is_verified and domain == "wikipedia"
        yield _select_verified(record, where) if selects else record


def _read_rows(path: Path, domain: Domain) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split of the hub as published questions, with the texts of documents.

    Raises:
        DataError: a row is malformed, or the documents are those of the other domain.
    """
    num_pages = dict.fromkeys(_EVIDENCE, 0)
    for number, row in enumerate(read_records(path)):
        where = f"{path}: row {number}"
        record: dict[str, Any] = {
            "QuestionId": field(row, "question_id", str, where),
            "Question": field(row, "question", str, where),
        }
        answer = field(row, "answer", dict, where)
        if answer.get("normalized_aliases"):
            record["Answer"] = {"NormalizedAliases": answer["normalized_aliases"]}
        for name, (column, text) in _HUB_COLUMNS.items():
            pages = field(row, column, dict, where)
            columns = zip_columns(pages, ("filename", text), f"{where}, field {column!r}")
            record[name] = [{"Filename": page, "Text": content or ""} for page, content in columns]
            num_pages[name] += len(record[name])
        yield record
    if (num_pages["SearchResults"] > 0) != (domain == "web"):
        other = "wikipedia" if domain == "web" else "web"
        raise DataError(
            f"{path.parent} has the documents of the domain {other}; set domain={other}, or take "
            f"the configuration rc.{domain}"
        )


def read_question(
    files: SourceFiles, domain: Domain, record: Any, where: str, report: Report
) -> Iterator[Question]:
    """Yield a question with its documents, or with each of them; nothing if there is none.

    Args:
        files: copy to read.
        domain: source of the documents.
        record: one of `load_records`.
        where: its place, for messages.
        report: receives `without_document` (questions), `documents_missing` and
            `documents_not_utf8` (bytes that are not UTF-8 become U+FFFD).

    Raises:
        DataError: a field or file is malformed; the message says where.
    """
    name = field(record, "QuestionId", str, where)
    pages = [
        (files.path / folder, page["Filename"], page.get("Text"))
        for list_name, folder in _EVIDENCE.items()
        for page in _pages(record, list_name, where)
    ]
    documents = ((page[1], _read(*page, name, where, report)) for page in pages)
    texts = [(file, text) for file, text in documents if text]
    if not texts:
        report.add("without_document", name, where)
    elif domain == "wikipedia":
        yield _make_question(record, where, [text for _, text in texts], name)
    else:
        yield from (
            _make_question(record, where, [text], f"{name}--{file}") for file, text in texts
        )


def references_of(answer: Any, where: str) -> tuple[str, ...]:
    """Return the right answers of a record `Answer`: normalized aliases and human answers.

    Raises:
        DataError: a field is missing, or has something else than texts.
    """
    aliases = field(answer, "NormalizedAliases", list, where)
    human = field({"HumanAnswers": [], **answer}, "HumanAnswers", list, where)
    if not all(isinstance(text, str) for text in (*aliases, *human)):
        raise DataError(f"{where}: answers must be texts, got {[*aliases, *human]!r:.80}")
    return tuple(dict.fromkeys([*aliases, *map(normalize_triviaqa_answer, human)]))


def _make_question(record: Any, where: str, documents: list[str], name: str) -> Question:
    answer = record.get("Answer")
    context, passages = join_passages(documents, _SEPARATOR)
    return Question(
        id=name,
        text=field(record, "Question", str, where).strip(),
        context=context,
        references=() if answer is None else references_of(answer, where),
        spans=None,
        document=field(record, "QuestionId", str, where),
        passages=passages,
        where=where,
    )


def _measure(folder: Path) -> dict[str, int]:
    """Return the number of files below a folder, and their bytes; reads none of them.

    Raises:
        UnreadableError: the system does not list them now, or the folder is absent.
    """

    def fail(error: OSError) -> None:
        raise error

    try:
        sizes = [
            Path(where, name).stat().st_size
            for where, _, names in os.walk(folder, onerror=fail)
            for name in names
        ]
    except OSError as error:
        raise explain_read_error(folder, error) from error
    return {"files": len(sizes), "bytes": sum(sizes)}


def _pages(record: Any, name: str, where: str) -> list[Any]:
    """Return a list of documents of a question, which may be absent."""
    pages = field({name: [], **record}, name, list, where)
    for page in pages:
        field(page, "Filename", str, where)
    return pages


def _select_verified(record: Any, where: str) -> Any:
    """Return a question with its verified documents alone."""
    return record | {
        name: [page for page in _pages(record, name, where) if page.get("DocPartOfVerifiedEval")]
        for name in _EVIDENCE
    }


def _read(
    folder: Path, name: str, text: str | None, question: str, where: str, report: Report
) -> str:
    """Return the text of a document, from its file if it is None; empty: missing or blank."""
    if text is not None:
        return text.strip()
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{where}: file name {name!r} leads outside {folder}")
    try:
        raw = read_file(path)
    except FileNotFoundError:
        report.add("documents_missing", question, f"{where}, {path}")
        return ""
    except OSError as error:
        raise explain_read_error(path, error) from error
    content = raw.decode("utf-8-sig", errors="replace")
    if "\ufffd" in content:
        report.add("documents_not_utf8", question, f"{where}, {path}")
    return content.strip()


@settings
class TriviaQAOptions(QuestionOptions):
    """Encoding, domain of the documents, and the share of questions that are held out."""

    domain: Domain = setting(
        "documents: wikipedia, all of a question joined; or web, each one an example", "wikipedia"
    )
    validation: Share = setting("share of the training questions that validation holds out", 0.1)


@register
class TriviaQA(QuestionTask):
    """Answers of trivia questions in documents from Wikipedia or the web."""

    Options = TriviaQAOptions
    options: TriviaQAOptions
    id_field = "QuestionId"
    info = TaskInfo(
        name="triviaqa",
        title="TriviaQA",
        summary="Find the answer to a trivia question in long documents.",
        source=f"TriviaQA 1.0, Joshi et al. 2017, {URL}",
        license="none stated for the questions; documents have the licenses of their sites",
        num_classes=8,
        metrics=("token_f1", "exact_match"),
        head="question_answering",
        notes=(
            "Validation is held out of the training questions; test is the published development "
            "set, on which papers report, since the answers of the test set are not public. "
            "Questions whose documents do not mention an answer count as wrong, as in the official "
            "evaluation. Questions without any document are left out and counted; the official "
            "evaluation counts them as wrong."
        ),
    )

    def normalize(self, answer: str) -> str:
        """Return an answer as the official evaluation compares it."""
        return normalize_triviaqa_answer(answer)

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of questions of the domain."""
        return find(data, self.options.domain)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return names and sizes of the files of questions, number and size of the documents."""
        source, domain = self.find_source(data), self.options.domain
        origin = {**source.origin, "domain": domain}
        if source.form == "parquet":
            return origin
        documents = {name: _measure(source.path / name) for name in _FOLDERS[domain]}
        return {**origin, "documents": documents}

    def record_id(self, question: str) -> str:
        """Return the id of a question without its document."""
        return question.partition("--")[0]

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions with their documents, which are read one by one."""
        files, domain = self.find_source(data), self.options.domain
        held_out: dict[PublishedSplit, dict[int, float]]
        held_out = {"train": {VALIDATION: self.options.validation}, "dev": {}}
        for published_split, shares in held_out.items():
            path = files.firsts[published_split]
            keys = [
                field(record, "QuestionId", str, f"{path}: question {number}")
                for number, record in enumerate(load_records(files, domain, published_split))
            ]
            splits = assign_questions(keys, shares)
            # Read again: the records of the hub have the texts of all documents.
            for number, record in enumerate(load_records(files, domain, published_split)):
                split, where = splits[number], f"{path}: question {number}"
                for question in read_question(files, domain, record, where, reports[split]):
                    yield split, question
