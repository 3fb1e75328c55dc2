"""Reader of HotpotQA (Yang et al. 2018, https://arxiv.org/abs/1809.09600), official layout.

    [{"_id": ..., "question": ..., "answer": ..., "supporting_facts": [[title, number], ...],
      "context": [[title, [sentence, ...]], ...]}]

in `hotpot_train_v1.1.json` and `hotpot_dev_distractor_v1.json`, or as rows of the hub. The
paragraphs of a question are joined, each one behind its title:

    title
    sentence sentence ...

Files give the text of an answer, not its place. Its mentions in the supporting sentences are right,
or else those in the other sentences of their paragraphs.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.data.parquet import SUFFIX
from longspan.errors import DataError
from longspan.files import file_sha256
from longspan.tasks.questions.encoding import Question, Span, join_passages
from longspan.tasks.questions.json_files import field, load_json, zip_columns
from longspan.tasks.questions.report import Report

URL = "http://curtis.ml.cmu.edu/datasets/hotpot"
FILES = ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json")

Fact = tuple[str, int]  # title of a paragraph, number of a sentence in it

_ANSWERS = ("yes", "no")  # that are no text of a paragraph
_SEPARATOR = "\n\n"  # of joined paragraphs


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Paragraph with a title, in sentences."""

    title: str
    sentences: tuple[str, ...]

    def join(self) -> tuple[str, tuple[int, ...]]:
        """Return the title and the sentences as one text, and the first character of each."""
        return join_passages([f"{self.title}\n", *self.sentences], "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHopQuestion(Question):
    """Question with its paragraphs, the sentences of these, and the supporting ones.

    Attributes:
        paragraphs: paragraphs that the context joins.
        sentences: characters of each of their sentences, in order.
        facts: supporting sentences; those that no paragraph has included.
    """

    paragraphs: tuple[Paragraph, ...]
    sentences: Mapping[Fact, Span]
    facts: tuple[Fact, ...]

    @property
    def answer_type(self) -> str:
        """Type of the answer: yes, no or span."""
        (answer,) = self.references
        return answer.lower() if answer.lower() in _ANSWERS else "span"


def load_records(path: Path) -> dict[str, Any]:
    """Return the questions of a file as published, by their id.

    Raises:
        DataError: the file is missing or malformed, or ids repeat; the message says where.
    """
    records = load_json(path)
    if not isinstance(records, list):
        raise DataError(f"{path}: expected a list of questions, got {type(records).__name__}")
    if not records:
        raise DataError(f"{path} has no question; download it again")
    found: dict[str, Any] = {}
    for number, record in enumerate(records):
        where = f"{path}: question {number}"
        if path.suffix == SUFFIX:
            record = _official(record, where)
        name = field(record, "_id", str, where)
        if name in found:
            raise DataError(f"{where} has the id of an earlier one, {name!r}")
        found[name] = record
    return found


def _official(row: Any, where: str) -> dict[str, Any]:
    """Return a row of the hub as a published record: its lists of parts become lists of pairs."""
    pairs = {}
    for name, part in (("context", "sentences"), ("supporting_facts", "sent_id")):
        found = field(row, name, dict, where)
        rows = zip_columns(found, ("title", part), f"{where}, field {name!r}")
        pairs[name] = [list(pair) for pair in rows]
    return {**row, "_id": field(row, "id", str, where), **pairs}


def read_question(record: Any, where: str, report: Report) -> MultiHopQuestion | None:
    """Return a question, or None if it has no answer or no paragraph.

    Args:
        record: one of `load_records`.
        where: its place, for messages.
        report: receives `without_answer` and `without_paragraph` (questions left out),
            `facts_missing` (supporting sentences that no paragraph has), and `titles_repeated`
            (paragraphs left out, as an earlier one has the title).

    Raises:
        DataError: a field is malformed; the message says where.
    """
    name, answer = field(record, "_id", str, where), record.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        report.add("without_answer", name, where)
        return None
    paragraphs = _read_paragraphs(record, name, where, report)
    if not paragraphs:
        report.add("without_paragraph", name, where)
        return None
    facts = tuple(_read_facts(record, where))
    joined = _join(paragraphs, facts, answer.strip())
    for fact in facts:
        if fact not in joined["sentences"]:
            report.add("facts_missing", name, f"{where}, {fact[0]!r} {fact[1]}")
    return MultiHopQuestion(
        id=name,
        text=field(record, "question", str, where).strip(),
        references=(answer.strip(),),
        document=name,
        where=where,
        facts=facts,
        has_span=answer.strip().lower() not in _ANSWERS,
        **joined,
    )


def select_paragraphs(question: MultiHopQuestion, titles: Collection[str]) -> MultiHopQuestion:
    """Return a question with some of its paragraphs alone, in the order of the file.

    Args:
        question: question.
        titles: titles of the paragraphs to keep; others are ignored.
    """
    kept = [one for one in question.paragraphs if one.title in titles]
    return dataclasses.replace(question, **_join(kept, question.facts, question.references[0]))


def read_selection(path: Path) -> dict[str, list[str]]:
    """Read paragraphs that a first stage has ranked: {"paragraphs": {id: [title, ...]}}.

    Args:
        path: JSON file, or a folder of such files, of different questions.

    Raises:
        DataError: a file is missing or malformed.
    """
    found: dict[str, list[str]] = {}
    for file in _selection_files(path):
        ranked = field(load_json(file), "paragraphs", dict, str(file))
        for name in ranked:
            titles = field(ranked, name, list, str(file))
            if not all(isinstance(title, str) for title in titles):
                raise DataError(f"{file}: {name!r} must have a list of titles")
            found[name] = titles
    return found


def selection_sha256(path: Path) -> str:
    """Return the sha256 of the files of a selection, whatever their names are.

    Raises:
        DataError: a file is missing.
    """
    digests = sorted(file_sha256(file) for file in _selection_files(path))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _selection_files(path: Path) -> list[Path]:
    """Return the files of a selection."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise DataError(
            f"there is no selection {path}; write it with `longspan answers`, for each split"
        )
    return files


def _read_paragraphs(record: Any, name: str, where: str, report: Report) -> list[Paragraph]:
    """Return the paragraphs of a question that have a sentence; the first one of each title."""
    found: dict[str, Paragraph] = {}
    for number, pair in enumerate(field(record, "context", list, where)):
        place = f"{where}, paragraph {number}"
        title, sentences = _read_pair(pair, place, list)
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{place}: sentences must be texts")
        if title in found:
            report.add("titles_repeated", name, place)
        elif any(sentence.strip() for sentence in sentences):
            found[title] = Paragraph(title, tuple(sentences))
    return list(found.values())


def _read_facts(record: Any, where: str) -> Iterator[Fact]:
    """Yield the supporting facts of a question, each one once."""
    pairs = field(record, "supporting_facts", list, where)
    found = (_read_pair(x, f"{where}, fact {number}", int) for number, x in enumerate(pairs))
    yield from dict.fromkeys(found)


def _read_pair(pair: Any, where: str, kind: type) -> tuple[str, Any]:
    """Return a title and what belongs to it."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise DataError(f"{where}: expected a title and a {kind.__name__}, got {pair!r}")
    if not isinstance(pair[0], str) or not isinstance(pair[1], kind):
        raise DataError(f"{where}: expected a title and a {kind.__name__}, got {pair!r}")
    return pair[0], pair[1]


def _join(paragraphs: Sequence[Paragraph], facts: Sequence[Fact], answer: str) -> dict[str, Any]:
    """Return the fields of a question that its paragraphs decide."""
    texts = [one.join() for one in paragraphs]
    context, passages = join_passages([text for text, _ in texts], _SEPARATOR)
    places: dict[Fact, Span] = {}
    for paragraph, first, (_, (_, *starts)) in zip(paragraphs, passages, texts, strict=True):
        for number, sentence in enumerate(paragraph.sentences):
            start = first + starts[number]
            places[paragraph.title, number] = (start, start + len(sentence))
    return {
        "context": context,
        "passages": passages,
        "paragraphs": tuple(paragraphs),
        "sentences": places,
        "spans": tuple(_find_answer(context, answer, places, facts)),
    }


def _find_answer(
    context: str, answer: str, places: Mapping[Fact, Span], facts: Sequence[Fact]
) -> list[Span]:
    """Return the mentions of an answer in the supporting sentences, or else near them."""
    if answer.lower() in _ANSWERS:
        return []
    titles = {title for title, _ in facts}
    near = [fact for fact in places if fact[0] in titles]
    pattern = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
    for chosen in ([fact for fact in facts if fact in places], near):
        spans = {
            match.span() for fact in chosen for match in pattern.finditer(context, *places[fact])
        }
        if spans:
            return sorted(spans)
    return []
