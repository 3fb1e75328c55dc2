"""Documents with coreferent mentions: readers and encoding."""
