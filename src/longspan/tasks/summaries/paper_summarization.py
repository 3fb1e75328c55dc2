"""Summarization of papers: write the abstract of an article of arXiv or PubMed.

Cohan et al., "A Discourse-Aware Attention Model for Abstractive Summarization of Long Documents",
2018 (https://arxiv.org/abs/1804.05685), the data set that is also called `scientific_papers`. LED
(Beltagy et al. 2020, section 7) reports scores on it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from longspan.config import setting, settings
from longspan.data.source_files import PartFiles
from longspan.data.summarized_document import SummarizedDocument
from longspan.data.tokenizers import ByteTokenizer
from longspan.metrics.summaries import RougeRule
from longspan.tasks.base import SPLITS, Split
from longspan.tasks.info import Published, TaskInfo
from longspan.tasks.questions.report import Report
from longspan.tasks.registry import register
from longspan.tasks.summaries import papers
from longspan.tasks.summaries.options import METRICS, ROUGE_TOKENS, SummaryOptions
from longspan.tasks.summaries.summaries import SummaryTask

_NOTES = (
    "The model is selected by the perplexity of the validation abstracts. The scores are of "
    "abstracts that it generates with beams, for every paper of validation and test, against the "
    "whole reference. ROUGE is by default that of rouge-score with Porter stemming; some published "
    "scores are without it. Papers without an abstract are left out, and of training those without "
    "a text, too. The rule `lead` takes the first sentences of the paper, with as many words as "
    "the mean training abstract."
)
_LED = "Beltagy et al. 2020, section 7: LED-large, 16,384 tokens"


@settings
class PaperOptions(SummaryOptions):
    """Encoding, generation, and ROUGE as published."""

    rouge: RougeRule = setting(ROUGE_TOKENS, "rouge-score")


class PaperSummarization(SummaryTask):
    """Articles and their abstracts; the name of a task tells its files."""

    Options: ClassVar[type] = PaperOptions
    options: PaperOptions

    def find_source(self, data: Path | None) -> PartFiles:
        """Return the files by split."""
        return papers.find_papers(data, self.info.name)

    def read(
        self, data: Path | None, reports: Mapping[Split, Report]
    ) -> Iterator[tuple[Split, SummarizedDocument]]:
        """Yield the papers of each file."""
        parts = self.find_source(data).parts
        for split in SPLITS:
            yield from ((split, x) for x in papers.read_papers(parts[split], reports[split]))


def _describe(name: str, title: str, what: str, published: tuple[Published, ...]) -> TaskInfo:
    return TaskInfo(
        name=name,
        title=title,
        summary=f"Write the abstract of {what}.",
        source=f"Cohan et al. 2018, {papers.URL}",
        license="none stated",
        vocab_size=ByteTokenizer.vocab_size + 1,
        num_classes=ByteTokenizer.vocab_size + 1,
        metrics=METRICS["rouge-score"],
        head="seq2seq",
        published=published,
        notes=_NOTES,
    )


def _published(mechanism: str, protocol: str, source: str, *values: float) -> tuple[Published, ...]:
    return tuple(
        Published(mechanism=mechanism, value=x, protocol=protocol, source=source, metric=metric)
        for metric, x in zip(METRICS["rouge-score"][:3], values, strict=True)
    )


@register
class ArxivSummarization(PaperSummarization):
    """Abstracts of papers of arXiv."""

    info = _describe(
        "arxiv_summarization",
        "arXiv summarization",
        "a paper of arXiv",
        _published("longformer", "documents", _LED, 0.4663, 0.1962, 0.4183),
    )


@register
class PubmedSummarization(PaperSummarization):
    """Abstracts of papers of PubMed."""

    info = _describe("pubmed_summarization", "PubMed summarization", "a paper of PubMed", ())
