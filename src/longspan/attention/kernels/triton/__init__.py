"""Kernels in Triton, imported by the files beside this folder when a call first needs them."""

import importlib.util

# Read once: torch.compile of torch 2.11 does not trace `find_spec`.
IS_INSTALLED = importlib.util.find_spec("triton") is not None
