"""What a trained model attends to: weights, their span, their rollout; what embeddings share."""

from longspan.analysis.run import analyse

__all__ = ["analyse"]
