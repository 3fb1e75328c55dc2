"""Uncertainty of scores: intervals, paired comparisons, corrections for multiple testing."""
