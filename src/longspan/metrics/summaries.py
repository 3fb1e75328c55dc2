"""Metrics of summarization: ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004).

Scores are those of the package `rouge-score`, the port that published summarization results use.
"""

import functools

from longspan.metrics.base import percent

ROUGE_1 = percent("rouge1", "ROUGE-1", ("f_measure", "summaries"))
ROUGE_2 = percent("rouge2", "ROUGE-2", ("f_measure", "summaries"))
ROUGE_L = percent("rougeL", "ROUGE-L", ("f_measure", "summaries"))
ROUGE_LSUM = percent("rougeLsum", "ROUGE-Lsum", ("f_measure", "summaries"))

ROUGE = (ROUGE_1.name, ROUGE_2.name, ROUGE_L.name, ROUGE_LSUM.name)


def rouge(summary: str, reference: str) -> dict[str, float]:
    """Return the F-measures of a summary by metric name, with Porter stemming.

    Sentences of both texts are on lines of their own, as ROUGE-Lsum expects.
    """
    scores = _scorer().score(reference, summary)
    return {name: scores[name].fmeasure for name in ROUGE}


@functools.cache
def _scorer():
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)
