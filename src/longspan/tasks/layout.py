"""Layouts: the form of a task's examples, which decides the model head and the batch format."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class SequenceLayout:
    """One sequence and one label."""


@dataclasses.dataclass(frozen=True)
class ImageLayout:
    """One square image, read pixel by pixel in row order, and one label.

    Attributes:
        side: number of rows, and of columns.
    """

    side: int


@dataclasses.dataclass(frozen=True)
class PairLayout:
    """Two sequences and one label; both pass through the same encoder."""


@dataclasses.dataclass(frozen=True)
class TokenLayout:
    """One sequence and one label for each scored token."""


@dataclasses.dataclass(frozen=True)
class MaskedLayout:
    """One sequence with masked tokens, and the token at each masked position."""


@dataclasses.dataclass(frozen=True)
class StreamLayout:
    """One segment of a document, and the token after each position.

    Segments of a document follow each other in a row of the batches, so that a model can keep its
    state from one to the next.

    Attributes:
        by_frequency: True if ids are in the order of decreasing frequency in the training split,
            but for padding and ends of lines, which are first.
    """

    by_frequency: bool = False


@dataclasses.dataclass(frozen=True)
class SpanLayout:
    """One sequence, such as a question and its context, and the ends of the answer in it.

    Attributes:
        has_several: False: targets are the indices of the answer's first and last token, (B, 2).
            True: each token has a target, as there may be several right answers; the task defines
            the classes.
    """

    has_several: bool = False


@dataclasses.dataclass(frozen=True)
class MultiHopLayout:
    """One sequence, such as a question and its paragraphs, of which several things are asked.

    The answer is a span, yes or no; some sentences support it, and some paragraphs are relevant.
    Each token has a target, whose classes the task defines.
    """


@dataclasses.dataclass(frozen=True)
class ChoiceLayout:
    """Several candidate sequences, and the number of the right one.

    Attributes:
        candidates: maximum number of candidates of an example.
    """

    candidates: int


@dataclasses.dataclass(frozen=True)
class CandidateLayout:
    """One text with a question, its candidate answers and documents; the number of the right one.

    Attributes:
        candidates: maximum number of candidates of an example.
        windows: maximum number of windows of the task's length in which a longer text is read, each
            with the question and all candidates at its beginning.
    """

    candidates: int
    windows: int = 1


@dataclasses.dataclass(frozen=True)
class CoreferenceLayout:
    """One document, and the spans of it that mean the same.

    Targets are the first token, last token and cluster of each mention, (B, N, 3). Tokens have
    three features: the numbers of their sentence, of their word and of their speaker; a fourth one
    is the genre of the document.

    Attributes:
        windows: maximum number of windows of the task's length in which a longer document is read.
    """

    windows: int = 1


@dataclasses.dataclass(frozen=True)
class RetrievalLayout:
    """A query and its document; the other documents of a batch are negatives.

    Attributes:
        query_length: maximum number of tokens of a query; documents have the task's length.
        negatives: further documents of each query that do not answer it.
    """

    query_length: int
    negatives: int = 0


@dataclasses.dataclass(frozen=True)
class TextToTextLayout:
    """One input sequence and one target sequence, for an encoder-decoder model.

    Attributes:
        target_length: maximum number of tokens of a target.
    """

    target_length: int


Layout = (
    SequenceLayout
    | ImageLayout
    | PairLayout
    | TokenLayout
    | MaskedLayout
    | StreamLayout
    | SpanLayout
    | MultiHopLayout
    | ChoiceLayout
    | CandidateLayout
    | CoreferenceLayout
    | RetrievalLayout
    | TextToTextLayout
)
LANGUAGE_MODELING = (MaskedLayout, StreamLayout)  # of texts without labels


def max_tokens(layout: Layout, length: int) -> int:
    """Return the maximum number of tokens of an example, those of all its sequences.

    Args:
        layout: layout of the task.
        length: maximum number of tokens of a sequence.
    """
    match layout:
        case PairLayout():
            return 2 * length
        case ChoiceLayout():
            return layout.candidates * length
        case CandidateLayout() | CoreferenceLayout():
            return layout.windows * length
        case RetrievalLayout():
            return layout.query_length + (1 + layout.negatives) * length
        case TextToTextLayout():
            return length + layout.target_length
    return length
