"""One question about a document, whatever file it is from."""

import dataclasses

Span = tuple[int, int]  # first character, and the one after the last


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
