"""Normalization of values that can be skipped while attention weights are extracted.

The output of nearly every mechanism is linear in the values, out = W v, and W is obtained by mixing
the identity. A norm of the values is not linear; without it, the mechanism is.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn


class ValueNorm(nn.Module):
    """Normalization that can be skipped where it is applied to values."""

    is_skipped: bool = False

    def normalize_values(self, v: Tensor) -> Tensor:
        """Normalize the values, or return them unchanged within `skip_value_norms`."""
        return v if self.is_skipped else self(v)


@contextlib.contextmanager
def skip_value_norms(attention: nn.Module) -> Iterator[None]:
    """Skip the norms of values within this context."""
    norms = [module for module in attention.modules() if isinstance(module, ValueNorm)]
    try:
        for norm in norms:
            norm.is_skipped = True
        yield
    finally:
        for norm in norms:
            norm.is_skipped = False
