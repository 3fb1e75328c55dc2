"""Corpora of one's own: documents of files and data sets, split, tokenized and stored once."""
