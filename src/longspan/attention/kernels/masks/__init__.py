"""Masks of kernels: tiles that they visit, and those of a batch kept for its layers."""
