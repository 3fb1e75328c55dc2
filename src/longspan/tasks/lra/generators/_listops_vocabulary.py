"""Symbols of ListOps and their ids."""

# The id of a symbol is its index; id 0 is padding. Never change it: checkpoints depend on it.
VOCABULARY = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")

ZERO = VOCABULARY.index("0")
MIN, MAX, MED, SM = (VOCABULARY.index(name) for name in ("[MIN", "[MAX", "[MED", "[SM"))
CLOSE = VOCABULARY.index("X")
