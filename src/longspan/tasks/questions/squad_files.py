"""Reader of files in the format of SQuAD 1.1 (Rajpurkar et al. 2016), such as XQuAD's.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

`answer_start` counts characters. The hub has a row for each question, with its title and context.
https://rajpurkar.github.io/SQuAD-explorer
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from longspan.data.parquet import SUFFIX
from longspan.errors import DataError
from longspan.tasks.questions.json_files import field, load_json, zip_columns
from longspan.tasks.questions.question import Question, Span, join_passages
from longspan.tasks.questions.report import Report

Extent = Literal["paragraph", "article"]

_SEPARATOR = "\n"  # of joined paragraphs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFile:
    """Questions of a file in its order, and what is wrong with it.

    Attributes:
        questions: questions with an answer.
        report: `without_answer`: questions left out, as they have none (SQuAD 2.0 has such);
            `answers_misplaced`: answers that are not at their place in the context. They count as
            references, and mark no token.
    """

    questions: list[Question]
    report: Report


def read_squad(path: Path, extent: Extent = "paragraph") -> SquadFile:
    """Read a file, plain or gzip, or the parquet files of a split.

    Args:
        path: JSON file, or the first parquet file of a split.
        extent: context of a question: its paragraph, or all paragraphs of its article, joined.

    Raises:
        DataError: the file is missing, malformed or without questions; the message says where.
    """
    report = Report(Counter({"without_answer": 0, "answers_misplaced": 0}))
    questions = [
        question
        for number, article in enumerate(field(_load(path), "data", list, str(path)))
        for question in _read_article(article, f"{path}: article {number}", extent, report)
    ]
    if not questions:
        raise DataError(f"{path} has no question with an answer")
    repeated = [name for name, n in Counter(one.id for one in questions).items() if n > 1]
    if repeated:
        raise DataError(
            f"{path} has {len(repeated)} ids of several questions, such as {repeated[0]!r}"
        )
    return SquadFile(questions=questions, report=report)


def _load(path: Path) -> Any:
    """Return the content of a file; rows of questions become articles and paragraphs."""
    content = load_json(path)
    if path.suffix != SUFFIX:
        return content
    articles: dict[str, dict[str, list[Any]]] = {}
    for number, row in enumerate(content):
        where = f"{path}: row {number}"
        title, context = (field(row, name, str, where) for name in ("title", "context"))
        found = field(row, "answers", dict, where)
        pairs = zip_columns(found, ("text", "answer_start"), f"{where}, field 'answers'")
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        paragraphs = articles.setdefault(title, {})
        paragraphs.setdefault(context, []).append({**row, "answers": answers})
    return {
        "data": [
            {"title": title, "paragraphs": [{"context": x, "qas": y} for x, y in found.items()]}
            for title, found in articles.items()
        ]
    }


def _read_article(article: Any, where: str, extent: Extent, report: Report) -> Iterator[Question]:
    paragraphs = field(article, "paragraphs", list, where)
    places = [f"{where}, paragraph {number}" for number in range(len(paragraphs))]
    contexts = [field(x, "context", str, y) for x, y in zip(paragraphs, places, strict=True)]
    # Files of one's own may lack titles.
    document = str(article.get("title", where))
    whole, firsts = join_passages(contexts, _SEPARATOR)
    parts = zip(paragraphs, places, contexts, firsts, strict=True)
    for paragraph, place, context, first in parts:
        is_joined = extent == "article"
        shift = first if is_joined else 0
        for number, record in enumerate(field(paragraph, "qas", list, place)):
            question = _read_question(record, f"{place}, question {number}", context, report)
            if question is not None:
                yield dataclasses.replace(
                    question,
                    context=whole if is_joined else context,
                    passages=firsts if is_joined else question.passages,
                    spans=tuple((shift + a, shift + b) for a, b in question.spans or ()),
                    document=document,
                )


def _read_question(record: Any, where: str, context: str, report: Report) -> Question | None:
    """Return a question with the places of its answers, or None if it has no answer."""
    answers, name = field(record, "answers", list, where), str(record.get("id", where))
    texts = [text for answer in answers if (text := field(answer, "text", str, where))]
    if not texts:
        report.add("without_answer", name, where)
        return None
    spans = set[Span]()
    for answer in answers:
        text, start = answer["text"], field(answer, "answer_start", int, where)
        if start >= 0 and text and context.startswith(text, start):
            spans.add((start, start + len(text)))
        else:
            report.add("answers_misplaced", name, where)
    return Question(
        id=name,
        text=field(record, "question", str, where).strip(),
        context=context,
        references=tuple(dict.fromkeys(texts)),
        spans=tuple(sorted(spans)),
        document="",
        where=where,
    )
