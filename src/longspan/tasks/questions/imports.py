"""Import of questions of one's own: checks, splits by document, and a copy in the cache.

An import is a folder `<cache>/questions/<name>`: a file in the format of SQuAD 1.1 for each split,
see `squad`, and import.json, the description. The original files are not needed afterwards.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.data.imports.stored import ImportDescription, covered, resolve_splits
from longspan.data.imports.texts import split_sources
from longspan.data.json_files import load_json
from longspan.data.near_duplicates import link_rows
from longspan.data.own_splits import (
    DROPPED,
    SPLITS,
    TRAIN,
    assign_splits,
)
from longspan.data.source_files import SourceFiles
from longspan.data.sources.table import Source, Table, read_table
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError
from longspan.files import write_json
from longspan.tasks.base import Split, Task
from longspan.tasks.imported import ImportedTask, make_task, makes_tasks
from longspan.tasks.questions.encoding import Question, join_passages
from longspan.tasks.questions.mentions import IN_WORD, Span, find_mentions
from longspan.tasks.questions.squad import (
    PASSAGE_SEPARATOR,
    AnswerOptions,
    Squad,
    group_rows,
    parse_squad,
    read_squad,
)
from longspan.tasks.source_report import Report

HELD_OUT_SHARE = 0.1
Article = dict[str, Any]  # title and paragraphs, in the format of SQuAD 1.1
_COUNTS = ("empty", "without_answer", "answers_misplaced", "in_another_split")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionColumns:
    """Columns of a table of questions; a column `id`, if there is one, has their identifiers."""

    question: str
    context: str
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionsDescription(ImportDescription):
    """Description of imported questions, as stored.

    `sizes` are questions. `counts` are rows without question or document; questions without an
    answer; answers that are not in their document; and questions about a document that a later
    held-out file has too.

    Attributes:
        files: files that the questions are from, by split.
        question_bytes, document_bytes: 95th percentile of the lengths.
    """

    folder: ClassVar[str] = "questions"
    noun: ClassVar[str] = "set of questions"

    files: dict[str, str]
    question_bytes: int
    document_bytes: int


def import_questions(
    cache: Path,
    name: str,
    source: Source,
    held_out: Mapping[int, float | Source | None],
    columns: QuestionColumns,
    form: FileFormat,
    *,
    replace: bool = False,
) -> QuestionsDescription:
    """Read questions, split them by document and store them; nothing is written if a check fails.

    A document is an article of a file in the format of SQuAD, known by its title or else by its
    text, or the context of a row of a table. All questions about it are in one split, with those
    about documents that have a paragraph in common with it.

    Args:
        cache: folder of built data sets.
        name: name of the task.
        source: JSON file in the format of SQuAD 1.1 or 2.0, or a table; of a folder with splits,
            each is that of its name.
        held_out: share of the documents, or source, of validation and test; None: the default.
        columns: columns of a table.
        form: format of a table.
        replace: replace another import of the same name.

    Raises:
        OptionError: the name or a share is invalid, or the name is taken.
        DataError: a file is missing or malformed, or has too few documents.
        RunError: the cache cannot be written.
    """
    sources_by_split = split_sources(source)
    sources, shares = resolve_splits(held_out, sources_by_split, HELD_OUT_SHARE, "document")
    sources = {TRAIN: sources_by_split.get(TRAIN, source), **sources}
    counts: Counter[str] = Counter()
    articles = {x: _read_articles(y, columns, form, counts) for x, y in sources.items()}
    splits = _assign(articles, shares, counts)
    questions = {split: _questions(each) for split, each in sorted(splits.items())}
    rows = [row for each in questions.values() for row in each]
    content = json.dumps([splits[x] for x in sorted(splits)], ensure_ascii=False)
    files: dict[str, str] = {SPLITS[x]: _file_name(y) for x, y in sources.items()}
    files |= {SPLITS[x]: f"{share:g} of the documents" for x, share in shares.items()}
    described = QuestionsDescription(
        name=name,
        rows_sha256=hashlib.sha256(content.encode()).hexdigest(),
        sizes={SPLITS[x]: len(each) for x, each in questions.items()},
        counts={x: counts[x] for x in _COUNTS},
        files=files,
        question_bytes=covered([len(x["question"].encode()) for x, _ in rows]),
        document_bytes=covered([len(context.encode()) for _, context in rows]),
    )

    def write(part: Path) -> QuestionsDescription:
        for split, each in splits.items():
            write_json(_split_file(part, SPLITS[split]), {"data": each})
        return described

    return QuestionsDescription.store(cache, name, write, replace=replace)


def _read_articles(
    source: Source, columns: QuestionColumns, form: FileFormat, counts: Counter[str]
) -> list[Article]:
    """Return the articles of a file in the format of SQuAD, or of a table."""
    if not isinstance(source, Path) or source.suffix not in (".json", ".gz"):
        return _read_rows(source, columns, form, counts)
    is_json = source.name.removesuffix(".gz").endswith(".json")
    try:
        content = load_json(source) if is_json else None
    except DataError:
        content = None  # an object a line, or malformed: the reader of tables says where
    if not isinstance(content, dict) or "data" not in content:
        return _read_rows(source, columns, form, counts)
    report = Report()
    parse_squad(content, source, report)  # every check, with the places in this file
    counts.update(report.counts)
    articles: list[Article] = content["data"]
    numbers = itertools.count()
    for record in (x for z in articles for y in z["paragraphs"] for x in y["qas"]):
        record["id"] = str(record.get("id", f"question {next(numbers)}"))
    return articles


def _read_rows(
    source: Source, columns: QuestionColumns, form: FileFormat, counts: Counter[str]
) -> list[Article]:
    """Return an article for each context of a table; answers are marked wherever they stand.

    Rows of one question about one context are its answers, and have the identifier of the first.

    Raises:
        DataError: the table is malformed, lacks a column, or has two questions of one identifier.
    """
    table = read_table(source, form)
    if columns.answer not in table.names and "answers" in table.names:
        return _read_marked(table, columns, counts)
    values = [table.column(getattr(columns, x.name)) for x in dataclasses.fields(columns)]
    ids = table.column("id") if "id" in table.names else [*map(str, range(len(table.rows)))]
    contexts: dict[str, dict[str, Any]] = {}
    asked: dict[str, tuple[str, str]] = {}
    for name, question, context, answer in zip(ids, *values, strict=True):
        if not question or not context:
            counts["empty"] += 1
            continue
        if asked.setdefault(name, (question, context)) != (question, context):
            raise DataError(
                f"{table.path}: column 'id' has {name!r} for two questions; number the questions"
            )
        spans = _places(answer, context)
        counts["answers_misplaced"] += bool(answer) and not spans
        answers = [{"text": context[start:end], "answer_start": start} for start, end in spans]
        if answer and not answers:
            # It scores the question, and marks no token.
            answers = [{"text": answer, "answer_start": -1}]
        record = {"id": name, "question": question, "answers": []}
        record = contexts.setdefault(context, {}).setdefault(question, record)
        record["answers"] += [x for x in answers if x not in record["answers"]]
    paragraphs = [{"context": x, "qas": [*y.values()]} for x, y in contexts.items()]
    counts["without_answer"] += sum(not x["answers"] for y in paragraphs for x in y["qas"])
    return [{"paragraphs": [paragraph]} for paragraph in paragraphs]


def _read_marked(table: Table, columns: QuestionColumns, counts: Counter[str]) -> list[Article]:
    """Return the articles of a table whose column `answers` has objects, as SQuAD's on the hub.

    Raises:
        DataError: the table lacks a column, or an object has other fields.
    """
    names = {"question": columns.question, "context": columns.context}
    names |= {x: x for x in ("id", "title") if x in table.names}
    for name in names.values():
        table.column(name)  # checks it
    cells = {x: [row[table.names.index(y)] for row in table.rows] for x, y in names.items()}
    rows = []
    for place, text in enumerate(row[table.names.index("answers")] for row in table.rows):
        row = {name: values[place] for name, values in cells.items()}
        if not (row["question"].strip() and row["context"].strip()):
            counts["empty"] += 1
            continue
        try:
            row["answers"] = json.loads(text)
        except ValueError:
            raise DataError(
                f"{table.locate(place)}: column 'answers' must have an object with the lists "
                f"'text' and 'answer_start', got {text!r:.60}; name a column of plain answers by "
                "--answer"
            ) from None
        rows.append({"id": str(place), "title": "", **row})
    content = group_rows(({**x, "title": x["title"] or x["context"]} for x in rows), table.path)
    report = Report()
    parse_squad(content, table.path, report)
    counts.update(report.counts)
    return content["data"]


def _places(answer: str, context: str) -> list[Span]:
    """Return the places of an answer, as words, or else as text, as in scripts without spaces.

    Mentions lack the articles of English. These are other words elsewhere, as in "an der Spree", so
    text that equals the answer is marked whole.
    """
    if not answer:
        return []
    text, mentions = re.escape(answer), find_mentions(context, [answer])
    equal = [x.span() for x in re.finditer(f"(?<!{IN_WORD}){text}(?!{IN_WORD})", context)]
    others = [(a, b) for a, b in mentions if not any(x <= a and b <= y for x, y in equal)]
    return sorted(equal + others) or [x.span() for x in re.finditer(text, context)]


def _assign(
    articles: Mapping[int, list[Article]], shares: Mapping[int, float], counts: Counter[str]
) -> dict[int, list[Article]]:
    """Return the articles of each split; those that a later held-out file has too are left out.

    Raises:
        DataError: a split has no question with an answer.
    """
    rows = [(split, article) for split, each in articles.items() for article in each]
    initial = np.array([split for split, _ in rows], np.int8)
    keys = _group([article for _, article in rows])
    assigned = assign_splits([(key,) for key in keys], initial, shares).splits
    splits: dict[int, list[Article]] = {split: [] for split in range(len(SPLITS))}
    for split, (_, article) in zip(assigned.tolist(), rows, strict=True):
        if split == DROPPED:
            counts["in_another_split"] += len(_questions([article]))
        else:
            splits[split].append(article)
    for split, each in splits.items():
        if not _questions(each):
            raise DataError(
                f"no question with an answer is left for {SPLITS[split]}; add documents, or choose "
                "another share"
            )
    return splits


def _group(articles: Sequence[Article]) -> list[str]:
    """Return a key for each article: one for those of a title, or with a paragraph in common."""
    names = [_document(article) for article in articles]
    first: dict[tuple[str, str], int] = {}
    links = [
        (first.setdefault(part, row), row)
        for row, article in enumerate(articles)
        # Under another title a paragraph is the same text.
        for part in (("title", names[row]), *(("text", x) for x in _contexts(article) if x.strip()))
    ]
    keys: dict[int, str] = {}
    groups = link_rows(len(articles), links).tolist()
    for group, name in zip(groups, names, strict=True):
        keys[group] = min(name, keys.get(group, name))
    return [keys[group] for group in groups]


def _document(article: Article) -> str:
    """Return what tells an article from others: its title, or else its text."""
    return str(article.get("title") or join_passages(_contexts(article), PASSAGE_SEPARATOR)[0])


def _contexts(article: Article) -> list[str]:
    return [paragraph["context"] for paragraph in article["paragraphs"]]


def _questions(articles: list[Article]) -> list[tuple[dict[str, Any], str]]:
    """Return the questions with an answer, and their contexts."""
    paragraphs = (paragraph for article in articles for paragraph in article["paragraphs"])
    records = ((record, x["context"]) for x in paragraphs for record in x["qas"])
    return [(x, y) for x, y in records if any(answer["text"] for answer in x["answers"])]


def _file_name(source: Source) -> str:
    if isinstance(source, tuple):
        return ", ".join(path.name for path in source)
    return source.name if isinstance(source, Path) else source


def _split_file(folder: Path, split: Split) -> Path:
    return folder / f"{split}.json"


class OwnQuestions(ImportedTask, Squad):
    """Questions of an import; subclasses are made by `_make`."""

    Options = AnswerOptions
    description: ClassVar[QuestionsDescription]

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the stored files, one for each split."""
        files = {split: (_split_file(self.folder, split),) for split in SPLITS}
        return SourceFiles(form="import", path=self.folder, files=files)

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions of each split."""
        for split, path in self.find_source(data).firsts.items():
            for question in read_squad(path, reports[split], self.options.context):
                yield split, question


@makes_tasks(QuestionsDescription)
def _make(folder: Path, description: QuestionsDescription) -> type[Task]:
    """Return the task class of an import."""
    return make_task(
        OwnQuestions,
        folder,
        description,
        description.files[SPLITS[TRAIN]],
        version=2,
        summary="Mark the answer to a question in a document.",
        num_classes=Squad.info.num_classes,
        metrics=Squad.info.metrics,
        head=Squad.info.head,
        notes=(
            "All questions about a document are in one split. Answers are scored as in the "
            "official evaluation of SQuAD, against all reference answers; those in another "
            "language than English (`language`) as in the evaluation of MLQA."
        ),
    )
