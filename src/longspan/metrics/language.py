"""Metrics of language modeling: bits per byte, bits per character, perplexity, that per word."""

import math

import numpy as np

from longspan.metrics.base import Metric, ratio, register


def _bits(sums: np.ndarray) -> np.ndarray:
    return np.asarray(ratio(sums) / math.log(2))


def _perplexity(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(ratio(sums)))


BITS_PER_BYTE = register(
    Metric(
        name="bits_per_byte",
        title="Bits per byte",
        unit="bits/byte",
        decimals=3,
        higher_is_better=False,
        columns=("nats", "bytes"),
        finalize=_bits,
    )
)
BITS_PER_CHARACTER = register(
    Metric(
        name="bits_per_character",
        title="Bits per character",
        unit="bits/char",
        decimals=3,
        higher_is_better=False,
        columns=("nats", "characters"),
        finalize=_bits,
    )
)
PERPLEXITY = register(
    Metric(
        name="perplexity",
        title="Perplexity",
        decimals=2,
        higher_is_better=False,
        columns=("nats", "tokens"),
        finalize=_perplexity,
    )
)
WORD_PERPLEXITY = register(
    Metric(
        name="word_perplexity",
        title="Perplexity per word",
        decimals=2,
        higher_is_better=False,
        columns=("nats", "words"),
        finalize=_perplexity,
    )
)
