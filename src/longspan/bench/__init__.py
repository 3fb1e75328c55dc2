"""Measuring a callable: seconds, peak memory, and the floor that the hardware sets."""

from longspan.bench.measure import Timing, compare, environment, gemm_rate

__all__ = ["Timing", "compare", "environment", "gemm_rate"]
