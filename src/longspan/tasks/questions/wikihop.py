"""WikiHop: "country_of_citizenship ada lovelace"; choose the answer that several texts imply.

Welbl et al., "Constructing Datasets for Multi-hop Reading Comprehension Across Documents", 2018
(https://arxiv.org/abs/1710.06481). Question, candidates and documents are one text, as in Beltagy
et al., "Longformer", 2020 (https://arxiv.org/abs/2004.05150), section 6.1 and appendix D.
"""

import functools
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from longspan.config import Length, setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.own_splits import VALIDATION, assign_splits
from longspan.data.store import Examples
from longspan.errors import DataError, OptionError
from longspan.shapes import Float, Int
from longspan.tasks.base import SPLITS, Batch, ProgressCallback, Split, Task
from longspan.tasks.grouping import Grouping
from longspan.tasks.info import Published, TaskInfo
from longspan.tasks.pieces import (
    PieceVocabulary,
    identify_pieces,
    load_pieces,
    vocabulary_setting,
)
from longspan.tasks.questions import wikihop_files as wikihop
from longspan.tasks.questions.answers import Share
from longspan.tasks.questions.candidate_scores import (
    MOST_BOUNDARIES,
    CandidateWriter,
    GlobalTokens,
    collate_windows,
    load_details,
    shuffle_parts,
)
from longspan.tasks.questions.candidates import (
    MARKERS,
    CandidateEncoder,
    Parts,
    Windows,
    min_length,
    prefix_length,
)
from longspan.tasks.questions.wikihop_files import Part
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule

MOST_CANDIDATES = 79  # of a published question
_SHUFFLING = 1  # purpose of the random numbers of a batch
_LABELS = ("one window", "several windows", "cut")
_SHOWN = 400  # characters of the documents
# Options that change neither the examples nor their order: scores under all of them compare.
_NOT_IN_DATA = ("length", "windows", "candidates", "global_tokens", "shuffle")
_TABLE = "Beltagy et al. 2020, Longformer"


@settings
class WikiHopOptions:
    """Encoding of questions, windows, global tokens, and the held-out share."""

    length: Length = setting("tokens of a window", 4096)
    windows: Length = setting(
        "maximum windows of an example: documents that exceed the length are read in several, each "
        "with question and candidates; further documents are cut",
        4,
    )
    candidates: Annotated[int, Field(ge=2, le=1 << 12)] = setting(
        "maximum candidates of a question", MOST_CANDIDATES
    )
    vocabulary: PieceVocabulary = vocabulary_setting()
    masked: bool = setting("replace candidates by placeholders, as in the masked files", False)
    global_tokens: GlobalTokens = setting(
        "global tokens, for mechanisms that have such: candidates: all of question and candidates; "
        "boundaries: those, and the first one of each document (of 64 in a window at most); first: "
        "the first one; none",
        "candidates",
    )
    shuffle: bool = setting("shuffle candidates and documents of training examples", True)
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


def predict_by_relation(train: Examples, examples: Examples) -> np.ndarray:
    """Return the candidate that is most often right in training for the question's relation.

    The baseline "majority candidate per query type" of Welbl et al., table 5; of equally frequent
    candidates the first one.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in range(len(train)):
        known = load_details(train, row)
        counts[known["relation"]][known["candidates"][int(train.labels[row])]] += 1
    found = []
    for row in range(len(examples)):
        asked = load_details(examples, row)
        frequency = [counts[asked["relation"]][name] for name in asked["candidates"]]
        found.append(int(np.argmax(frequency)))
    return np.array(found)


BY_RELATION = Rule(
    name="most frequent candidate",
    summary="the candidate that is most often right in training for the same relation",
    predict=predict_by_relation,
)


@register
class WikiHop(Task):
    """Answers of questions among candidates, implied by several documents."""

    Options = WikiHopOptions
    options: WikiHopOptions
    has_answers = True
    info = TaskInfo(
        name="wikihop",
        version=1,
        title="WikiHop",
        summary="Choose the answer to a question among candidates, from several documents.",
        source=f"QAngaroo 1.1, Welbl et al. 2018, {wikihop.URL}",
        checksum=None,
        license="CC BY-SA 3.0",
        sizes={},
        vocab_size=263,
        num_classes=MOST_CANDIDATES,
        metrics=("accuracy",),
        chance=None,
        head="candidates",
        published=(
            Published(
                mechanism="longformer",
                value=0.738,
                protocol="wikihop-ablation",
                source=f"{_TABLE}, table 10 (development set; best of evaluations on it)",
            ),
            Published(
                mechanism="full",
                value=0.724,
                protocol="wikihop-ablation",
                source=f"{_TABLE}, table 10: RoBERTa-base, windows of 512 tokens",
            ),
        ),
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
    def length(self) -> int:
        """Maximum number of tokens of a window."""
        return self.options.length

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
    def sizes(self) -> dict[Split, int | None]:
        """Unknown before the build, which counts the training questions."""
        return dict.fromkeys(SPLITS)

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id of the tokenizer."""
        return {"pad_token_id": self._encoder.tokenizer.fast.pad_token_id}

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens in a window."""
        prefix = prefix_length(self.length)
        longest = {
            "candidates": prefix,
            "boundaries": min(self.length, prefix + MOST_BOUNDARIES),
            "first": 1,
            "none": 0,
        }
        return longest[self.options.global_tokens]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Prediction from the question's relation alone."""
        return (BY_RELATION,)

    def majority_baseline(self, split: Split, rows: np.ndarray | None = None) -> float | None:
        """Return None: the number of a candidate in its list says nothing."""
        return None

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a tokenizer is known by its files."""
        options = super().data_options()
        options["vocabulary"] = identify_pieces(self.options.vocabulary)
        return {name: x for name, x in options.items() if name not in _NOT_IN_DATA}

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return names and sizes of the files."""
        return wikihop.find(data, masked=self.options.masked).origin

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Encode the questions, whole, one at a time."""
        files, encoder = wikihop.find(data, masked=self.options.masked), self._encoder
        writers = {split: CandidateWriter(scratch / split, encoder) for split in SPLITS}
        shares: dict[Part, dict[int, float]]
        shares = {"train": {VALIDATION: self.options.validation}, "dev": {}}
        for part, held_out in shares.items():
            questions = list(wikihop.read_questions(files.questions_file(part)))
            # Equal questions are in one split.
            keys = [(question.text,) for question in questions]
            splits = assign_splits(keys, np.zeros(len(keys), np.int8), held_out).splits.tolist()
            for number, (question, split) in enumerate(zip(questions, splits, strict=True)):
                if number % 100 == 0:
                    progress(f"encoding WikiHop ({part})", number, len(questions))
                writers["test" if part == "dev" else SPLITS[split]].add(question)
        return BuildOutput(
            splits={split: writer.examples() for split, writer in writers.items()},
            source=self.info.source,
            license=self.info.license,
            facts={
                "source_sha256": files.checksums(),
                "questions": {split: writer.counts() for split, writer in writers.items()},
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
            stream = np.random.default_rng([*draw, _SHUFFLING])
            shuffled = [
                shuffle_parts(parts, int(label), stream)
                for parts, label in zip(all_parts, labels, strict=True)
            ]
            all_parts, labels = [x for x, _ in shuffled], np.array([y for _, y in shuffled])
        return collate_windows(
            [self._windows(parts) for parts in all_parts],
            labels,
            rows,
            candidates=self.options.candidates,
            length=self.length,
            global_tokens=self.options.global_tokens,
        )

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
        examples, found = self._examples(split), {}
        for row, best in zip(rows.tolist(), logits.argmax(1).tolist(), strict=True):
            details = load_details(examples, row)
            found[details["id"]] = details["candidates"][best]
        return found

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        symbols = self._encoder.symbols
        return [symbols[token] for token in ids.tolist()]

    def show(self, split: Split, row: int) -> str:
        """Return the question, its candidates, the beginning of the documents, and the answer."""
        stored, label = self._example(split, row)
        details = load_details(self._examples(split), row)
        names = details["candidates"]
        decode = self._encoder.tokenizer.decode
        documents = [decode(ids).strip() for ids in self._encoder.load(stored).documents]
        shown = " | ".join(documents)[:_SHOWN]
        return f"{details['question']} ({', '.join(names)}) | {shown} = {names[label]}"

    @functools.cached_property
    def _encoder(self) -> CandidateEncoder:
        return CandidateEncoder(load_pieces(self.options.vocabulary))

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

    def _windows(self, parts: Parts) -> Windows:
        return self._encoder.make_windows(parts, self.length, self.options.windows)
