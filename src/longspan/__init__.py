"""longspan: every efficient attention behind one interface, compared honestly.

    >>> import torch
    >>> from longspan import build
    >>> attention = build("local", window=64)
    >>> q = k = v = torch.randn(1, 8, 1000, 64)
    >>> attention(q, k, v).shape
    torch.Size([1, 8, 1000, 64])

`register_attention` and `swap` put mechanisms into models of transformers; `longify` converts a
short pretrained encoder into a long one.

The mechanisms need torch alone; models, tasks and the arena need `longspan[arena]`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.attention import MECHANISMS, Attention, build, options_of
    from longspan.interop import load_swapped, register_attention, swap
    from longspan.models import longify

__version__ = "0.2.0"
__all__ = [
    "MECHANISMS",
    "Attention",
    "__version__",
    "build",
    "load_swapped",
    "longify",
    "options_of",
    "register_attention",
    "swap",
]
INTEROP = ("load_swapped", "register_attention", "swap")  # import transformers


def __getattr__(name: str) -> Any:
    """Import the mechanisms when they are asked for: records and reports need no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in INTEROP:
        from longspan import interop

        return getattr(interop, name)
    if name == "longify":
        from longspan.models import longify

        return longify
    from longspan import attention

    return getattr(attention, name)
