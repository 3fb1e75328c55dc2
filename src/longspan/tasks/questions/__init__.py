"""Question answering over long contexts."""
