"""Leaderboards: the scores, costs and ranks of all mechanisms under one protocol and budget."""
