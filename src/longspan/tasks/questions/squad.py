"""SQuAD and XQuAD: "Which NFL team won Super Bowl 50?"; mark the answer in the text.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016
(https://arxiv.org/abs/1606.05250); Artetxe et al., "On the Cross-lingual Transferability of
Monolingual Representations", 2020 (https://arxiv.org/abs/1910.11856). With all paragraphs of an
article joined, the documents are long.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np

from longspan.config import setting, settings
from longspan.data.own_splits import TEST, VALIDATION, assign_splits
from longspan.errors import DataError, MissingSourceError
from longspan.metrics import Metric, get_metric
from longspan.metrics.answers import (
    EXACT_MATCH_MLQA,
    TOKEN_F1_MLQA,
    normalize_answer,
    normalize_squad_answer,
)
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions.answers import QuestionTask, Share
from longspan.tasks.questions.json_sources import JsonFiles, find_json_files
from longspan.tasks.questions.question import Question
from longspan.tasks.questions.question_data import QuestionOptions
from longspan.tasks.questions.report import Report
from longspan.tasks.questions.squad_files import Extent, read_squad
from longspan.tasks.registry import register
from longspan.wording import counted

Language = Literal["en", "ar", "de", "el", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh", "other"]

_FILE = re.compile(r"xquad\.(\w+)\.json(?:\.gz)?")
_METRICS = ("token_f1", "exact_match")
_OTHER_METRICS = (TOKEN_F1_MLQA.name, EXACT_MATCH_MLQA.name)


@settings
class SquadOptions(QuestionOptions):
    """Encoding, context, and the share of articles that are held out."""

    context: Extent = setting(
        "document of a question: its paragraph, or all paragraphs of its article", "paragraph"
    )
    validation: Share = setting("share of the training articles that validation holds out", 0.1)
    language: Language = setting(
        "language of the answers: en: scored as in the evaluation of SQuAD; any other: as in that "
        "of MLQA, with the articles of the language, and scripts without spaces in characters",
        "en",
    )


@register
class Squad(QuestionTask):
    """Spans of Wikipedia's paragraphs or articles, SQuAD 1.1."""

    Options: ClassVar[type] = SquadOptions
    options: SquadOptions
    id_field = "id"
    files: ClassVar[tuple[str, ...]] = ("train-v1.1.json", "dev-v1.1.json")
    hub_splits: ClassVar[tuple[str, ...]] = ("train", "validation")
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
        num_classes=8,
        metrics=_METRICS,
        chance=None,
        head="question_answering",
        published=(),
        notes=(
            "Validation is held out of the training articles; test is the published development "
            "set, since the test set is not public. Answers are scored as in the official "
            "evaluation, against all reference answers; those in another language than English "
            "(`language`) as in the evaluation of MLQA."
        ),
    )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Scores of the rule of SQuAD for English, of MLQA for other languages."""
        is_english = self.options.language == "en"
        return tuple(map(get_metric, _METRICS if is_english else _OTHER_METRICS))

    def normalize(self, answer: str) -> str:
        """Return an answer as the evaluation of its language compares it."""
        language = self.options.language
        return (
            normalize_squad_answer(answer)
            if language == "en"
            else normalize_answer(answer, language)
        )

    def find_source(self, data: Path | None) -> JsonFiles:
        """Return the files of questions, of all splits."""
        return find_json_files(data, self.files, self.info.name, "squad", self.hub_splits)

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        train, test = self.find_source(data).paths
        file = read_squad(train, self.options.context)
        reports["train"].merge(file.report)
        yield from _assign(train, file.questions, {VALIDATION: self.options.validation})
        held_out = read_squad(test, self.options.context)
        reports["test"].merge(held_out.report)
        yield from (("test", question) for question in held_out.questions)


@settings
class XquadOptions(SquadOptions):
    """Encoding, context, and the shares of articles that are held out."""

    test: Share = setting("share of the articles that test holds out", 0.2)


@register
class Xquad(Squad):
    """Spans of Wikipedia's paragraphs or articles, XQuAD in one of its languages."""

    Options: ClassVar[type] = XquadOptions
    options: XquadOptions
    hub_splits = ()  # which lack the articles
    info = TaskInfo(
        name="xquad",
        version=1,
        title="XQuAD",
        summary="Mark the answer to a question in a paragraph, or in a whole article.",
        source="XQuAD, Artetxe et al. 2020, https://github.com/google-deepmind/xquad",
        checksum=None,
        license="CC BY-SA 4.0",
        sizes={},
        vocab_size=259,
        num_classes=8,
        metrics=_METRICS,
        chance=None,
        head="question_answering",
        published=(),
        notes=(
            "1,190 questions about 48 articles of the development set of SQuAD 1.1, in English and "
            "in translations (`language`). It is published for evaluation alone; here its "
            "articles are split by their sha256, so scores are not comparable with published "
            "ones. English answers are scored as in the evaluation of SQuAD, others as in that of "
            "MLQA."
        ),
    )

    def find_source(self, data: Path | None) -> JsonFiles:
        """Return the file of questions in the language.

        Raises:
            DataError: it is missing, or its name is that of another language.
        """
        language = self.options.language
        wanted = f"xquad.{language}.json"
        try:
            found = find_json_files(data, (wanted,), self.info.name, "squad")
        except MissingSourceError as error:
            there = [] if data is None else sorted(x.name for x in data.glob("xquad.*.json"))
            languages = [x for name in there if (x := name.split(".")[1]) in get_args(Language)]
            if not languages:
                raise
            raise DataError(
                f"expected {wanted} in {data}, got {', '.join(there)}; set the option "
                f"language={languages[0]} of {self.info.name}"
            ) from error
        named = _FILE.fullmatch(found.paths[0].name)
        own = named and (named[1] if named[1] in get_args(Language) else "other")
        if own and own != language:
            raise DataError(
                f"expected questions of language={language}, got {found.paths[0]}; set the option "
                f"language={own} of {self.info.name}"
            )
        return found

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions; questions about one article are in one split."""
        (path,) = self.find_source(data).paths
        file = read_squad(path, self.options.context)
        reports["train"].merge(file.report)
        shares = {VALIDATION: self.options.validation, TEST: self.options.test}
        yield from _assign(path, file.questions, shares)


def _assign(
    path: Path, questions: Sequence[Question], shares: dict[int, float]
) -> Iterator[tuple[Split, Question]]:
    """Yield questions with their split, by the sha256 of their article.

    Raises:
        DataError: there are fewer articles than splits.
    """
    keys = [(question.document,) for question in questions]
    if (count := len(set(keys))) <= len(shares):
        held_out = ", ".join(SPLITS[split] for split in shares)
        raise DataError(
            f"{path} has {counted(count, 'article|articles')}, by their titles; expected "
            f"{1 + len(shares)} or more, so that {held_out} can be held out"
        )
    splits = assign_splits(keys, np.zeros(len(keys), np.int8), shares).splits
    yield from ((SPLITS[split], one) for split, one in zip(splits, questions, strict=True))
