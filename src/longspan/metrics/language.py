"""Metrics of language modeling: bits per byte, bits per character, perplexity, that per word."""

import math

import numpy as np

from longspan.metrics.base import Metric, ratio, register

_MOST_NATS = 700.0  # above, the perplexity is that of so many: JSON has no infinity


def _bits(sums: np.ndarray) -> np.ndarray:
    return np.asarray(ratio(sums) / math.log(2))


def _perplexity(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(ratio(sums), _MOST_NATS)))


def _register(name: str, title: str, unit: str, count: str) -> None:
    """Register a metric of the nats of some tokens, bytes, characters or words."""
    register(
        Metric(
            name=name,
            title=title,
            unit=unit,
            decimals=3 if unit else 2,
            higher_is_better=False,
            lowest=0.0 if unit else 1.0,
            columns=("nats", count),
            finalize=_bits if unit else _perplexity,
        )
    )


_register("bits_per_byte", "Bits per byte", "bits/byte", "bytes")
_register("bits_per_character", "Bits per character", "bits/char", "characters")
_register("perplexity", "Perplexity", "", "tokens")
_register("word_perplexity", "Perplexity per word", "", "words")
