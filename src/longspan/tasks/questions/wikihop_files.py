"""Reader of WikiHop (Welbl et al. 2018, https://arxiv.org/abs/1710.06481), official layout.

    wikihop/{train,dev}.json, and wikihop/{train,dev}.masked.json

A file is a list of questions: a relation and an entity, candidate answers of which one is right,
and paragraphs of Wikipedia ("supports"), several of which are needed to find it. In the masked
files, candidates are placeholders such as ___MASK12___ wherever they occur.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.errors import DataError, MissingSourceError
from longspan.tasks.questions.json_files import field, load_json

Part = Literal["train", "dev"]

URL = "https://qangaroo.cs.ucl.ac.uk"

_FOLDERS = ("wikihop", "qangaroo_v1.1/wikihop")
# The texts are tokenized in part. The published code of Longformer joins these again.
_SPACED = {" .": ".", " ,": ",", " !": "!", " ?": "?", "( ": "(", " )": ")", " 's": "'s"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateQuestion:
    """Question with candidate answers.

    Attributes:
        id: identifier of the question in its data set.
        text: the question: a relation, such as "country_of_citizenship", and an entity.
        candidates: answers to choose from.
        documents: texts that tell the right one.
        answer: index of the right candidate.
    """

    id: str
    text: str
    candidates: tuple[str, ...]
    documents: tuple[str, ...]
    answer: int

    @property
    def relation(self) -> str:
        """First word of the question."""
        return self.text.split(" ", 1)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiHopFiles(SourceFiles):
    """One unpacked copy of WikiHop, with entities as they are or masked."""

    root: Path
    masked: bool

    @property
    def paths(self) -> list[Path]:
        """Files of the questions."""
        return [self.questions_file("train"), self.questions_file("dev")]

    @property
    def origin(self) -> dict[str, Any]:
        """Names and sizes of the files."""
        return {"form": "folder", "bytes": self.sizes()}

    def questions_file(self, part: Part) -> Path:
        """Return the file of a part."""
        return self.root / f"{part}{'.masked' if self.masked else ''}.json"


def find(data: Path | None, *, masked: bool = False) -> WikiHopFiles:
    """Find an unpacked copy.

    Args:
        data: the folder of the files, or one above it. None: $LONGSPAN_DATA, then
            $LONGSPAN_TEST_DATA.
        masked: take the files in which candidates are placeholders.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, "the unpacked files of WikiHop")
    for path in paths:
        folders = usual_folders(path, "wikihop")
        for root in (*folders, *(one / name for one in folders for name in _FOLDERS)):
            found = WikiHopFiles(root=root, masked=masked)
            if all(one.is_file() for one in found.paths):
                return found
    raise MissingSourceError(
        f"WikiHop is not here (searched {format_paths(paths)}); download qangaroo_v1.1.zip from "
        f"{URL}, and run `longspan data build wikihop --data FILE`"
    )


def read_questions(path: Path) -> Iterator[CandidateQuestion]:
    """Yield the questions of a file.

    Raises:
        DataError: the file is missing or malformed, or an answer is no candidate; the message says
            where.
    """
    content = load_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of questions, got {type(content).__name__}")
    if not content:
        raise DataError(f"{path} has no question; download it again")
    for number, record in enumerate(content):
        yield _read_question(record, f"{path}: question {number}")


def join_punctuation(text: str) -> str:
    """Return a text without spaces before punctuation and without repeated white space."""
    for spaced, joined in _SPACED.items():
        text = text.replace(spaced, joined)
    return " ".join(text.split())


def _read_question(record: Any, where: str) -> CandidateQuestion:
    name = field(record, "id", str, where)
    candidates = _texts(record, "candidates", where)
    answer = join_punctuation(field(record, "answer", str, where))
    if answer not in candidates:
        raise DataError(f"{where} ({name}): the answer {answer!r} is none of the candidates")
    return CandidateQuestion(
        id=name,
        text=join_punctuation(field(record, "query", str, where)),
        candidates=candidates,
        documents=_texts(record, "supports", where),
        answer=candidates.index(answer),
    )


def _texts(record: Any, name: str, where: str) -> tuple[str, ...]:
    texts = field(record, name, list, where)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: field {name!r} must be a list of texts, got {texts!r:.80}")
    return tuple(map(join_punctuation, texts))
