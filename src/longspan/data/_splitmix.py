"""The constants of splitmix64 (Steele, Lea and Flood 2014), from which everything is drawn."""

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
