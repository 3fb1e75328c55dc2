"""Spectrum of known attention weights."""

import math

import numpy as np
import pytest
import torch

import mechanism_calls as calls
from longspan.analysis.spectrum import average_spectra, compute_spectra
from longspan.results import Spectra
from longspan.results.analysis import RANKS

T = 64


def spectrum(weights, **mask):
    return compute_spectra(calls.call_with(weights, **mask))[0]


def test_uniform_attention_has_one_direction():
    assert spectrum(torch.full((2, T, T), 1 / T).double()).tolist() == [pytest.approx([1] * 6)] * 2


def test_identity_has_all_directions_alike():
    shares = spectrum(torch.eye(T).double().expand(2, T, T))
    assert shares.tolist() == [pytest.approx(list(RANKS))] * 2


def test_shares_are_those_of_numpy_without_the_summary_token():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, T, T, generator=generator, dtype=torch.float64).softmax(-1)
    for special in (0, 1):
        shares = compute_spectra(calls.call_with(weights), special)[0]
        for head in range(2):
            values = np.linalg.svd(weights[head, special:, special:].numpy(), compute_uv=False)
            ranks = [max(1, math.ceil(x * (T - special))) for x in RANKS]
            expected = [values[:rank].sum() / values.sum() for rank in ranks]
            assert shares[head].tolist() == pytest.approx(expected)


def test_padding_is_left_out():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, T, T, generator=generator, dtype=torch.float64)
    mask = torch.arange(T)[None] < T - 16
    padded = spectrum(weights, mask=mask)
    assert padded.tolist()[0] == pytest.approx(spectrum(weights[:, : T - 16, : T - 16]).tolist()[0])


def test_heads_that_attend_to_nothing_are_left_out_of_means():
    shares = spectrum(torch.zeros(1, T, T).double())
    assert shares.isnan().all()
    values = np.stack([np.full((1, 1, 6), np.nan), np.full((1, 1, 6), 0.5)])
    assert average_spectra(values) == [[[0.5] * 6]]


def test_record_gives_means_of_heads_by_layer():
    heads = [[[0.1] * 6, [0.3] * 6], [[0.5] * 6, [0.9] * 6]]
    one = Spectra(samples=3, heads=heads)
    assert (one.share(1 / 4, 0), one.share(1 / 4, 1), one.share(1 / 4)) == pytest.approx(
        (0.2, 0.7, 0.45)
    )
