"""Building of the summarization tasks: examples of a split, and the rule of leading sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from longspan.data.summarized_document import SummarizedDocument, leading_sentences
from longspan.metrics.summaries import RougeRule, has_token, loses_letters, rouge
from longspan.tasks.base import Split
from longspan.tasks.example_writer import ExampleWriter
from longspan.tasks.questions.report import Report
from longspan.wording import counted
from longspan.words import count_words

LEAD = "lead"
WITHOUT_TOKEN, LOSING_LETTERS = "without_token", "losing_letters"
EMPTY_DOCUMENT, EMPTY_SUMMARY = "empty_document", "empty_summary"


class SummaryWriter(ExampleWriter):
    """Examples of a split in files, and sums over them."""

    def __init__(
        self,
        folder: Path,
        document: type[np.unsignedinteger],
        summary: type[np.unsignedinteger],
    ):
        super().__init__(folder, tokens=document, second=summary)
        self.summary_words, self.cut = 0, [0, 0]
        self.lead: Counter[str] = Counter()
        self.references: Counter[str] = Counter()

    def add_summary(
        self,
        one: SummarizedDocument,
        document: np.ndarray,
        summary: np.ndarray,
        cut: tuple[bool, bool],
        lead: Mapping[str, float],
        rule: RougeRule,
    ) -> None:
        """Append an example, with the scores of its leading sentences; check its summary."""
        details = {"id": one.id, "summary": "\n".join(one.summary)}
        self.add(0, details, tokens=document, second=summary)
        self.summary_words += count_words(one.summary_text)
        if not has_token(one.summary_text, rule):
            self.references[WITHOUT_TOKEN] += 1
        elif loses_letters(one.summary_text, rule):
            self.references[LOSING_LETTERS] += 1
        self.cut = [total + one for total, one in zip(self.cut, cut, strict=True)]
        self.lead.update(lead)

    def lead_scores(self) -> dict[str, float]:
        """Return the mean scores of the leading sentences."""
        return {name: total / len(self) for name, total in self.lead.items()}


def is_kept(split: Split, one: SummarizedDocument, report: Report) -> bool:
    """Return whether a document is an example of its split; list those without a text."""
    line = int(number) if (number := one.where.rpartition("line ")[2]).isdigit() else None
    for reason, text in ((EMPTY_DOCUMENT, one.document), (EMPTY_SUMMARY, one.summary)):
        if not text:
            report.add(reason, one.id, one.where, line)
    return bool(one.summary) and (bool(one.document) or split != "train")


def score_lead(one: SummarizedDocument, words: float, rule: RougeRule) -> dict[str, float]:
    """Return the scores of the leading sentences of a document."""
    return rouge("\n".join(leading_sentences(one.document, words)), "\n".join(one.summary), rule)


def sum_references(parts: Iterable[SummaryWriter]) -> dict[str, int]:
    """Return the number of references of each kind in several splits."""
    total = Counter({WITHOUT_TOKEN: 0, LOSING_LETTERS: 0})
    for part in parts:
        total.update(part.references)
    return dict(total)


def describe_references(counts: Mapping[str, int], rule: RougeRule) -> list[str]:
    """Return a sentence for each kind of references that the rule of ROUGE does not read.

    Args:
        counts: `references` of the writers.
        rule: rule of the tokens.
    """
    texts = {
        WITHOUT_TOKEN: "summary|summaries has|have no token under the rule of ROUGE and is|are "
        "scored 0",
        LOSING_LETTERS: "summary|summaries has|have letters that the rule of ROUGE drops",
    }
    remedy = "; rouge=unicode reads every script" if rule == "rouge-score" else ""
    return [f"{counted(counts[x], text)}{remedy}" for x, text in texts.items() if counts[x]]
