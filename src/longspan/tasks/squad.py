"""SQuAD and XQuAD: "Which NFL team won Super Bowl 50?"; mark the answer in the text.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016
(https://arxiv.org/abs/1606.05250); Artetxe et al., "On the Cross-lingual Transferability of
Monolingual Representations", 2020 (https://arxiv.org/abs/1910.11856). With all paragraphs of an
article joined, the documents are long.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.config import setting, settings
from longspan.data.own_splits import TEST, VALIDATION, assign_splits
from longspan.data.questions.question import Question
from longspan.data.questions.squad import Extent, find_squad, read_squad
from longspan.tasks._questions import QuestionOptions, QuestionTask, Share
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.layout import SpanLayout
from longspan.tasks.registry import register

_METRICS = ("token_f1", "exact_match")


@settings
class SquadOptions(QuestionOptions):
    """Encoding, context, and the share of articles that are held out."""

    context: Extent = setting(
        "document of a question: its paragraph, or all paragraphs of its article", "paragraph"
    )
    validation: Share = setting("share of the training articles that validation holds out", 0.1)


@register
class Squad(QuestionTask):
    """Spans of Wikipedia's paragraphs or articles, SQuAD 1.1."""

    Options: ClassVar[type] = SquadOptions
    options: SquadOptions
    files: ClassVar[tuple[str, ...]] = ("train-v1.1.json", "dev-v1.1.json")
    info = TaskInfo(
        name="squad",
        version=1,
        title="SQuAD 1.1",
        summary="Mark the answer to a question in a paragraph, or in a whole article.",
        source="SQuAD 1.1, Rajpurkar et al. 2016, https://rajpurkar.github.io/SQuAD-explorer",
        checksum=None,
        license="CC BY-SA 4.0",
        sizes={},
        vocab_size=259,
        num_classes=4,
        metrics=_METRICS,
        chance=None,
        layout=SpanLayout(has_several=True),
        published=(),
        hub="rajpurkar/squad",
        notes=(
            "Validation is held out of the training articles; test is the published development "
            "set, since the test set is not public. Answers are scored as in the official "
            "evaluation, against all reference answers."
        ),
    )

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Unknown before the build: what cannot be learned from is left out."""
        return dict.fromkeys(SPLITS)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return names, sizes and sha256 of the files."""
        return find_squad(data, self.files, self.info.name).origin

    def read(
        self, data: Path | None, counts: dict[Split, Counter[str]]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        train, test = find_squad(data, self.files, self.info.name).paths
        file = read_squad(train, self.options.context)
        counts["train"].update(file.counts)
        yield from _assign(file.questions, {VALIDATION: self.options.validation})
        held_out = read_squad(test, self.options.context)
        counts["test"].update(held_out.counts)
        yield from (("test", question) for question in held_out.questions)


@settings
class XquadOptions(SquadOptions):
    """Encoding, context, and the shares of articles that are held out."""

    test: Share = setting("share of the articles that test holds out", 0.2)


@register
class Xquad(Squad):
    """Spans of Wikipedia's paragraphs or articles, XQuAD in English."""

    Options: ClassVar[type] = XquadOptions
    options: XquadOptions
    files: ClassVar[tuple[str, ...]] = ("xquad.en.json",)
    info = TaskInfo(
        name="xquad",
        version=1,
        title="XQuAD (English)",
        summary="Mark the answer to a question in a paragraph, or in a whole article.",
        source="XQuAD, Artetxe et al. 2020, https://github.com/google-deepmind/xquad",
        checksum=None,
        license="CC BY-SA 4.0",
        sizes={},
        vocab_size=259,
        num_classes=4,
        metrics=_METRICS,
        chance=None,
        layout=SpanLayout(has_several=True),
        published=(),
        notes=(
            "1,190 questions about 48 articles of the development set of SQuAD 1.1. It is "
            "published for evaluation alone; here its articles are split by their sha256, so "
            "scores are not comparable with published ones."
        ),
    )

    def read(
        self, data: Path | None, counts: dict[Split, Counter[str]]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        (path,) = find_squad(data, self.files, self.info.name).paths
        file = read_squad(path, self.options.context)
        counts["train"].update(file.counts)
        shares = {VALIDATION: self.options.validation, TEST: self.options.test}
        yield from _assign(file.questions, shares)


def _assign(
    questions: Sequence[Question], shares: dict[int, float]
) -> Iterator[tuple[Split, Question]]:
    """Yield questions with their split, by the sha256 of their article."""
    keys = [(question.document,) for question in questions]
    splits = assign_splits(keys, np.zeros(len(keys), np.int8), shares).splits
    yield from ((SPLITS[split], one) for split, one in zip(splits, questions, strict=True))
