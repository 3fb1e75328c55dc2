"""Entry points of installed packages that extend longspan; importable without torch."""

import importlib.metadata

GROUP = "longspan.plugins"


def plugin_entry_points() -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of the group `longspan.plugins`, sorted by name."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
