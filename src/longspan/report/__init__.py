"""Tables, charts and one self-contained page, drawn from result records alone (no torch)."""
