"""Metrics of ranking as trec_eval defines them, in plain Python."""

import math


def plain_score(name, run, judgments):
    """Return a metric as trec_eval defines it, from scores and grades of documents by id."""
    measure, _, k = name.partition("@")
    ranked = sorted(run, key=lambda document: (run[document], document), reverse=True)[: int(k)]
    relevant = {document for document, grade in judgments.items() if grade >= 1}
    if measure == "mrr":
        return next((1 / n for n, x in enumerate(ranked, 1) if x in relevant), 0.0)
    if measure == "recall":
        return len(relevant & set(ranked)) / len(relevant)
    gains = sorted((max(0, x) for x in judgments.values()), reverse=True)[: int(k)]
    found = [max(0, judgments.get(document, 0)) for document in ranked]
    sums = [sum(g / math.log2(n + 1) for n, g in enumerate(x, 1)) for x in (found, gains)]
    return sums[0] / sums[1]
