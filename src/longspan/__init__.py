"""longspan: every efficient attention behind one interface, compared honestly.

    >>> import torch
    >>> from longspan import build
    >>> attention = build("local", window=64)
    >>> q = k = v = torch.randn(1, 8, 1000, 64)
    >>> attention(q, k, v).shape
    torch.Size([1, 8, 1000, 64])

Importing this package needs torch alone; models, tasks and the arena need `longspan[arena]`.
"""

from longspan.attention import MECHANISMS, Attention, build, options_of

__version__ = "0.1.0"
__all__ = ["MECHANISMS", "Attention", "__version__", "build", "options_of"]
