"""Questions about documents: readers of the published files, and mentions of the answers."""
