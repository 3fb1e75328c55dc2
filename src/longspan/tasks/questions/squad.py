"""SQuAD and XQuAD: "Which NFL team won Super Bowl 50?"; mark the answer in the text.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016
(https://arxiv.org/abs/1606.05250); Artetxe et al., "On the Cross-lingual Transferability of
Monolingual Representations", 2020 (https://arxiv.org/abs/1910.11856). With all paragraphs of an
article joined, the documents are long. Files are in the format of SQuAD 1.1:

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

`answer_start` counts characters. The hub has a row for each question, with its title and context.
https://rajpurkar.github.io/SQuAD-explorer
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from longspan.config import setting, settings
from longspan.data.json_files import (
    field,
    find_json_files,
    load_json,
    zip_columns,
)
from longspan.data.own_splits import TEST, VALIDATION
from longspan.data.parquet import SUFFIX
from longspan.data.source_files import SourceFiles
from longspan.errors import DataError, MissingSourceError
from longspan.metrics import Metric, get_metric
from longspan.metrics.answers import (
    EXACT_MATCH_MLQA,
    TOKEN_F1_MLQA,
    normalize_answer,
    normalize_squad_answer,
)
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions.encoding import Question, Span, join_passages
from longspan.tasks.questions.question_data import (
    QuestionOptions,
    QuestionTask,
    Share,
    assign_questions,
)
from longspan.tasks.registry import register
from longspan.tasks.source_report import Report
from longspan.wording import counted

Extent = Literal["paragraph", "article"]

PASSAGE_SEPARATOR = "\n"  # of joined paragraphs


def read_squad(path: Path, report: Report, extent: Extent = "paragraph") -> list[Question]:
    """Return the questions with an answer of a file, plain or gzip, or of the parquet of a split.

    Args:
        path: JSON file, or the first parquet file of a split.
        report: receives `without_answer`: questions left out, as they have none (SQuAD 2.0 has
            such); and `answers_misplaced`: answers that are not at their place in the context.
            They count as references, and mark no token.
        extent: context of a question: its paragraph, or all paragraphs of its article, joined.

    Raises:
        DataError: the file is missing, malformed or without questions; the message says where.
    """
    return parse_squad(_load(path), path, report, extent)


def parse_squad(
    content: Any, path: Path, report: Report, extent: Extent = "paragraph"
) -> list[Question]:
    """Return the questions with an answer of the content of a JSON file; see `read_squad`.

    Raises:
        DataError: it is malformed or without questions; the message says where in the file.
    """
    report.counts.update(without_answer=0, answers_misplaced=0)
    questions = [
        question
        for number, article in enumerate(field(content, "data", list, str(path)))
        for question in _read_article(article, f"{path}: article {number}", extent, report)
    ]
    if not questions:
        raise DataError(f"{path} has no question with an answer")
    repeated = [name for name, n in Counter(one.id for one in questions).items() if n > 1]
    if repeated:
        raise DataError(
            f"{path} has {len(repeated)} ids of several questions, such as {repeated[0]!r}"
        )
    return questions


def _load(path: Path) -> Any:
    """Return the content of a file; rows of questions become articles and paragraphs."""
    content = load_json(path)
    if path.suffix != SUFFIX:
        return content
    return group_rows(content, path)


def group_rows(rows: Iterable[Any], path: Path) -> dict[str, list[Any]]:
    """Return the content of a JSON file of some rows of questions.

    Args:
        rows: questions with `title`, `context`, and `answers` as on the hub: an object with the
            lists `text` and `answer_start`.
        path: file of the rows, for messages.

    Raises:
        DataError: a row lacks a field; the message says where.
    """
    articles: dict[str, dict[str, list[Any]]] = {}
    for number, row in enumerate(rows):
        where = f"{path}: row {number}"
        title, context = (field(row, name, str, where) for name in ("title", "context"))
        lists = field(row, "answers", dict, where)
        pairs = zip_columns(lists, ("text", "answer_start"), f"{where}, field 'answers'")
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        paragraphs = articles.setdefault(title, {})
        paragraphs.setdefault(context, []).append({**row, "answers": answers})
    return {
        "data": [
            {"title": title, "paragraphs": [{"context": x, "qas": y} for x, y in contexts.items()]}
            for title, contexts in articles.items()
        ]
    }


def _read_article(article: Any, where: str, extent: Extent, report: Report) -> Iterator[Question]:
    paragraphs = field(article, "paragraphs", list, where)
    places = [f"{where}, paragraph {number}" for number in range(len(paragraphs))]
    contexts = [field(x, "context", str, y) for x, y in zip(paragraphs, places, strict=True)]
    # Files of one's own may lack titles.
    document = str(article.get("title", where))
    whole, firsts = join_passages(contexts, PASSAGE_SEPARATOR)
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


Language = Literal["en", "ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh", "other"]

_FILE = re.compile(r"xquad\.(\w+)\.json(?:\.gz)?")
_METRICS = ("token_f1", "exact_match")
_OTHER_METRICS = (TOKEN_F1_MLQA.name, EXACT_MATCH_MLQA.name)


@settings
class AnswerOptions(QuestionOptions):
    """Encoding, context and language."""

    context: Extent = setting(
        "document of a question: its paragraph, or all paragraphs of its article", "paragraph"
    )
    language: Language = setting(
        "language of the answers: en: scored as in the evaluation of SQuAD; any other: as in that "
        "of MLQA, with the articles of the language, and scripts without spaces in characters",
        "en",
    )


@settings
class SquadOptions(AnswerOptions):
    """Encoding, context, and the share of articles that are held out."""

    validation: Share = setting("share of the training articles that validation holds out", 0.1)


@register
class Squad(QuestionTask):
    """Spans of Wikipedia's paragraphs or articles, SQuAD 1.1."""

    Options: ClassVar[type] = SquadOptions
    options: SquadOptions
    id_field = "id"
    files: ClassVar[tuple[str, ...]] = ("train-v1.1.json", "dev-v1.1.json")
    hub_splits: ClassVar[tuple[str, ...]] = ("train", "validation")
    info = TaskInfo(
        name="squad",
        title="SQuAD 1.1",
        summary="Mark the answer to a question in a paragraph, or in a whole article.",
        source="SQuAD 1.1, Rajpurkar et al. 2016, https://rajpurkar.github.io/SQuAD-explorer",
        license="CC BY-SA 4.0",
        num_classes=8,
        metrics=_METRICS,
        head="question_answering",
        notes=(
            "Validation is held out of the training articles; test is the published development "
            "set, since the test set is not public. Answers are scored as in the official "
            "evaluation, against all reference answers; those in another language than English "
            "(`language`) as in the evaluation of MLQA."
        ),
    )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Scores of the rule of SQuAD for English, of MLQA for other languages."""
        is_english = self.options.language == "en"
        return tuple(map(get_metric, _METRICS if is_english else _OTHER_METRICS))

    def normalize(self, answer: str) -> str:
        """Return an answer as the evaluation of its language compares it."""
        language = self.options.language
        return (
            normalize_squad_answer(answer)
            if language == "en"
            else normalize_answer(answer, language)
        )

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of questions, of all splits."""
        return find_json_files(data, self.files, self.info.name, "squad", self.hub_splits)

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        train, test = self.find_source(data).firsts.values()
        questions = read_squad(train, reports["train"], self.options.context)
        tested = read_squad(test, reports["test"], self.options.context)
        if shared := {x.document for x in questions} & {x.document for x in tested}:
            raise DataError(
                f"{train} and {test} share {counted(len(shared), 'article|articles')}, such as "
                f"{min(shared)!r}, which those of SQuAD do not; import other files by `longspan "
                "data import questions`, which holds documents out"
            )
        yield from _assign(train, questions, {VALIDATION: self.options.validation})
        yield from (("test", question) for question in tested)


@settings
class XquadOptions(SquadOptions):
    """Encoding, context, and the shares of articles that are held out."""

    test: Share = setting("share of the articles that test holds out", 0.2)


@register
class Xquad(Squad):
    """Spans of Wikipedia's paragraphs or articles, XQuAD in one of its languages."""

    Options: ClassVar[type] = XquadOptions
    options: XquadOptions
    hub_splits = ()  # which lack the articles
    info = dataclasses.replace(
        Squad.info,
        name="xquad",
        title="XQuAD",
        source="XQuAD, Artetxe et al. 2020, https://github.com/google-deepmind/xquad",
        notes=(
            "1,190 questions about 48 articles of the development set of SQuAD 1.1, in English and "
            "in translations (`language`). It is published for evaluation alone; here its "
            "articles are split by their sha256, so scores are not comparable with published "
            "ones. English answers are scored as in the evaluation of SQuAD, others as in that of "
            "MLQA."
        ),
    )

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the file of questions in the language.

        Raises:
            DataError: it is missing, or its name is that of another language.
        """
        language = self.options.language
        file_name = f"xquad.{language}.json"
        try:
            files = find_json_files(data, (file_name,), self.info.name, "squad")
        except MissingSourceError as error:
            names = [] if data is None else sorted(x.name for x in data.glob("xquad.*.json"))
            languages = [x for name in names if (x := name.split(".")[1]) in get_args(Language)]
            if not languages:
                raise
            raise DataError(
                f"expected {file_name} in {data}, got {', '.join(names)}; set the option "
                f"language={languages[0]} of {self.info.name}"
            ) from error
        match = _FILE.fullmatch(files.paths[0].name)
        file_language = match and (match[1] if match[1] in get_args(Language) else "other")
        if file_language and file_language != language:
            raise DataError(
                f"expected questions of language={language}, got {files.paths[0]}; set the option "
                f"language={file_language} of {self.info.name}"
            )
        return files

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        (path,) = self.find_source(data).paths
        questions = read_squad(path, reports["train"], self.options.context)
        shares = {VALIDATION: self.options.validation, TEST: self.options.test}
        yield from _assign(path, questions, shares)


def _assign(
    path: Path, questions: Sequence[Question], shares: dict[int, float]
) -> Iterator[tuple[Split, Question]]:
    """Yield questions with their split, by the sha256 of their article.

    Raises:
        DataError: there are fewer articles than splits.
    """
    keys = [question.document for question in questions]
    if (count := len(set(keys))) <= len(shares):
        held_out = ", ".join(SPLITS[split] for split in shares)
        raise DataError(
            f"{path} has {counted(count, 'article|articles')}, by their titles; expected "
            f"{1 + len(shares)} or more, so that {held_out} can be held out"
        )
    yield from zip(assign_questions(keys, shares), questions, strict=True)
