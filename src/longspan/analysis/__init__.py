"""Analysis of trained models: attention weights, span and rollout, similarity of embeddings.

Of language models, the use of the context.
"""

from longspan.analysis.run_analysis import analyze_run
from longspan.analysis.run_context import measure_context

__all__ = ["analyze_run", "measure_context"]
