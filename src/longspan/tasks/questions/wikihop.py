"""WikiHop: "country_of_citizenship ada lovelace"; choose the answer that several texts imply.

Welbl et al., "Constructing Datasets for Multi-hop Reading Comprehension Across Documents", 2018
(https://arxiv.org/abs/1710.06481). Question, candidates and documents are one text, as in Beltagy
et al., "Longformer", 2020 (https://arxiv.org/abs/2004.05150), section 6.1 and appendix D. Official
layout:

    wikihop/{train,dev}.json, and wikihop/{train,dev}.masked.json

A file is a list of questions: a relation and an entity, candidate answers of which one is right,
and paragraphs of Wikipedia ("supports"), several of which are needed to find it. In the masked
files, candidates are placeholders such as ___MASK12___ wherever they occur.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.json_files import field, load_list
from longspan.data.own_splits import VALIDATION
from longspan.data.sampling import random_stream
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.store import Examples
from longspan.errors import DataError, MissingSourceError, OptionError
from longspan.shapes import Float, Int
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split
from longspan.tasks.batching import pad_windows, text_inputs
from longspan.tasks.example_writer import ExampleWriter, load_details
from longspan.tasks.grouping import Grouping
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.pieces import PieceTask, PieceVocabulary, vocabulary_setting
from longspan.tasks.questions.candidates import (
    MARKERS,
    CandidateEncoder,
    Parts,
    Windows,
    min_length,
    prefix_length,
    shuffle_parts,
)
from longspan.tasks.questions.question_data import Share, assign_questions
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule

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
        candidates: answers to choose from, as published: an official evaluation compares them.
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

    @property
    def details(self) -> dict[str, Any]:
        """Id, question, relation and candidates, as stored."""
        return {
            "id": self.id,
            "question": self.text,
            "relation": self.relation,
            "candidates": self.candidates,
        }


def find(data: Path | None, *, masked: bool = False) -> SourceFiles:
    """Find an unpacked copy: the files of train and dev.

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
            suffix = ".masked.json" if masked else ".json"
            files = {part: (root / f"{part}{suffix}",) for part in ("train", "dev")}
            if all(path.is_file() for (path,) in files.values()):
                return SourceFiles(form="folder", path=root, files=files)
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
    for number, record in enumerate(load_list(path)):
        yield _read_question(record, f"{path}: question {number}")


def join_punctuation(text: str) -> str:
    """Return a text without spaces before punctuation and without repeated white space."""
    for spaced, joined in _SPACED.items():
        text = text.replace(spaced, joined)
    return " ".join(text.split())


def _read_question(record: Any, where: str) -> CandidateQuestion:
    name = field(record, "id", str, where)
    candidates = _texts(record, "candidates", where)
    answer = field(record, "answer", str, where)
    if answer not in candidates:
        raise DataError(f"{where} ({name}): the answer {answer!r} is none of the candidates")
    return CandidateQuestion(
        id=name,
        text=join_punctuation(field(record, "query", str, where)),
        candidates=candidates,
        documents=tuple(map(join_punctuation, _texts(record, "supports", where))),
        answer=candidates.index(answer),
    )


def _texts(record: Any, name: str, where: str) -> tuple[str, ...]:
    texts = field(record, name, list, where)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: field {name!r} must be a list of texts, got {texts!r:.80}")
    return tuple(texts)


GlobalTokens = Literal["candidates", "boundaries", "first", "none"]
_MOST_CANDIDATES = 79  # of a published question
_MOST_BOUNDARIES = 64  # documents of a window that may be marked; published questions have fewer
_ABSENT = -1  # id of padding; position of a candidate that an example does not have
_SHUFFLING = 1  # purpose of the random numbers of a batch
_LABELS = ("one window", "several windows", "cut")
_SHOWN = 400  # characters of the documents


@settings
class WikiHopOptions:
    """Encoding of questions, windows, global tokens, and the held-out share."""

    length: Length = setting("tokens of a window", 4096, in_data=False)
    windows: Length = setting(
        "maximum windows of an example: documents that exceed the length are read in several, each "
        "with question and candidates; further documents are cut",
        4,
        in_data=False,
    )
    candidates: Annotated[int, Field(ge=2, le=1 << 12)] = setting(
        "maximum candidates of a question", _MOST_CANDIDATES, in_data=False
    )
    vocabulary: PieceVocabulary = vocabulary_setting()
    masked: bool = setting("replace candidates by placeholders, as in the masked files", False)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: candidates: all of question and candidates; "
        "boundaries: those, and the first one of each document (of 64 in a window at most); first: "
        "the first one; none",
        "candidates",
        in_data=False,
    )
    shuffle: bool = setting(
        "shuffle candidates and documents of training examples", True, in_data=False
    )
    validation: Share = setting("share of the training questions that validation holds out", 0.1)

    def __post_init__(self) -> None:
        """Check that a window has room for the candidates and a document.

        Raises:
            OptionError: it has none.
        """
        if self.length < (least := min_length(self.candidates)):
            raise OptionError(
                f"length={self.length} leaves no room for {self.candidates} candidates and a "
                f"document; use length={least} or more, or fewer candidates"
            )


def _predict_by_relation(train: Examples, examples: Examples) -> np.ndarray:
    """Return the candidate that is most often right in training for the question's relation.

    The baseline "majority candidate per query type" of Welbl et al., table 5; of equally frequent
    candidates the first one.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in range(len(train)):
        details = load_details(train, row)
        counts[details["relation"]][details["candidates"][int(train.labels[row])]] += 1
    predictions = []
    for row in range(len(examples)):
        details = load_details(examples, row)
        frequency = [counts[details["relation"]][name] for name in details["candidates"]]
        predictions.append(int(np.argmax(frequency)))
    return np.array(predictions)


def _count(sizes: list[tuple[int, int]]) -> dict[str, int]:
    """Return the number of questions, and the most candidates and documents of one."""
    candidates, documents = zip(*sizes, strict=True)
    return {
        "questions": len(sizes),
        "most_candidates": max(candidates),
        "most_documents": max(documents),
    }


_BY_RELATION = Rule(
    name="most frequent candidate",
    summary="the candidate that is most often right in training for the same relation",
    predict=_predict_by_relation,
)


@register
class WikiHop(PieceTask):
    """Answers of questions among candidates, implied by several documents."""

    Options = WikiHopOptions
    options: WikiHopOptions
    rules = (_BY_RELATION,)
    info = TaskInfo(
        name="wikihop",
        version=2,
        title="WikiHop",
        summary="Choose the answer to a question among candidates, from several documents.",
        source=f"QAngaroo 1.1, Welbl et al. 2018, {URL}",
        license="CC BY-SA 3.0",
        metrics=("accuracy",),
        head="candidates",
        published=published_scores("wikihop"),
        notes=(
            "Validation is held out of the training questions; test is the published development "
            "set, on which papers report, since the answers of the test set are not public. The "
            "papers select the checkpoint on it, too; here the checkpoint is selected on "
            "validation. Options of length, windows, global tokens and shuffling do not change "
            "the examples, so scores under all of them compare. Slices of a score say which "
            "questions were read whole, in several windows, or cut."
        ),
    )

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Windows of a text, and candidates."""
        windows, candidates = self.options.windows, self.options.candidates
        return {"input_ids": (windows, self.length), "candidate_positions": (candidates,)}

    @property
    def vocab_size(self) -> int:
        """Number of token ids, those of special tokens and markers included."""
        return self._encoder.vocab_size

    @property
    def num_added_tokens(self) -> int:
        """Number of markers, whose ids are behind those of the tokenizer."""
        return len(MARKERS)

    @property
    def num_classes(self) -> int:
        """Maximum number of candidates."""
        return self.options.candidates

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens in a window."""
        prefix = prefix_length(self.length)
        longest = {
            "candidates": prefix,
            "boundaries": min(self.length, prefix + _MOST_BOUNDARIES),
            "first": 1,
            "none": 0,
        }
        return longest[self.options.global_tokens]

    def majority_baseline(self, split: Split, rows: np.ndarray | None = None) -> float | None:
        """Return None: the number of a candidate in its list says nothing."""
        return None

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the files of train and dev."""
        return find(data, masked=self.options.masked)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the questions, whole, one at a time."""
        files, encoder = self.find_source(data), self._encoder
        writers = {
            split: ExampleWriter(scratch / split, labels=np.uint16, tokens=encoder.dtype)
            for split in SPLITS
        }
        sizes: dict[Split, list[tuple[int, int]]] = {split: [] for split in SPLITS}
        shares = {"train": {VALIDATION: self.options.validation}, "dev": {}}
        for part, path in files.firsts.items():
            questions = list(read_questions(path))
            splits = assign_questions([question.text for question in questions], shares[part])
            for number, (question, split) in enumerate(zip(questions, splits, strict=True)):
                if number % 100 == 0:
                    progress(f"encoding WikiHop ({part})", number, len(questions))
                candidates = [join_punctuation(text) for text in question.candidates]
                stored = encoder.store(question.text, candidates, question.documents)
                writers[split].add(question.answer, question.details, tokens=stored)
                sizes[split].append((len(question.candidates), len(question.documents)))
        return BuildOutput(
            splits={split: writer.examples() for split, writer in writers.items()},
            facts={
                "source_sha256": files.checksums(),
                "questions": {split: _count(x) for split, x in sizes.items()},
                **encoder.tokenizer.facts,
            },
        )

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch of windows, with candidates and global tokens.

        Training examples are shuffled if the options say so.

        Raises:
            DataError: a question has more candidates than the options allow, or a row has changed
                on disk.
        """
        self._check_candidates()
        examples.check(rows)
        labels = examples.labels[rows].astype(np.int64)
        all_parts = [self._parts(examples, row) for row in rows.tolist()]
        if draw is not None and self.options.shuffle:
            stream = random_stream(*draw, _SHUFFLING)
            shuffled = [
                shuffle_parts(parts, int(label), stream)
                for parts, label in zip(all_parts, labels, strict=True)
            ]
            all_parts, labels = [x for x, _ in shuffled], np.array([y for _, y in shuffled])
        windows = [self._windows(parts) for parts in all_parts]
        targets = torch.from_numpy(labels)
        return Batch(inputs=self._pad(windows), targets=targets, rows=torch.from_numpy(rows))

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by what the model reads: one window, several, or not all of the documents."""
        group = []
        for row in range(len(examples)):
            windows = self._windows(self._parts(examples, row))
            group.append(2 if windows.is_cut else min(1, len(windows.texts) - 1))
        return [Grouping(name="read", labels=_LABELS, group=np.array(group))]

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B C"],
        targets: Int[Tensor, " B"],
    ) -> dict[str, str]:
        """Return the best candidate of each question, by its official id."""
        details = [self.load_details(split, row) for row in rows.tolist()]
        best = zip(details, logits.argmax(1).tolist(), strict=True)
        return {example["id"]: example["candidates"][number] for example, number in best}

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        symbols = self._encoder.symbols
        return [symbols[token] for token in ids.tolist()]

    def show(self, split: Split, row: int) -> str:
        """Return the question, its candidates, the beginning of the documents, and the answer."""
        stored, label = self._example(split, row)
        details = self.load_details(split, row)
        names = details["candidates"]
        decode = self.tokenizer.decode
        documents = [decode(ids).strip() for ids in self._encoder.load(stored).documents]
        shown = " | ".join(documents)[:_SHOWN]
        return f"{details['question']} ({', '.join(names)}) | {shown} = {names[label]}"

    @functools.cached_property
    def _encoder(self) -> CandidateEncoder:
        return CandidateEncoder(self.tokenizer)

    def _parts(self, examples: Examples, row: int) -> Parts:
        """Return the tokens of a question."""
        return self._encoder.load(examples.tokens[row])

    def _check_candidates(self) -> None:
        """Refuse a data set of which a question has more candidates than the options allow.

        Raises:
            DataError: there is one.
        """
        most = max(counts["most_candidates"] for counts in self.facts["questions"].values())
        if most > self.options.candidates:
            raise DataError(
                f"a question of {self.source} has {most} candidates, "
                f"candidates={self.options.candidates} are allowed; set task.candidates={most}"
            )

    def _pad(self, all_windows: list[Windows]) -> dict[str, Tensor]:
        """Return windows, as wide as the longest one, rounded up, and their candidates."""
        ids = pad_windows([windows.texts for windows in all_windows], self.length, _ABSENT)
        positions = np.full((len(all_windows), self.options.candidates), _ABSENT, np.int64)
        for line, windows in zip(positions, all_windows, strict=True):
            line[: len(windows.positions)] = windows.positions
        is_real = ids != _ABSENT
        inputs = text_inputs(torch.from_numpy(ids.clip(min=0)), is_real)
        inputs["candidate_positions"] = torch.from_numpy(positions)
        if self.options.global_tokens != "none":
            is_global = self._global_tokens(all_windows, is_real)
            inputs["global_attention_mask"] = torch.from_numpy(is_global)
        return inputs

    def _global_tokens(self, all_windows: list[Windows], is_real: np.ndarray) -> np.ndarray:
        """Return which tokens of windows are global, of the real ones, (B, W, T)."""
        choice = self.options.global_tokens
        prefixes = [1 if choice == "first" else windows.num_prefix for windows in all_windows]
        mask = is_real & (np.arange(is_real.shape[2]) < np.array(prefixes)[:, None, None])
        if choice == "boundaries":
            for row, windows in enumerate(all_windows):
                for number, places in enumerate(windows.boundaries):
                    mask[row, number, places[:_MOST_BOUNDARIES]] = True
        return mask

    def _windows(self, parts: Parts) -> Windows:
        return self._encoder.make_windows(parts, self.length, self.options.windows)
