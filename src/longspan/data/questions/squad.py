"""Reader of files in the format of SQuAD 1.1 (Rajpurkar et al. 2016), such as XQuAD's.

    {"data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": ...}]}]}]}]}

`answer_start` counts characters. https://rajpurkar.github.io/SQuAD-explorer
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from longspan.data.questions.json_files import field, load_json
from longspan.data.questions.question import Question, Span
from longspan.data.source_files import SourceFiles, format_paths, search_paths
from longspan.errors import DataError

Extent = Literal["paragraph", "article"]

_SEPARATOR = "\n"  # of joined paragraphs


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFiles(SourceFiles):
    """Files of one copy, in the order in which they are asked for."""

    found: tuple[Path, ...]

    @property
    def paths(self) -> list[Path]:
        """Files."""
        return list(self.found)

    @property
    def origin(self) -> dict[str, Any]:
        """Names, and sha256 of the content."""
        return {"form": "squad", "sha256": self.checksums()}


def find_squad(data: Path | None, names: Sequence[str], task: str) -> SquadFiles:
    """Find files in the format of SQuAD, plain or with the suffix .gz.

    Args:
        data: folder of the files, or the file itself if there is one name. None: $LONGSPAN_DATA,
            then $LONGSPAN_TEST_DATA. In a folder, its subfolders `qa` and that of the task's name
            are searched too.
        names: names of the files.
        task: name of the task, for the message.

    Raises:
        DataError: a file is missing; the message says how to pass it.
    """
    paths = search_paths(data, f"the files {' and '.join(names)}")
    for path in paths:
        if path.is_file() and len(names) == 1:
            return SquadFiles(found=(path,))
        for folder in (path, path / task, path / "qa"):
            found = [_plain_or_gzip(folder / name) for name in names]
            if all(found):
                return SquadFiles(found=tuple(one for one in found if one))
    raise DataError(
        f"{' and '.join(names)} are not here (searched {format_paths(paths)}); download them to "
        f"FOLDER and run `longspan data build {task} --data FOLDER`"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadFile:
    """Questions of a file in its order, and counts of what is wrong with it.

    Attributes:
        questions: questions with an answer.
        counts: `without_answer`: questions left out, as they have none (SQuAD 2.0 has such);
            `answers_misplaced`: answers that are not at their place in the context. They count as
            references, and mark no token.
    """

    questions: list[Question]
    counts: dict[str, int]


def read_squad(path: Path, extent: Extent = "paragraph") -> SquadFile:
    """Read a file, plain or gzip.

    Args:
        path: JSON file.
        extent: context of a question: its paragraph, or all paragraphs of its article, joined.

    Raises:
        DataError: the file is missing, malformed or without questions; the message says where.
    """
    counts = Counter({"without_answer": 0, "answers_misplaced": 0})
    questions = [
        question
        for number, article in enumerate(field(load_json(path), "data", list, str(path)))
        for question in _read_article(article, f"{path}: article {number}", extent, counts)
    ]
    if not questions:
        raise DataError(f"{path} has no question with an answer")
    repeated = [name for name, n in Counter(one.id for one in questions).items() if n > 1]
    if repeated:
        raise DataError(
            f"{path} has {len(repeated)} ids of several questions, such as {repeated[0]!r}"
        )
    return SquadFile(questions=questions, counts=dict(counts))


def _read_article(
    article: Any, where: str, extent: Extent, counts: Counter[str]
) -> Iterator[Question]:
    paragraphs = field(article, "paragraphs", list, where)
    places = [f"{where}, paragraph {number}" for number in range(len(paragraphs))]
    contexts = [field(x, "context", str, y) for x, y in zip(paragraphs, places, strict=True)]
    # Files of one's own may lack titles.
    document = str(article.get("title", where))
    joined, first = _SEPARATOR.join(contexts), 0
    for paragraph, place, context in zip(paragraphs, places, contexts, strict=True):
        shift = first if extent == "article" else 0
        for number, record in enumerate(field(paragraph, "qas", list, place)):
            question = _read_question(record, f"{place}, question {number}", context, counts)
            if question is not None:
                yield dataclasses.replace(
                    question,
                    context=joined if extent == "article" else context,
                    spans=tuple((shift + a, shift + b) for a, b in question.spans or ()),
                    document=document,
                )
        first += len(context) + len(_SEPARATOR)


def _read_question(record: Any, where: str, context: str, counts: Counter[str]) -> Question | None:
    """Return a question with the places of its answers, or None if it has no answer."""
    answers = field(record, "answers", list, where)
    texts = [text for answer in answers if (text := field(answer, "text", str, where))]
    if not texts:
        counts["without_answer"] += 1
        return None
    spans = set[Span]()
    for answer in answers:
        text, start = answer["text"], field(answer, "answer_start", int, where)
        if start >= 0 and text and context.startswith(text, start):
            spans.add((start, start + len(text)))
        else:
            counts["answers_misplaced"] += 1
    return Question(
        id=str(record.get("id", where)),
        text=field(record, "question", str, where).strip(),
        context=context,
        references=tuple(dict.fromkeys(texts)),
        spans=tuple(sorted(spans)),
        document="",
    )


def _plain_or_gzip(path: Path) -> Path | None:
    candidates = (path, path.with_name(f"{path.name}.gz"))
    return next((one for one in candidates if one.is_file()), None)
