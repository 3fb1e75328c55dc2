"""Vocabulary of a corpus, chosen at the import, and a check of the tokens of its documents."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from longspan.data.cache import ProgressCallback
from longspan.data.corpora.request import CorpusRequest
from longspan.data.corpora.survey import Survey
from longspan.data.corpora.tokenizing import separator_id, surveyed_documents
from longspan.data.own_splits import TRAIN
from longspan.data.sources.documents import CorpusSource
from longspan.data.stream_vocabularies import (
    ByteVocabulary,
    CharacterVocabulary,
    WordPieceVocabulary,
)
from longspan.data.tokenizer_training import train_tokenizer
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces
from longspan.errors import DataError


def choose_tokenizer(
    request: CorpusRequest,
    sources: Sequence[CorpusSource],
    survey: Survey,
    progress: ProgressCallback,
) -> WordPieceTokenizer:
    """Load the tokenizer of a request, or train one on the training documents.

    Raises:
        DataError: the tokenizer is unusable, or lacks a token that the objective needs.
    """
    if request.tokenizer is not None:
        tokenizer = load_word_pieces(request.tokenizer)
    else:
        progress("training the tokenizer", 0, 0)
        documents = surveyed_documents(sources, request.form, survey)
        # Held-out documents are read too, as the order requires.
        texts = (
            part
            for row, document in documents
            for part in document.parts
            if survey.splits[row] == TRAIN
        )
        fast = train_tokenizer(texts, vocab_size=request.vocab_size, kind=request.kind)
        name = f"{request.kind} of {request.vocab_size} ids"
        tokenizer = WordPieceTokenizer(name, "", fast)
    if request.objective == "masked":
        for required in ("mask", "pad"):
            tokenizer.token_id(required)
        separator_id(tokenizer)
    return tokenizer


def describe_symbols(
    request: CorpusRequest, sources: Sequence[CorpusSource], survey: Survey
) -> dict[str, Any]:
    """Return name, identity and number of ids of a vocabulary of bytes or characters."""
    if request.vocabulary == "bytes":
        return {"name": "bytes", "sha256": "", "ids": ByteVocabulary.size}
    characters: set[str] = set()
    for _, document in surveyed_documents(sources, request.form, survey):
        for part in document.parts:
            characters.update(part)
    alphabet = "".join(sorted(characters))
    return {
        "name": "characters",
        "sha256": hashlib.sha256(alphabet.encode()).hexdigest(),
        "ids": CharacterVocabulary(alphabet).size,
        "alphabet": alphabet,
    }


class PartsCheck:
    """Check of the tokens of documents: the tables have their bytes, and they give the text back.

    Attributes:
        parts: parts of documents so far.
        changed: parts that the tokenizer does not give back as they were.
    """

    def __init__(self, vocabulary: WordPieceVocabulary):
        """Check tokens of this vocabulary."""
        self.vocabulary = vocabulary
        self.parts, self.changed = 0, 0

    def __call__(self, text: str, ids: np.ndarray) -> None:
        """Decode a part of a document.

        Raises:
            DataError: its bytes are not the sum of those of its tokens.
        """
        round_trip = self.vocabulary.decode(ids)
        # A decoder may omit the space before the first word.
        difference = self.vocabulary.num_bytes(ids) - len(round_trip.encode())
        if difference not in (0, 1):
            raise DataError(
                f"tokenizer {self.vocabulary.tokenizer.name}: the text of a token depends on the "
                "tokens around it, so that bytes cannot be counted; choose a byte-level one"
            )
        self.parts += 1
        self.changed += text not in (round_trip, f" {round_trip}")
