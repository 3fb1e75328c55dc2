"""Generators, readers, and the cache of built splits; nothing here knows a task by name."""
