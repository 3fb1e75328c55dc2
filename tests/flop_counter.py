"""FLOPs that torch counts, those of fused attention on CPU included."""

from torch.utils.flop_counter import FlopCounterMode

from longspan.bench.counting import FORMULAS


def flop_counter() -> FlopCounterMode:
    """Return a counter for `with`; `get_total_flops()` is its result."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)
