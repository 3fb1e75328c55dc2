"""Metrics of ranking: mean reciprocal rank (Voorhees 1999, TREC-8 question answering track)."""

from longspan.metrics.base import register_percentage

MRR = register_percentage("mrr", "Mean reciprocal rank", ("reciprocal_rank", "queries"))
