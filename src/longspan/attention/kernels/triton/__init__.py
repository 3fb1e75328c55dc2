"""Kernels in Triton, imported by the files beside this folder when a call first needs them."""
