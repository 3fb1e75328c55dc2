"""Document ranking."""
