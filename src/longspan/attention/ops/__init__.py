"""Building blocks that two or more mechanisms share."""
