"""Mechanisms in models of transformers: by name, or added to their attention modules.

Importing this package imports transformers; `import longspan` does not.
"""

from longspan.interop.loading import load_swapped
from longspan.interop.registration import register_attention
from longspan.interop.swapping import SwapReport, swap

__all__ = ["SwapReport", "load_swapped", "register_attention", "swap"]
