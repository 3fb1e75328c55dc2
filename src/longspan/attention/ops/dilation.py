"""Windows per layer and dilations per head, as options of a mechanism."""

from longspan.attention.patterns import Pattern, PerHead, Window
from longspan.errors import OptionError

Windows = int | list[int]
Dilations = int | list[int] | list[list[int]]
LAYERED = {"window": 1, "dilation": 2}  # depth of a list with a value for each layer


def make_dilated_window(
    name: str, window: Windows, dilation: Dilations, heads: int, layer: int, causal: bool
) -> Pattern:
    """Return the window pattern of one layer, with a dilation for each head.

    Args:
        name: mechanism, for the error message.
        window: keys on either side of a query (before it, if causal), for all layers or per layer.
        dilation: step between the keys of a window, for all heads, per head, or per layer and head.
            1 means every key.
        heads: number of heads.
        layer: index of the layer, from 0.
        causal: whether keys after the query are excluded.

    Raises:
        OptionError: an option is invalid; the message lists every reason.
    """
    widths, steps = [window] if isinstance(window, int) else window, _rows(dilation, heads)
    layered = {"window": isinstance(window, list), "dilation": steps == dilation}
    reasons = [
        f"{what} lists {len(rows)} layers, but this is layer {layer} (counted from 0)"
        for what, rows in (("window", widths), ("dilation", steps))
        if layered[what] and layer >= len(rows)
    ]
    if any(len(row) != heads for row in steps):
        reasons.append(f"dilation must be one number, or one per head ({heads}), got {dilation}")
    if reasons:
        raise OptionError(f"{name} cannot be built: {'; '.join(reasons)}")
    before = widths[layer if layered["window"] else 0]
    row = steps[layer if layered["dilation"] else 0]
    patterns = tuple(Window(before, 0 if causal else before, step) for step in row)
    return PerHead(patterns) if len(set(patterns)) > 1 else patterns[0]


def _rows(dilation: Dilations, heads: int) -> list[list[int]]:
    """Return the dilations of all heads per listed layer, or one row for all layers."""
    if isinstance(dilation, int):
        return [[dilation] * heads]
    flat = [step for step in dilation if isinstance(step, int)]
    return [flat] if flat else [row for row in dilation if isinstance(row, list)]
