"""Metrics of summarization: ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004).

Scores are those of the package `rouge-score`, the Python port of ROUGE-1.5.5 that published
summarization results use.
"""

import functools
from typing import Any

from longspan.metrics.base import register_percentage

ROUGE_1 = register_percentage("rouge1", "ROUGE-1", ("f_measure", "summaries"))
ROUGE_2 = register_percentage("rouge2", "ROUGE-2", ("f_measure", "summaries"))
ROUGE_L = register_percentage("rougeL", "ROUGE-L", ("f_measure", "summaries"))
ROUGE_LSUM = register_percentage("rougeLsum", "ROUGE-Lsum", ("f_measure", "summaries"))

ROUGE = (ROUGE_1.name, ROUGE_2.name, ROUGE_L.name, ROUGE_LSUM.name)


def rouge(summary: str, reference: str) -> dict[str, float]:
    """Return the F-measures of a summary by metric name, with Porter stemming.

    ROUGE-Lsum treats each line of the texts as a sentence.
    """
    scores = _scorer().score(reference, summary)
    return {name: scores[name].fmeasure for name in ROUGE}


@functools.cache
def _scorer() -> Any:
    # Imported on use: the package loads nltk, which takes a second.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)
