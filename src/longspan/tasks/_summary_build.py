"""Building of the summarization tasks: examples of a split, and the rule of leading sentences."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from longspan.data.questions.report import Report
from longspan.data.store import Examples, Spool
from longspan.data.summaries.document import SummarizedDocument, leading_sentences
from longspan.metrics.summaries import ROUGE, rouge
from longspan.tasks.base import Split

LEAD = "lead"
EMPTY_DOCUMENT, EMPTY_SUMMARY = "empty_document", "empty_summary"


class SummaryWriter:
    """Examples of a split in files, since they may be larger than memory; and sums over them."""

    def __init__(
        self,
        folder: Path,
        document: type[np.unsignedinteger],
        summary: type[np.unsignedinteger],
    ):
        self.tokens = Spool(folder / "tokens", document)
        self.second = Spool(folder / "second", summary)
        self.details = Spool(folder / "details", np.uint8)
        self.count, self.summary_words, self.cut = 0, 0, [0, 0]
        self.lead: Counter[str] = Counter()

    def __len__(self) -> int:
        return self.count

    def add(
        self,
        one: SummarizedDocument,
        document: np.ndarray,
        summary: np.ndarray,
        cut: tuple[bool, bool],
        lead: Mapping[str, float],
    ) -> None:
        """Append an example, with the scores of its leading sentences."""
        details = {"id": one.id, "summary": "\n".join(one.summary)}
        text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
        self.tokens.add(document)
        self.second.add(summary)
        self.details.add(np.frombuffer(text.encode(errors="replace"), np.uint8))
        self.count += 1
        self.summary_words += len(one.summary_text.split())
        self.cut = [total + one for total, one in zip(self.cut, cut, strict=True)]
        self.lead.update(lead)

    def lead_scores(self) -> dict[str, float]:
        """Return the mean scores of the leading sentences."""
        return {name: self.lead[name] / self.count for name in ROUGE}

    def examples(self) -> Examples:
        """Return all examples; their sequences are views of the files."""
        return Examples(
            tokens=self.tokens.ragged(),
            second=self.second.ragged(),
            details=self.details.ragged(),
            labels=np.zeros(self.count, np.uint8),
        )


def is_kept(split: Split, one: SummarizedDocument, report: Report) -> bool:
    """Return whether a document is an example of its split; list those without a text."""
    line = int(number) if (number := one.where.rpartition("line ")[2]).isdigit() else None
    for reason, text in ((EMPTY_DOCUMENT, one.document), (EMPTY_SUMMARY, one.summary)):
        if not text:
            report.add(reason, one.id, one.where, line)
    return bool(one.summary) and (bool(one.document) or split != "train")


def score_lead(one: SummarizedDocument, words: float) -> dict[str, float]:
    """Return the scores of the leading sentences of a document."""
    return rouge("\n".join(leading_sentences(one.document, words)), "\n".join(one.summary))
