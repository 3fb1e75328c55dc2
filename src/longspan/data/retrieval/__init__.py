"""Retrieval data: documents, queries, and which documents answer which query."""
