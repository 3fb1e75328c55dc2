"""Records of what a language model uses of its context, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/context/<file name of the record>`.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import ClassVar

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.reading import CONTEXTS
from longspan.results.side_record import SideRecord

_CONTEXT_SCHEMA = 2
BLOCK = 16  # consecutive targets whose context is cut at the same token


@settings
class PositionLoss:
    """Mean nats of the targets at some positions of the held-out segments.

    Attributes:
        first: first position, counted from 0.
        last: last position.
        targets: number of targets.
        fresh: loss of the model that begins anew with every segment.
        kept: loss of the model that keeps its state from segment to segment; None: it keeps none.
    """

    first: int
    last: int
    targets: int
    fresh: float
    kept: float | None


@settings
class ContextLoss:
    """Mean nats of the sampled targets when the last tokens before their block alone are read.

    Attributes:
        context: number of these tokens.
        loss: mean over the blocks.
        difference: loss less that with the longest context.
        low: lower end of the 95 % interval of the difference, paired over the blocks.
        high: upper end.
    """

    context: int
    loss: float
    difference: float
    low: float
    high: float


@settings
class ContextUse(SideRecord):
    """Losses of one trained language model by position and by the context that is left.

    Attributes:
        split: held-out split.
        segment: tokens of a held-out segment.
        positions: losses by position in the segment.
        blocks: sampled blocks of targets.
        available: blocks that have the longest context before them.
        contexts: losses by the context that is left, the shortest context first.
        tolerance: relative excess of the loss that counts as none.
        effective: smallest of the contexts with a loss within the tolerance of the last one's.
        parts: share of the attention weight on each part of the keys, by name of the part, for
            each layer; empty for a layer without a memory.
        buckets: share of the attention weight on equal buckets of the keys of each part, the oldest
            first, for each layer like `parts`; empty: not measured.
        part_windows: held-out sequences that these shares are averaged over; 0: none was long
            enough to fill the memories, or there are none.
    """

    subfolder: ClassVar[str] = CONTEXTS
    title: ClassVar[str] = "a record of the use of the context"
    remedy: ClassVar[str] = "measure again"
    task: str
    split: str
    segment: int
    positions: list[PositionLoss]
    blocks: int
    available: int
    contexts: list[ContextLoss]
    tolerance: float
    effective: int
    parts: list[dict[str, float]]
    buckets: list[dict[str, list[float]]]
    part_windows: int
    device: str
    versions: dict[str, str]
    schema: int = _CONTEXT_SCHEMA

    def check(self) -> None:
        """Check that the numbers agree with each other.

        Raises:
            DataError: they do not; the message lists every reason.
        """
        if reasons := [*self._position_reasons(), *self._context_reasons(), *self._part_reasons()]:
            raise DataError("; ".join(reasons))

    def _position_reasons(self) -> Iterable[str]:
        bounds = [(0, -1), *((one.first, one.last) for one in self.positions)]
        if not self.positions or any(a[1] + 1 != b[0] or b[1] < b[0] for a, b in pairwise(bounds)):
            yield "positions do not follow each other from 0 on"
        if len({one.kept is None for one in self.positions}) > 1:
            yield "losses with state are missing at some positions"

    def _context_reasons(self) -> Iterable[str]:
        lengths = [one.context for one in self.contexts]
        if not lengths or lengths != sorted(set(lengths)):
            yield f"contexts must ascend, got {lengths}"
            return
        longest = self.contexts[-1].loss
        for one in self.contexts:
            if not math.isclose(one.difference, one.loss - longest, rel_tol=1e-6, abs_tol=1e-9):
                yield f"the difference at {one.context} tokens is not that of the losses"
        if self.effective != (expected := effective_context(self.contexts, self.tolerance)):
            yield f"the effective context must be {expected}, got {self.effective}"

    def _part_reasons(self) -> Iterable[str]:
        for number, shares in enumerate(self.parts, 1):
            if shares and not math.isclose(sum(shares.values()), 1, abs_tol=1e-3):
                yield f"shares of layer {number} must sum to 1, got {sum(shares.values()):.4f}"
        if not self.buckets:
            return
        if [list(layer) for layer in self.buckets] != [list(layer) for layer in self.parts]:
            yield "buckets must have the layers and parts of the shares by part"
            return
        for number, (shares, layer) in enumerate(zip(self.parts, self.buckets, strict=True), 1):
            for name, values in layer.items():
                if not math.isclose(math.fsum(values), shares[name], abs_tol=1e-6):
                    yield f"buckets of {name} in layer {number} do not sum to its share"


def effective_context(contexts: Sequence[ContextLoss], tolerance: float) -> int:
    """Return the smallest context whose loss exceeds that of the last one by the tolerance at most.

    Args:
        contexts: losses by context, the shortest context first.
        tolerance: largest relative excess.
    """
    limit = contexts[-1].loss * (1 + tolerance)
    return next((x.context for x in contexts if x.loss <= limit), contexts[-1].context)
