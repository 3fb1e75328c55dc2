"""Base of the tasks that answer questions by a span of a document."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from longspan.metrics import Metric
from longspan.metrics.answers import (
    EXACT_MATCH,
    EXACT_MATCH_MLQA,
    TOKEN_F1,
    TOKEN_F1_MLQA,
    exact_match,
    token_f1,
)
from longspan.shapes import Float, Int
from longspan.tasks.base import Split
from longspan.tasks.questions.encoding import ENDS, STARTS, cut_out
from longspan.tasks.questions.question import Question
from longspan.tasks.questions.question_data import QuestionData
from longspan.tasks.questions.spans import bit_labels, predicted_spans, question_mask

Share = Annotated[float, Field(gt=0, lt=1)]

_BITS = ("starts", "ends", "first of a passage")
_SCORES = {
    EXACT_MATCH.name: exact_match,
    EXACT_MATCH_MLQA.name: exact_match,
    TOKEN_F1.name: token_f1,
    TOKEN_F1_MLQA.name: token_f1,
}


class QuestionTask(QuestionData[Question]):
    """Questions about documents; the answer is a span of the document.

    Classes are those of the tokens of the document: starts and ends of right answers, and first
    tokens of passages. Scores count every question, also those whose answer is not in the tokens.
    """

    def label_arguments(self, targets: Int[Tensor, "B T"]) -> dict[str, Int[Tensor, "B T"]]:
        """Return the labels of all tokens, as starts and as ends of right answers."""
        sides = {"start_positions": STARTS, "end_positions": ENDS}
        return {name: bit_labels(targets, bit) for name, bit in sides.items()}

    def example_statistics(
        self,
        metrics: Sequence[Metric],
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, Tensor]:
        """Return the score of each predicted answer, and 1 for the question."""
        predicted = self._predicted(split, rows, logits, targets)
        found = {}
        for metric in metrics:
            score = _SCORES[metric.name]
            scores = [score(text, x["references"], self.normalize) for x, text in predicted]
            values = torch.tensor(scores, dtype=torch.float64)
            found[metric.name] = torch.stack((values, torch.ones_like(values)), dim=1)
        return found

    def answers(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> dict[str, str]:
        """Return the text of the best answer to each question, by its official id."""
        predicted = self._predicted(split, rows, logits, targets)
        return {details["id"]: text for details, text in predicted}

    def class_name(self, label: int) -> str:
        """Return the name of a class of tokens."""
        names = [name for place, name in enumerate(_BITS) if label >> place & 1]
        return ", ".join(names) or "inside"

    def _predicted(
        self,
        split: Split,
        rows: Int[Tensor, " B"],
        logits: Float[Tensor, "B 2 T"],
        targets: Int[Tensor, "B T"],
    ) -> list[tuple[dict[str, Any], str]]:
        """Return the details of each example, and the text of the best answer."""
        starts, ends = predicted_spans(logits, targets, max_length=self.options.answer_length)
        firsts = question_mask(targets).sum(1)
        places = zip(
            rows.tolist(), (starts - firsts).tolist(), (ends - firsts).tolist(), strict=True
        )
        found = []
        for row, start, end in places:
            details = self.load_details(split, row)
            text = cut_out(details["context"], details["offsets"], start, end)
            found.append((details, text))
        return found
