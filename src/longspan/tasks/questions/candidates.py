"""Questions with candidate answers as tokens, in one text or in several windows.

    [CLS] [question] question [/question] [ent] candidate [/ent] ... [SEP] document [SEP] ...

This is the input of Longformer for WikiHop (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150,
section 6 and appendix D). The four markers have ids behind those of the tokenizer. Documents that
do not fit are cut into windows, each behind the same question and candidates, until the documents
or the windows are exhausted. A question is stored without special tokens, whole, so that the same
data serve every length.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError

MARKERS = ("[question]", "[/question]", "[ent]", "[/ent]")
_QUESTION, _QUESTION_END, _CANDIDATE, _CANDIDATE_END, _DOCUMENT = range(5)
# Share of a window that the question and its candidates leave to documents at least.
_DOCUMENT_SHARE = 4


class Parts(NamedTuple):
    """Tokens of a question without special tokens.

    Attributes:
        question: ids of the question.
        candidates: ids of each candidate.
        documents: ids of each document.
    """

    question: np.ndarray
    candidates: list[np.ndarray]
    documents: list[np.ndarray]


class Windows(NamedTuple):
    """Texts in which a model reads a question.

    Attributes:
        texts: token ids of each window.
        positions: place of each candidate's first marker, the same in every window.
        num_prefix: tokens of question and candidates, which begin each window.
        boundaries: places in each window where a document begins: its separator, if the tokenizer
            has one, or its first token.
        is_cut: whether tokens of documents, candidates or the question are left out.
    """

    texts: list[np.ndarray]
    positions: np.ndarray
    num_prefix: int
    boundaries: list[np.ndarray]
    is_cut: bool


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateEncoder:
    """Encoder of questions with candidates.

    Attributes:
        tokenizer: tokenizer of all texts.
    """

    tokenizer: WordPieceTokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids, those of the markers included."""
        return self.tokenizer.vocab_size + len(MARKERS)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Token of each id."""
        return (*self.tokenizer.symbols, *MARKERS)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Type of stored ids; these have one marker more."""
        return np.uint16 if self.vocab_size < 1 << 16 else np.uint32

    def store(
        self, question: str, candidates: Sequence[str], documents: Sequence[str]
    ) -> np.ndarray:
        """Return all texts as ids, each behind its kind of marker.

        A word has the same tokens at the start of a text as elsewhere.
        """
        texts = (question, *candidates, *documents)
        kinds = [_QUESTION, *[_CANDIDATE] * len(candidates), *[_DOCUMENT] * len(documents)]
        encoded = self.tokenizer.encode_texts([f" {text}" for text in texts])
        pairs = zip(kinds, encoded, strict=True)
        parts = [x for kind, ids in pairs for x in ([self._marker(kind)], ids)]
        return np.concatenate(parts).astype(self.dtype)

    def load(self, stored: np.ndarray) -> Parts:
        """Return the parts of a stored question."""
        starts = np.flatnonzero(stored >= self.tokenizer.vocab_size)
        kinds = stored[starts].astype(np.int64) - self.tokenizer.vocab_size
        texts = [part[1:] for part in np.split(stored, starts[1:])]
        pairs = list(zip(kinds.tolist(), texts, strict=True))
        return Parts(
            question=texts[0],
            candidates=[text for kind, text in pairs if kind == _CANDIDATE],
            documents=[text for kind, text in pairs if kind == _DOCUMENT],
        )

    def make_windows(self, parts: Parts, length: int, windows: int) -> Windows:
        """Return the texts that a model reads.

        Where question and candidates would leave less than a quarter of a window to documents,
        the longest of them are cut.

        Args:
            parts: tokens of the question.
            length: maximum number of tokens of a window; see `min_length`.
            windows: maximum number of windows.

        Raises:
            OptionError: a window has no room for all candidates.
        """
        before, after = self.tokenizer.frame
        question, *candidates = self._cut([parts.question, *parts.candidates], length)
        pieces = [before, self._between(question, _QUESTION, _QUESTION_END)]
        pieces += [self._between(ids, _CANDIDATE, _CANDIDATE_END) for ids in candidates]
        prefix = np.concatenate(pieces)
        ends = np.cumsum([len(piece) for piece in pieces])
        documents = np.concatenate(
            [before[:0], *(x for ids in parts.documents for x in (after, ids, after))]
        )
        starts = np.cumsum([0, *(len(ids) + 2 * len(after) for ids in parts.documents)])[:-1]
        starts = starts[starts < len(documents)]  # a document may have no token
        room = length - len(prefix)
        firsts = range(0, max(1, len(documents)), room)[:windows]
        sizes = [len(ids) for ids in (question, *candidates)]
        full_sizes = [len(ids) for ids in (parts.question, *parts.candidates)]
        return Windows(
            texts=[np.concatenate((prefix, documents[i : i + room])) for i in firsts],
            positions=ends[1:-1],
            num_prefix=len(prefix),
            boundaries=[
                len(prefix) + starts[(starts >= i) & (starts < i + room)] - i for i in firsts
            ],
            is_cut=sizes != full_sizes or len(documents) > windows * room,
        )

    def _marker(self, kind: int) -> int:
        return self.tokenizer.vocab_size + kind

    def _between(self, ids: np.ndarray, start: int, end: int) -> np.ndarray:
        """Return ids between two markers."""
        return np.concatenate(([self._marker(start)], ids, [self._marker(end)]))

    def _cut(self, texts: list[np.ndarray], length: int) -> list[np.ndarray]:
        """Return the texts of question and candidates, each cut to the longest size that fits."""
        sizes = np.array([len(ids) for ids in texts])
        special = len(self.tokenizer.frame[0]) + 2 * len(texts)
        room = prefix_length(length) - special
        if room < len(texts):
            raise OptionError(
                f"length={length} leaves no room for {len(texts) - 1} candidates; use a larger one"
            )
        if sizes.sum() <= room:
            return texts
        limit = max(n for n in range(sizes.max()) if np.minimum(sizes, n).sum() <= room)
        return [ids[:limit] for ids in texts]


def prefix_length(length: int) -> int:
    """Return the maximum number of tokens of question and candidates in a window."""
    return length - length // _DOCUMENT_SHARE


def min_length(candidates: int) -> int:
    """Return the smallest window with room for so many candidates of one token each."""
    # One token before the text, and one token and two markers for each of question and candidates.
    needed = 1 + 3 * (1 + candidates)
    return next(n for n in range(needed, 2 * needed) if prefix_length(n) >= needed)


def shuffle_parts(parts: Parts, label: int, stream: np.random.Generator) -> tuple[Parts, int]:
    """Return a question with its candidates and documents in another order, and the new label.

    Args:
        parts: tokens of the question.
        label: index of the right candidate.
        stream: random numbers.
    """
    candidates = stream.permutation(len(parts.candidates))
    documents = stream.permutation(len(parts.documents))
    shuffled = Parts(
        question=parts.question,
        candidates=[parts.candidates[i] for i in candidates],
        documents=[parts.documents[i] for i in documents],
    )
    return shuffled, int(np.flatnonzero(candidates == label)[0])
