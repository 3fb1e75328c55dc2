"""Imports of a user's own files: checks, splits, and their storage in the cache under a name."""
