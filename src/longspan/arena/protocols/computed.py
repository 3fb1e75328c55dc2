"""Functions that recipes call by name, for tasks and values that are known when they are asked for.

They cover the registered tasks of a kind, those of imports and plug-ins included.
"""

from collections.abc import Callable, Mapping
from typing import Any

from longspan.data.imports.texts import TextsDescription
from longspan.tasks import (
    TASKS,
    BeirTask,
    OwnQuestions,
    OwnSummaries,
    OwnTexts,
    build,
    imported_names,
)
from longspan.tasks.info import LANGUAGE_MODELING
from longspan.tasks.questions.imports import QuestionsDescription
from longspan.tasks.ranking.imports import BeirDescription

_WORD_IDS = 8_192
_LONGEST = {"words": 1_024, "bytes": 2_048}  # tokens that CPUs train on in minutes
_LENGTH_UNIT = 64  # lengths are multiples of it
_FRAME = 3  # special tokens around a question and its document
_ANSWER_BYTES = 128  # as many as the usual 30 word pieces have
_EVALUATIONS = 10
_LIMITS = ("epochs", "batch_size", "fewest", "most")  # of the steps, see `_steps`


def _corpora() -> tuple[str, ...]:
    """Return the names of the tasks of language modeling."""
    return tuple(sorted(x for x, cls in TASKS.items() if cls.info.head in LANGUAGE_MODELING))


def imports() -> tuple[str, ...]:
    """Return the names of the imports with targets."""
    return tuple(imported_names(OwnTexts, OwnSummaries, OwnQuestions, BeirTask))


def _positions(task: str) -> dict[str, dict[str, Any]]:
    """Return rotary positions for left-to-right models.

    Learned ones end with the segment, and texts that are generated are longer.
    """
    is_stream = TASKS[task].info.head == "causal_lm"
    return {"model": {"position": "rotary"}} if is_stream else {}


def _import_values(task: str, **limits: int) -> dict[str, dict[str, Any]]:
    """Return steps and encoding of an import: words, and a length that covers 95 % of texts.

    Embeddings of words that are to tell classes apart start as vectors of the training texts.
    """
    cls = TASKS[task]
    vectors = {}
    if issubclass(cls, BeirTask):
        options = _retrieval_options(cls.description)
    elif issubclass(cls, OwnQuestions):
        options = _question_options(cls.description)
    elif issubclass(cls, OwnSummaries):
        options = _summary_options(cls.description)
    else:
        assert issubclass(cls, OwnTexts)
        options = _encoding(cls.description)
        vectors = {"word_vectors": "lsa"} if cls.description.has_words else {}
    steps = _steps(cls.description.sizes["train"], **limits)
    return {"task": options, "training": {**steps, **vectors}}


def _steps(
    size: int | None, *, epochs: int, batch_size: int, fewest: int, most: int, unknown: int = 0
) -> dict[str, int]:
    """Return steps, warmup and evaluations of so many epochs.

    Args:
        size: training examples, or None.
        epochs: times that a run sees each of them.
        batch_size: examples of a step, if there are as many.
        fewest: least number of steps.
        most: largest number of steps.
        unknown: steps of a task whose number of examples is not known before it is built.
    """
    batch = batch_size if size is None else min(batch_size, size)
    steps = unknown if size is None else min(max(epochs * size // batch, fewest), most)
    return {
        "steps": steps,
        "batch_size": batch,
        "warmup_steps": steps // 10,
        "evaluate_every": steps // _EVALUATIONS,
    }


def _retrieval_options(described: BeirDescription) -> dict[str, Any]:
    """Return the options of a collection: words of documents and queries."""
    lengths = [_length(x) for x in (described.document_words, described.query_words)]
    return {"length": max(lengths), "query_length": lengths[1], "vocabulary": _WORD_IDS}


def _question_options(described: QuestionsDescription) -> dict[str, Any]:
    """Return the options of questions: bytes of a question, of it with its document, of answers."""
    question = min(_length(described.question_bytes, "bytes"), _LONGEST["bytes"] // 4)
    whole = question + described.document_bytes + _FRAME
    lengths = {"length": _length(whole, "bytes"), "question_length": question}
    return {**lengths, "answer_length": _ANSWER_BYTES}


def _summary_options(described: TextsDescription) -> dict[str, Any]:
    """Return the options of summaries: tokens of texts, and of summaries with their end."""
    encoding, count = _encoding(described), described.summary_words
    if not described.has_words:  # their summaries have as many bytes a word
        count = count * described.bytes // described.words
    unit = "words" if described.has_words else "bytes"
    return {**encoding, "target_length": _length(count + 1, unit)}


def _encoding(described: TextsDescription) -> dict[str, Any]:
    """Return the options of the task: words, or bytes of a script without spaces."""
    if described.has_words:
        return {"length": _length(described.words), "vocabulary": _WORD_IDS}
    return {"length": _length(described.bytes, "bytes"), "vocabulary": "bytes"}


def _length(count: int, unit: str = "words") -> int:
    """Return a count as a multiple of the unit of lengths, up to the longest."""
    return min(-(-count // _LENGTH_UNIT) * _LENGTH_UNIT, _LONGEST[unit])


Tables = Mapping[str, Mapping[str, Any]]  # of a task
# The names of tasks, the tables of one of them by its name, and the names of further arguments.
COMPUTED: dict[
    str, tuple[Callable[[], tuple[str, ...]], Callable[..., Tables], tuple[str, ...]]
] = {
    "corpora": (_corpora, _positions, ()),
    "tasks": (
        lambda: tuple(sorted(TASKS.keys() - set(_corpora()))),
        lambda task, **limits: {"training": _steps(build(task, {}).sizes["train"], **limits)},
        (*_LIMITS, "unknown"),
    ),
    "imports": (imports, _import_values, _LIMITS),
}
