"""Runs on documents of one's own: their start, and their scores beside TF-IDF."""
