"""Attention that returns its values: the bound of what any mechanism can reach.

Choromanski et al. 2021 (https://arxiv.org/abs/2009.14794), figure of speed, "OPT".
"""

from longspan.attention import Attention, Traits


class Identity(Attention):
    """Return the value of each token; no mechanism of the registry, since it attends to nothing."""

    name = "identity"
    traits = Traits(family="fixed pattern", cost="T", exact=False, inputs="v")

    def attend(self, x):
        """Return the values."""
        return x.v

    def flops(self, T, head_dim):
        """Count nothing."""
        return 0
