"""Metrics of multi-hop questions: answer, supporting facts, and both together.

They follow the official evaluation of HotpotQA (Yang et al. 2018,
https://arxiv.org/abs/1809.09600, section 5.1). The joint precision and recall of a question are the
products of those of its answer and of its supporting facts, the joint exact match is 1 if both
match. All are averaged over the questions. The answers yes and no share no token with any other.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from longspan.metrics.answers import normalize_squad_answer
from longspan.metrics.base import register_percentage

for _title in ("Joint F1", "Joint exact match", "Support F1", "Support exact match"):
    _name = _title.lower().replace(" ", "_")
    register_percentage(_name, _title, (_name, "questions"))

# Normalized answers that are right or wrong as a whole.
_WHOLE = frozenset(("yes", "no", "noanswer"))


class Agreement(NamedTuple):
    """Agreement of a prediction with the reference: exact match, precision and recall."""

    exact_match: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def join(self, other: "Agreement") -> "Agreement":
        """Return the joint agreement: the products."""
        return Agreement(*(mine * yours for mine, yours in zip(self, other, strict=True)))


def answer_agreement(answer: str, reference: str) -> Agreement:
    """Compare the tokens of an answer with those of the reference, after normalization."""
    prediction, right = normalize_squad_answer(answer), normalize_squad_answer(reference)
    if prediction != right and _WHOLE & {prediction, right}:
        return Agreement(0.0, 0.0, 0.0)
    tokens, expected = prediction.split(), right.split()
    common = sum((Counter(tokens) & Counter(expected)).values())
    return _agreement(prediction == right, common, len(tokens), len(expected))


def support_agreement(facts: Iterable[Hashable], reference: Iterable[Hashable]) -> Agreement:
    """Compare the predicted supporting facts with the right ones; repeated ones count once."""
    prediction, right = set(facts), set(reference)
    return _agreement(prediction == right, len(prediction & right), len(prediction), len(right))


def _agreement(is_equal: bool, common: int, predicted: int, expected: int) -> Agreement:
    return Agreement(
        float(is_equal),
        common / predicted if predicted else 0.0,
        common / expected if expected else 0.0,
    )
