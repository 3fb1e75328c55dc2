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
    | SpanLayout
    | MultiHopLayout
    | ChoiceLayout
    | RetrievalLayout
    | TextToTextLayout
)
