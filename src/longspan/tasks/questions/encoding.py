"""Questions about documents, whatever file they are from, as tokens; labels and answers of spans.

    [CLS] question [SEP] document [SEP]

with the special tokens that the tokenizer puts around two texts, cut to a length. Every token of
the document has a target: class 0, plus 1 if a right answer starts there, plus 2 if one ends there,
plus 4 if a passage begins there. Other tokens are not scored (`IGNORE`), so the targets also tell
where an answer may be.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError
from longspan.shapes import Bool, Int
from longspan.tasks.questions.mentions import Span, find_mentions
from longspan.tasks.scoring import IGNORE
from longspan.words import characters_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """Question, the document that answers it, and the right answers.

    Attributes:
        id: identifier of the question in its data set, the key of official predictions.
        text: the question.
        context: document, or several joined ones.
        references: right answers; one of them is enough. Empty where they are not published.
        spans: characters of the context that are right answers. None: they are not annotated, and
            every mention of a reference is right (distant supervision).
        document: questions about one document have one name, and are in one split.
        passages: first character of each of the joined parts, ascending.
        where: file and place of the question, for reports.
        has_span: False: the answer is yes or no, and no part of the context.
    """

    id: str
    text: str
    context: str
    references: tuple[str, ...]
    spans: tuple[Span, ...] | None
    document: str
    passages: tuple[int, ...] = (0,)
    where: str = dataclasses.field(default="", compare=False)
    has_span: bool = True


def join_passages(passages: list[str], separator: str) -> tuple[str, tuple[int, ...]]:
    """Return the joined passages, and the first character of each."""
    firsts, first = [], 0
    for passage in passages:
        firsts.append(first)
        first += len(passage) + len(separator)
    return separator.join(passages), tuple(firsts)


# Bits of the class of a token. Multi-hop questions have the last four, too: first tokens of
# sentences, of supporting ones, of paragraphs with such; and classes of tokens outside of the
# document, which are ELSEWHERE or more.
STARTS, ENDS, PASSAGE, SENTENCE, SUPPORTS, RELEVANT, ELSEWHERE = 1, 2, 4, 8, 16, 32, 64
BOUNDARY = PASSAGE | SENTENCE
ANSWER_TYPES = ("span", "yes", "no")  # of multi-hop questions

# Outcome of the search for right answers.
Outcome = Literal["marked", "no_span", "behind_cut", "not_in_context", "unknown"]

_REST_OF_WORD = re.compile(r"\S*")
_CHARACTERS = 8  # of a token, more than most tokenizers need; twice as many are tried if too few


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedQuestion:
    """Tokens of a question and its document.

    Attributes:
        ids: token ids, (T,).
        targets: 0 outside of the document; 1 + class of each of its tokens, uint8, (T,).
        offsets: characters of each token of the document, (N, 2).
        context: document up to the last token that is kept.
        outcome: marked: an answer is marked. no_span: the answer is yes or no. behind_cut: the
            answers are in the part that was cut. not_in_context: no answer is in the document.
            unknown: there are no references.
    """

    ids: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray
    context: str
    outcome: Outcome


class QuestionEncoder:
    """Encoder of questions for a model of some length.

    The tokens of the last document are kept, as questions about one document follow each other.
    """

    def __init__(self, tokenizer: WordPieceTokenizer, length: int, question_length: int):
        """Refuse a length without room for a document.

        Args:
            tokenizer: tokenizer of questions and documents.
            length: maximum number of tokens of an example.
            question_length: maximum number of tokens of a question, which is cut behind them.

        Raises:
            OptionError: the question and the special tokens fill the length.
        """
        self.tokenizer, self.length, self.question_length = tokenizer, length, question_length
        special = sum(map(len, tokenizer.pair_frame))
        if (needed := question_length + special + 1) > length:
            raise OptionError(
                f"length={length} leaves no room for a document behind a question of "
                f"{question_length} and {special} special tokens; use {needed} or more, or a "
                "smaller question_length"
            )
        self._document = ""
        self._tokens, self._offsets, self._is_whole = *tokenizer.encode_spans(""), True

    def encode(self, question: Question, counts: Counter[str]) -> EncodedQuestion | None:
        """Return a question as tokens, or None if its document has no token.

        Args:
            question: question.
            counts: receives `questions`, `questions_cut`, `documents_cut`, `documents_empty`, and
                the number of each outcome.
        """
        counts["questions"] += 1
        question_ids, _ = self.tokenizer.encode_spans(question.text)
        counts["questions_cut"] += len(question_ids) > self.question_length
        before, between, after = self.tokenizer.pair_frame
        first = np.concatenate((before, question_ids[: self.question_length], between))
        tokens, offsets, is_cut = self._encode_document(
            question.context, self.length - len(first) - len(after)
        )
        counts["documents_cut"] += is_cut
        if not len(tokens):
            counts["documents_empty"] += 1
            return None
        context = question.context[: int(offsets[-1, 1])]
        spans = _right_spans(question, len(context))
        classes = _mark(spans, offsets)
        outcome = _outcome(question, bool(classes.any()), is_cut)
        passages = itertools.pairwise((*question.passages, len(question.context)))
        firsts = first_tokens(passages, context, offsets)
        classes[firsts[firsts >= 0]] |= PASSAGE
        counts[outcome] += 1
        return EncodedQuestion(
            ids=np.concatenate((first, tokens, after)),
            targets=np.pad(classes + np.uint8(1), (len(first), len(after))),
            offsets=offsets,
            context=context,
            outcome=outcome,
        )

    def _encode_document(self, text: str, room: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return the first tokens of a document, their characters, and whether some were cut.

        Text far behind the cut is not tokenized. The part that is ends before a space, so that its
        last kept token is that of the whole text.
        """
        size = _CHARACTERS * room
        is_encoded = text == self._document
        while not is_encoded or not (self._is_whole or len(self._tokens) > room):
            part = text[: _last_space(text, size)]
            self._document, self._is_whole = text, len(part) == len(text)
            self._tokens, offsets = self.tokenizer.encode_spans(part)
            self._offsets = _add_marks(offsets, part)
            is_encoded, size = True, 2 * size
        return self._tokens[:room], self._offsets[:room], len(self._tokens) > room


def _add_marks(offsets: np.ndarray, text: str) -> np.ndarray:
    """Return the characters of each token, with the marks behind it that no token has.

    Tokenizers that strip accents drop them, as vowel signs of Hindi and decomposed accents.
    """
    marks = characters_of("M")
    if marks.isdisjoint(text):
        return offsets
    offsets, is_mark = offsets.copy(), marks.__contains__
    following = np.append(offsets[1:, 0], len(text))
    for token in np.flatnonzero(offsets[:, 1] < following):
        gap = text[offsets[token, 1] : following[token]]
        offsets[token, 1] += len([*itertools.takewhile(is_mark, gap)])
    return offsets


def cut_out(context: str, offsets: np.ndarray, start: int, end: int) -> str:
    """Return the text of an answer.

    Args:
        context: document.
        offsets: characters of each token, (N, 2).
        start: first token of the answer, counted from the first one of the document.
        end: last token of the answer.
    """
    return context[int(offsets[start, 0]) : int(offsets[end, 1])]


def first_tokens(parts: Iterable[Span], context: str, offsets: np.ndarray) -> np.ndarray:
    """Return the first token of each part of a document, -1 for parts without a token.

    Args:
        parts: characters of the parts.
        context: document up to the last token that is kept.
        offsets: characters of each token, (N, 2).
    """
    tokens = []
    for first, last in parts:
        text = context[first:last]
        # White space may be a part of the token before, or a token of its own.
        start = first + len(text) - len(text.lstrip())
        token = int(np.searchsorted(offsets[:, 1], start, side="right"))
        is_inside = bool(text.strip()) and offsets[token, 0] < last
        tokens.append(token if is_inside else -1)
    return np.array(tokens, np.int64)


def _last_space(text: str, size: int) -> int:
    """Return the last place of white space in the first `size` characters of a longer text."""
    if len(text) <= size:
        return len(text)
    place = max(text.rfind(" ", 0, size), text.rfind("\n", 0, size))
    return place if place > 0 else size


def _right_spans(question: Question, limit: int) -> list[Span]:
    """Return the characters of right answers within the first `limit` ones of the context."""
    spans: Sequence[Span]
    if question.spans is None:
        # A word that the cut shortens is searched whole.
        whole = _REST_OF_WORD.match(question.context, limit)
        end = whole.end() if whole else limit
        spans = find_mentions(question.context[:end], question.references)
    else:
        spans = question.spans
    return [span for span in spans if span[1] <= limit]


def _mark(spans: list[Span], offsets: np.ndarray) -> np.ndarray:
    """Return the bits of each token: whether answers start and end there."""
    classes = np.zeros(len(offsets), np.uint8)
    for start, end in spans:
        # the tokens that share a character with the answer
        first = int(np.searchsorted(offsets[:, 1], start, side="right"))
        last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
        if first <= last:
            classes[first] |= STARTS
            classes[last] |= ENDS
    return classes


def _outcome(question: Question, is_marked: bool, is_cut: bool) -> Outcome:
    if not question.has_span:
        return "no_span"
    if is_marked:
        return "marked"
    if not question.references:
        return "unknown"
    has_answer = bool(question.spans)
    if is_cut and question.spans is None:
        has_answer = bool(find_mentions(question.context, question.references))
    return "behind_cut" if is_cut and has_answer else "not_in_context"


Targets = Int[Tensor, "B T"]


def bit_labels(
    targets: Targets, bit: int, among: Bool[Tensor, "B T"] | None = None
) -> Int[Tensor, "B T"]:
    """Return 1 at tokens with any of the bits of a class, 0 at others, and `IGNORE` elsewhere.

    Args:
        targets: targets of a batch.
        bit: the bits.
        among: labeled tokens; None: those of the document. In the published code of Longformer the
            question's tokens compete with them.
    """
    labeled = in_document(targets) if among is None else among
    return has_bit(targets, bit).long().masked_fill(~labeled, IGNORE)


def in_document(targets: Targets) -> Bool[Tensor, "B T"]:
    """Return which tokens are of the document, where an answer may be."""
    return (targets != IGNORE) & (targets < ELSEWHERE)


def has_bit(targets: Targets, bit: int) -> Bool[Tensor, "B T"]:
    """Return which tokens of the document have any of the bits of a class."""
    return in_document(targets) & (targets & bit > 0)


def question_mask(targets: Targets) -> Bool[Tensor, "B T"]:
    """Return which tokens are before the document: the question and its special tokens."""
    return in_document(targets).cumsum(1) == 0


def boundary_mask(targets: Targets, most: int) -> Bool[Tensor, "B T"]:
    """Return the first tokens of passages and of sentences, of each example the `most` first."""
    boundaries = has_bit(targets, BOUNDARY)
    return boundaries & (boundaries.cumsum(1) <= most)
