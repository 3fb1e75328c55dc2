"""Analysis of trained models: attention weights, span and rollout, similarity of embeddings."""

from longspan.analysis.run_analysis import analyze_run

__all__ = ["analyze_run"]
