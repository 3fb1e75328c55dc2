"""Spectrum of attention: cumulative share of the singular values of the matrix of weights.

Wang et al., "Linformer", 2020, figure 1: a steep rise says that few directions hold the matrix, so
that attention through as many slots loses little. Of a matrix of n tokens with the singular values
s_1 >= ... >= s_n, the share at rank r is (s_1 + ... + s_r) / (s_1 + ... + s_n).
"""

import math

import numpy as np
import torch
from torch import Tensor

from longspan.attention.weights import Call
from longspan.results.analysis import RANKS
from longspan.shapes import Float


@torch.no_grad()
def compute_spectra(call: Call, num_summary: int = 0) -> Float[Tensor, "B H R"]:
    """Return the cumulative share of the singular values at `RANKS`, for each head.

    Weights of padding are left out. A head that attends to nothing has NaN.

    Args:
        call: inputs of the mechanism in self-attention.
        num_summary: number of leading summary tokens, which are left out as queries and keys.
    """
    weights = torch.cat([block for _, block in call.columns()], -1)
    shares = weights.new_full((*weights.shape[:2], len(RANKS)), math.nan)
    for sample, is_real in enumerate(call.real):
        places = torch.nonzero(is_real)[:, 0]
        places = places[places >= num_summary]
        keys = places + weights.shape[3] - weights.shape[2]
        matrix = weights[sample][:, places][:, :, keys]
        values = torch.linalg.svdvals(matrix.cpu().double()).cumsum(-1)
        indices = [max(0, math.ceil(rank * len(places)) - 1) for rank in RANKS]
        shares[sample] = (values[:, indices] / values[:, -1:]).to(shares)
    return shares


def average_spectra(spectra: np.ndarray) -> list[list[list[float]]]:
    """Return the mean over samples, by layer, head and rank.

    Args:
        spectra: shares of samples, layers, heads and ranks, (S, L, H, R).
    """
    return np.nanmean(spectra, 0).tolist()
