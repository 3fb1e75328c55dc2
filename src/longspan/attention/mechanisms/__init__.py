"""Attention mechanisms, one file each."""
