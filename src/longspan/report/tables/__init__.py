"""Tables of a report as values; every output format renders the same ones."""
