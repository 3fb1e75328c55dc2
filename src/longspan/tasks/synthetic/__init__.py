"""Diagnostic tasks whose examples are drawn."""
