"""Reader and writer of CoNLL-2012 (Pradhan et al. 2012, https://aclanthology.org/W12-4501).

The layout has columns:

    #begin document (nw/wsj/00/wsj_0001); part 000
    nw/wsj/00/wsj_0001   0   0   Pierre   NNP   (TOP(S(NP*   -   -   -   -   (PERSON*   (0
    ...
    #end document

One word a line, an empty line after each sentence. The fourth column is the word, the tenth the
speaker, the last one the coreference: "(3" opens a mention of cluster 3, "3)" closes it, "(3)" is
both, "|" separates several, "-" is none. The files are made from OntoNotes 5 (LDC2013T19), which
is licensed, by the scripts of the shared task.
"""

import dataclasses
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.sources.text import decode_utf8
from longspan.errors import DataError, InputError, MissingSourceError
from longspan.files import explain_read_error, file_sha256, read_file
from longspan.metrics.coreference import Mention

PublishedSplit = Literal["train", "development", "test"]

URL = "https://conll.cemantix.org/2012/data.html"

_SUFFIX = "_gold_conll"
_BEGIN = re.compile(r"#begin document \((.+)\); part (\d+)\s*$")
_END = "#end document"
_WORD, _SPEAKER, _FEWEST = 3, 9, 12  # columns
# Columns between the word and the speaker, and behind the speaker, of documents without such
# annotations: part of speech, parse, lemma, frame, sense; named entity.
_BETWEEN, _BEHIND = ("-", "*", "-", "-", "-"), ("*",)
_SHORT: dict[PublishedSplit, str] = {"train": "train", "development": "dev", "test": "test"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """One part of a document.

    Attributes:
        id: name and part, as in the file.
        sentences: words of each sentence.
        speakers: speaker of each word, in the order of the document; "-" for none.
        clusters: mentions of each entity: the first and last word, counted over the document.
    """

    id: str
    sentences: tuple[tuple[str, ...], ...]
    speakers: tuple[str, ...]
    clusters: tuple[tuple[Mention, ...], ...]

    @property
    def genre(self) -> str:
        """First part of the name, such as "nw" for newswire."""
        return self.id.split("/", 1)[0]


def find(data: Path | None, language: str = "english") -> SourceFiles:
    """Find the files of all three splits.

    Either one file a split, such as `train.english.v4_gold_conll`, or the folders of the task,
    `train/data/english/annotations`, `development/...` and `test/...`.

    Args:
        data: folder of the files, or one above it. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA.
        language: english, chinese or arabic.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, "the files of CoNLL-2012")
    roots = [
        root
        for path in paths
        for folder in usual_folders(path, "conll-2012")
        for root in (folder, folder / "v4" / "data")  # beside v12, of later annotations
    ]
    for root in roots:
        joined = {
            split: tuple(sorted(root.glob(f"{short}.{language}.*{_SUFFIX}")))[:1]
            for split, short in _SHORT.items()
        }
        separate = {
            split: tuple(sorted((root / split).glob(f"data/{language}/annotations/**/*{_SUFFIX}")))
            for split in _SHORT
        }
        for files in (joined, separate):
            if all(files.values()):
                return SourceFiles(form="columns", path=root, files=files)
    raise MissingSourceError(
        f"CoNLL-2012 ({language}) is not here (searched {format_paths(paths)}); it is made from "
        f"OntoNotes 5 (LDC2013T19), see {URL}; put train.{language}.v4_gold_conll and those of dev "
        "and test, or the folders train, development and test, in FOLDER and run `longspan data "
        "build coreference --data FOLDER`"
    )


def checksums(source: SourceFiles) -> dict[str, str]:
    """Return a sha256 for each split: that of the list of those of its files."""
    lists = {
        split: "".join(f"{path.name} {file_sha256(path)}\n" for path in paths)
        for split, paths in source.files.items()
    }
    return {split: hashlib.sha256(text.encode()).hexdigest() for split, text in lists.items()}


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file.

    Raises:
        DataError: the file is missing, truncated or malformed; the message names the line.
        UnreadableError: the system does not read it now.
    """
    try:
        text = decode_utf8(read_file(path), path)
    except OSError as error:
        raise explain_read_error(path, error) from error
    document: _Builder | None = None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {number}"
        if begun := _BEGIN.match(line):
            if document is not None:
                raise DataError(f"{where}: a document begins before {document.id} has ended")
            document = _Builder(f"{begun[1]}_{int(begun[2])}")
        elif document is None:
            if line.strip():
                raise DataError(
                    f"{where}: expected '#begin document (NAME); part N', got {line!r:.60}"
                )
        elif line.startswith(_END):
            yield document.finish(where)
            document = None
        else:
            document.add(line, where)
    if document is not None:
        raise DataError(f"{path} ends within document {document.id}; it is truncated")


def read_word(word: str, language: str = "english") -> str:
    """Return the text of a word, as published models read it (mandarjoshi90/coref, minimize.py).

    A word of Arabic has other forms behind its text, as in "text#form#form"; marks that end a
    sentence of speech have a slash before them.
    """
    if language == "arabic":
        word = word.partition("#")[0] or word
    return word[1:] if word in ("/.", "/?") else word


def format_document(document: Document) -> str:
    """Return a document as columns, which `read_documents` and the reference scorer read.

    At a word, mentions that end there come before those of one word, and these before those that
    begin there, so that mentions of one cluster may share a word. A mention is written once a
    cluster. Annotations that a document does not have are "-" or "*".

    Raises:
        InputError: the id has no part, a word or speaker is no single column, the document has
            another number of speakers than of words, or mentions cannot be written: one is not
            within the document, or two of one cluster overlap without one within the other.
    """
    name, _, part = document.id.rpartition("_")
    if not (name and part.isdecimal()):
        raise InputError(f"the id {document.id!r} has no part; expected NAME_PART, such as nw/1_0")
    words = [word for sentence in document.sentences for word in sentence]
    columns = (*words, *document.speakers, name)
    if wrong := [x for x in columns if len(x.split()) != 1 or x.strip() != x]:
        raise InputError(f"{document.id}: expected text without white space, got {wrong[0]!r:.80}")
    if len(words) != len(document.speakers):
        raise InputError(
            f"{document.id}: expected one speaker for each of {len(words)} words, got "
            f"{len(document.speakers)}"
        )
    marks, place = _format_mentions(document, len(words)), 0
    lines = [f"#begin document ({name}); part {int(part):03d}"]
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            before = (name, str(int(part)), str(number), word, *_BETWEEN)
            after = (document.speakers[place], *_BEHIND, marks[place])
            lines.append("   ".join((*before, *after)))
            place += 1
        lines.append("")
    return "\n".join([*lines, _END, ""])


def _format_mentions(document: Document, count: int) -> list[str]:
    """Return the coreference column of each of `count` words."""
    ends: list[list[str]] = [[] for _ in range(count)]
    single: list[list[str]] = [[] for _ in range(count)]
    starts: list[list[str]] = [[] for _ in range(count)]
    for number, cluster in enumerate(document.clusters):
        mentions = sorted(set(cluster))
        for first, last in mentions:
            if not 0 <= first <= last < count:
                raise InputError(
                    f"{document.id}: mention ({first}, {last}) of cluster {number} is not within "
                    f"the {count} words of the document"
                )
            if first == last:
                single[first].append(f"({number})")
                continue
            starts[first].append(f"({number}")
            ends[last].append(f"{number})")
        for (a, b), (c, d) in itertools.combinations(mentions, 2):
            if a < c < b < d:
                raise InputError(
                    f"{document.id}: mentions ({a}, {b}) and ({c}, {d}) of cluster {number} "
                    "cross, which columns cannot say; remove one of them"
                )
    parts = zip(ends, single, starts, strict=True)
    return ["|".join((*a, *b, *c)) or "-" for a, b, c in parts]


class _Builder:
    """Lines of a document so far."""

    def __init__(self, name: str):
        self.id = name
        self.sentences: list[tuple[str, ...]] = []
        self.words: list[str] = []  # of the sentence
        self.speakers: list[str] = []
        self.open: defaultdict[int, list[int]] = defaultdict(list)  # first words by cluster
        self.clusters: defaultdict[int, list[Mention]] = defaultdict(list)

    def add(self, line: str, where: str) -> None:
        """Add a word, or end the sentence."""
        columns = line.split()
        if not columns:
            self._end_sentence()
            return
        if len(columns) < _FEWEST:
            raise DataError(f"{where}: expected {_FEWEST} columns or more, got {len(columns)}")
        place = len(self.speakers)
        self.words.append(columns[_WORD])
        self.speakers.append(columns[_SPEAKER])
        if columns[-1] == "-":
            return
        for mark in columns[-1].split("|"):
            self._mark(mark, place, where)

    def finish(self, where: str) -> Document:
        """Return the document."""
        self._end_sentence()
        if left := sorted(number for number, firsts in self.open.items() if firsts):
            raise DataError(f"{where}: a mention of cluster {left[0]} of {self.id} is not closed")
        if not self.sentences:
            raise DataError(f"{where}: document {self.id} has no words")
        return Document(
            id=self.id,
            sentences=tuple(self.sentences),
            speakers=tuple(self.speakers),
            clusters=tuple(tuple(sorted(set(x))) for _, x in sorted(self.clusters.items())),
        )

    def _mark(self, mark: str, place: int, where: str) -> None:
        """Open or close a mention at a word."""
        digits = mark.removeprefix("(").removesuffix(")")
        if not digits.isdecimal() or digits == mark:
            raise DataError(f"{where}: the coreference {mark!r} is none of '(N', 'N)' and '(N)'")
        firsts = self.open[int(digits)]
        if mark.startswith("("):
            firsts.append(place)
        if mark.endswith(")"):
            if not firsts:
                raise DataError(f"{where}: {mark!r} closes a mention that was not opened")
            self.clusters[int(digits)].append((firsts.pop(), place))

    def _end_sentence(self) -> None:
        if self.words:
            self.sentences.append(tuple(self.words))
            self.words = []
