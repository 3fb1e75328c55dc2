"""Documents with coreferent mentions as tokens, read in windows of whole sentences.

    [CLS] sentence sentence ... [SEP]

A document is stored whole, without special tokens, so that the same data serve every length.
Windows are independent (Joshi et al. 2019, https://arxiv.org/abs/1908.09091, section 3).
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError
from longspan.metrics.coreference import Mention
from longspan.tasks.documents.conll import Document

NO_SENTENCE = -1  # number of special tokens' sentence


class Window(NamedTuple):
    """Tokens of a window, special ones included.

    Attributes:
        ids: token ids, (T,).
        sentences: number of the sentence of each token in its document, or `NO_SENTENCE`.
        words: number of the word of each token in its document; 0 at special tokens.
    """

    ids: np.ndarray
    sentences: np.ndarray
    words: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentEncoder:
    """Encoder of documents.

    Attributes:
        tokenizer: tokenizer of the words.
    """

    tokenizer: WordPieceTokenizer

    def store(self, document: Document) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the ids of all words, and what else is known of the document, as JSON.

        Details are id, genre, words, the number of tokens of each word (`tokens`), of words of each
        sentence (`sentences`), the number of the speaker of each word (`speakers`), and clusters.
        """
        words = [word for sentence in document.sentences for word in sentence]
        encoded = self.tokenizer.encode_texts([f" {word}" for word in words])
        unknown = np.array([self.tokenizer.fast.unk_token_id or 0], self.tokenizer.dtype)
        encoded = [ids if len(ids) else unknown for ids in encoded]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(document.speakers))}
        details = {
            "id": document.id,
            "genre": document.genre,
            "words": words,
            "tokens": [len(ids) for ids in encoded],
            "sentences": [len(sentence) for sentence in document.sentences],
            "speakers": [numbers[name] for name in document.speakers],
            "clusters": document.clusters,
        }
        return np.concatenate(encoded), details

    def make_windows(
        self, ids: np.ndarray, details: dict[str, Any], length: int, most: int
    ) -> list[Window]:
        """Return the windows of a document; sentences that exceed a window are cut in pieces.

        Args:
            ids: ids of all words.
            details: details of the document; see `store`.
            length: maximum number of tokens of a window.
            most: maximum number of windows; what follows is left out.

        Raises:
            OptionError: special tokens fill the window.
        """
        room = length - sum(map(len, self.tokenizer.frame))
        if room < 1:
            raise OptionError(
                f"length={length} leaves no room for a token beside {length - room} special ones"
            )
        words = np.repeat(np.arange(len(details["tokens"])), details["tokens"])
        sentences = np.repeat(np.arange(len(details["sentences"])), details["sentences"])[words]
        sentences = _cut_long(sentences, room)
        ends = [*(np.flatnonzero(np.diff(sentences)) + 1).tolist(), len(ids)]
        bounds, first = [], 0
        for end, following in zip(ends, [*ends[1:], None], strict=True):
            if following is None or following - first > room:
                bounds.append(slice(first, end))
                first = end
        return [self._frame(ids[x], sentences[x], words[x]) for x in bounds[:most]]

    def _frame(self, ids: np.ndarray, sentences: np.ndarray, words: np.ndarray) -> Window:
        """Return a window with its special tokens."""
        before, after = self.tokenizer.frame
        around = (len(before), len(after))
        return Window(
            ids=np.concatenate((before, ids, after)),
            sentences=np.pad(sentences, around, constant_values=NO_SENTENCE),
            words=np.pad(words, around),
        )


def restore_document(details: dict[str, Any], clusters: Sequence[Sequence[Mention]]) -> Document:
    """Return the document of some details, with other clusters.

    Names of speakers are not stored: all are "-".

    Args:
        details: details of a document; see `DocumentEncoder.store`.
        clusters: first and last word of each mention.
    """
    words, ends = details["words"], np.cumsum(details["sentences"]).tolist()
    bounds = zip([0, *ends], ends, strict=False)
    return Document(
        id=details["id"],
        sentences=tuple(tuple(words[first:end]) for first, end in bounds),
        speakers=("-",) * len(words),
        clusters=tuple(map(tuple, clusters)),
    )


def token_spans(details: dict[str, Any], kept: int) -> list[tuple[int, int, int]]:
    """Return first token, last token and cluster of the mentions within the first tokens.

    Args:
        details: details of a document; see `DocumentEncoder.store`.
        kept: number of tokens of the document that are read.
    """
    ends = np.cumsum(details["tokens"])
    found = []
    for number, cluster in enumerate(details["clusters"]):
        for first, last in cluster:
            start = int(ends[first]) - details["tokens"][first]
            if (end := int(ends[last]) - 1) < kept:
                found.append((start, end, number))
    return found


def count_parts(details: dict[str, Any]) -> Counter[str]:
    """Return the numbers of words, sentences, clusters and mentions of a document."""
    return Counter(
        documents=1,
        words=len(details["words"]),
        sentences=len(details["sentences"]),
        clusters=len(details["clusters"]),
        mentions=sum(map(len, details["clusters"])),
    )


def _cut_long(sentences: np.ndarray, room: int) -> np.ndarray:
    """Return new numbers of sentences, of which none has more than `room` tokens."""
    _, first, number = np.unique(sentences, return_index=True, return_inverse=True)
    pieces = (np.arange(len(sentences)) - first[number]) // room
    keys = np.stack((sentences, pieces), axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].ravel()
