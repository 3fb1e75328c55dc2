"""Where a mechanism does more to values than to weigh them: what to leave out to read weights off.

The output of nearly every mechanism is linear in the values, out = W v, and W is read off by
mixing the identity. A norm of the values is not linear; counted as the identity, the rest is.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn


class ValueNorm(nn.Module):
    """A norm that can be left out where it is applied to values."""

    is_skipped: bool = False

    def normalize_values(self, v: Tensor) -> Tensor:
        """The norm of the values, or within `skip_value_norms` they themselves."""
        return v if self.is_skipped else self(v)


@contextlib.contextmanager
def skip_value_norms(attention: nn.Module) -> Iterator[None]:
    """Within it the mechanism weighs its values as they are."""
    norms = [module for module in attention.modules() if isinstance(module, ValueNorm)]
    try:
        for norm in norms:
            norm.is_skipped = True
        yield
    finally:
        for norm in norms:
            norm.is_skipped = False
