"""The compiled generator splitmix64 (Steele, Lea and Flood 2014), used by all image and tree draws.

The state advances by `GOLDEN` before each draw; `mix_bits` turns the state into 64 random bits.
"""

from typing import no_type_check

import numba
import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


# `no_type_check` keeps the tests' type checker from wrapping this function for numba.
@numba.njit(nogil=True, cache=True)
@no_type_check
def mix_bits(state):
    """Return the 64 random bits of a state."""
    bits = (state ^ (state >> np.uint64(30))) * _MIX_A
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_B
    return bits ^ (bits >> np.uint64(31))
