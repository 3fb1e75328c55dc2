"""The symbols of ListOps and their ids."""

# The id of a token is its place here; id 0 is padding. Fixed for ever: a checkpoint depends on it.
VOCABULARY = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")

ZERO = VOCABULARY.index("0")
MIN, MAX, MED, SM = (VOCABULARY.index(name) for name in ("[MIN", "[MAX", "[MED", "[SM"))
CLOSE = VOCABULARY.index("X")
