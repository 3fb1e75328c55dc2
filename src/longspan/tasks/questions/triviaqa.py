"""TriviaQA: "Which Lloyd Webber musical premiered in 1993?"; find the answer in long documents.

Joshi et al., "TriviaQA: A Large Scale Distantly Supervised Challenge Dataset for Reading
Comprehension", 2017 (https://arxiv.org/abs/1705.03551). No place of an answer is annotated: all of
its mentions are right, as in Beltagy et al., "Longformer", 2020, section 6.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from longspan.config import setting, settings
from longspan.data.own_splits import VALIDATION, assign_splits
from longspan.metrics.answers import normalize_triviaqa_answer
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import TaskInfo
from longspan.tasks.questions import triviaqa_files as triviaqa
from longspan.tasks.questions.answers import QuestionTask, Share
from longspan.tasks.questions.question import Question
from longspan.tasks.questions.question_data import QuestionOptions
from longspan.tasks.questions.report import Report
from longspan.tasks.questions.triviaqa_files import Domain, Part, TriviaQAFiles
from longspan.tasks.registry import register


@settings
class TriviaQAOptions(QuestionOptions):
    """Encoding, domain of the documents, and the share of questions that are held out."""

    domain: Domain = setting(
        "documents: wikipedia, all of a question joined; or web, each one an example", "wikipedia"
    )
    validation: Share = setting("share of the training questions that validation holds out", 0.1)


@register
class TriviaQA(QuestionTask):
    """Answers of trivia questions in documents from Wikipedia or the web."""

    Options = TriviaQAOptions
    options: TriviaQAOptions
    id_field = "QuestionId"
    info = TaskInfo(
        name="triviaqa",
        version=1,
        title="TriviaQA",
        summary="Find the answer to a trivia question in long documents.",
        source=f"TriviaQA 1.0, Joshi et al. 2017, {triviaqa.URL}",
        checksum=None,
        license="none stated for the questions; documents have the licenses of their sites",
        sizes={},
        vocab_size=259,
        num_classes=8,
        metrics=("token_f1", "exact_match"),
        chance=None,
        head="question_answering",
        published=(),
        notes=(
            "Validation is held out of the training questions; test is the published development "
            "set, on which papers report, since the answers of the test set are not public. "
            "Questions whose documents do not mention an answer count as wrong, as in the official "
            "evaluation. Questions without any document are left out and counted; the official "
            "evaluation counts them as wrong."
        ),
    )

    def normalize(self, answer: str) -> str:
        """Return an answer as the official evaluation compares it."""
        return normalize_triviaqa_answer(answer)

    def find_source(self, data: Path | None) -> TriviaQAFiles:
        """Return the files of questions of the domain."""
        return triviaqa.find(data, self.options.domain)

    def record_id(self, question: str) -> str:
        """Return the id of a question without its document."""
        return question.partition("--")[0]

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, Question]]:
        """Yield the questions with their documents, which are read one by one."""
        files = self.find_source(data)
        parts: dict[Part, dict[int, float]]
        parts = {"train": {VALIDATION: self.options.validation}, "dev": {}}
        for part, shares in parts.items():
            path = files.questions_file(part)
            keys = [
                (triviaqa.question_id(record, f"{path}: question {number}"),)
                for number, record in enumerate(triviaqa.load_records(files, part))
            ]
            splits = assign_splits(keys, np.zeros(len(keys), np.int8), shares).splits.tolist()
            # Read again: the records of the hub have the texts of all documents.
            for number, record in enumerate(triviaqa.load_records(files, part)):
                split, where = splits[number], f"{path}: question {number}"
                name: Split = "test" if part == "dev" else SPLITS[split]
                for question in triviaqa.read_question(files, record, where, reports[name]):
                    yield name, question
