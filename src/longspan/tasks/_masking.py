"""Masked language modeling: which tokens are hidden, and what the model reads in their place.

Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.1: of 15 % of the tokens 80 % are
replaced by the mask, 10 % by a random token, and 10 % are kept. Masks are drawn anew for every
batch, as in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 4.1). As in the
code of RoBERTa (facebookresearch/fairseq, fairseq/data/mask_tokens_dataset.py) the number of masked
tokens is the share of the example, rounded up or down at random. Differences: special tokens are
neither masked nor drawn, as in BERT, and an example has at least one masked token.
"""

import dataclasses
import functools

import numpy as np

from longspan.tasks.scoring import IGNORE


@dataclasses.dataclass(frozen=True, eq=False)
class Masking:
    """Draw of masked tokens.

    Attributes:
        probability: share of the tokens of an example that are masked.
        replaced: share of those that the mask token replaces.
        random: share of those that a random token replaces.
        mask_id: id of the mask token.
        special: True for each id that is neither masked nor drawn.
    """

    probability: float
    replaced: float
    random: float
    mask_id: int
    special: np.ndarray

    def apply(
        self, ids: np.ndarray, real: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids with masked tokens, and the targets, both int64 (B, T).

        Args:
            ids: token ids, (B, T) int64.
            real: True where an example has a token.
            draws: source of all random numbers.
        """
        open_ = real & ~self.special[ids]
        chosen = self._choose(open_, draws)
        targets = np.where(chosen, ids, IGNORE)
        # One number decides what stands at a masked position.
        place = draws.random(ids.shape, np.float32)
        drawn = self._ordinary[draws.integers(0, len(self._ordinary), ids.shape)]
        hidden = chosen & (place < self.replaced)
        swapped = chosen & ~hidden & (place < self.replaced + self.random)
        return np.where(hidden, self.mask_id, np.where(swapped, drawn, ids)), targets

    def _choose(self, open_: np.ndarray, draws: np.random.Generator) -> np.ndarray:
        """Return which tokens are masked: a share of the open ones of each example."""
        count = open_.sum(1)
        wanted = np.floor(self.probability * count + draws.random(len(open_))).astype(np.int64)
        wanted = np.minimum(np.maximum(wanted, 1), count)
        keys = np.where(open_, draws.random(open_.shape), 2.0)
        # numbers are sorted faster than they are ranked
        last = np.sort(keys, axis=1)[np.arange(len(keys)), np.maximum(wanted - 1, 0)]
        return open_ & (keys <= last[:, None])

    @functools.cached_property
    def _ordinary(self) -> np.ndarray:
        """Ids that may be drawn."""
        return np.flatnonzero(~self.special)
