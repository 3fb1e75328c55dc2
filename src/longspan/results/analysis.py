"""Records of what a trained model attends to, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/analysis/<file name of the record>`.
"""

from typing import ClassVar

import numpy as np

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.packing import Quantized
from longspan.results.reading import ANALYSES
from longspan.results.rollout import Rollout
from longspan.results.side_record import SideRecord

ANALYSIS_SCHEMA = 2


@settings
class Span:
    """Distance in tokens: mean and standard deviation over the samples."""

    mean: float
    deviation: float


@settings
class Similarity:
    """Cosine similarities of embeddings, averaged over groups of neighbors.

    Attributes:
        count: number of embeddings.
        grid: rows and columns of the groups, where they are pixels or squares of an image; None
            where they are ranges of ids or positions.
        dimensions: numbers in a vector.
        vectors: mean unit vector of each group. The product of two is the mean cosine between the
            embeddings of one group and those of the other.
    """

    count: int
    grid: list[int] | None
    dimensions: int
    vectors: Quantized

    def read_vectors(self) -> np.ndarray:
        """Return the mean unit vectors, (G, D).

        Raises:
            DataError: the vectors are damaged.
        """
        values = self.vectors.unpack()
        if self.dimensions < 1 or len(values) % self.dimensions:
            raise DataError(f"{len(values)} numbers are no vectors of {self.dimensions}")
        vectors = values.reshape(-1, self.dimensions)
        if self.grid is not None and len(vectors) != np.prod(self.grid):
            raise DataError(f"{len(vectors)} vectors do not fill a grid of {self.grid}")
        return vectors

    def cosines(self) -> np.ndarray:
        """Return the mean cosine of each pair of groups, (G, G).

        Raises:
            DataError: the vectors are damaged.
        """
        vectors = self.read_vectors()
        return vectors @ vectors.T


@settings
class AttentionSpans:
    """Attention spans over validation samples.

    The span of a sample is the mean over its real tokens t of sum_s a_ts |t - s| (Tay et al.
    2021, section 3.4), with a_ts = |w_ts| / sum_s |w_ts| over the real tokens s. Weights may be
    implicit and negative. A CLS token counts neither as t nor as s.

    Attributes:
        samples: sequences analyzed; a pair has two, a text in several windows the first one.
        available: sequences of the split.
        mean_length: real tokens per sample.
        uniform: span of uniform attention on the samples.
        negative: share of the weights' absolute sum that is negative.
        mean: mean over layers and heads.
        layers: mean over heads, by layer.
        heads: by layer and head.
    """

    samples: int
    available: int
    mean_length: float
    uniform: float
    negative: float
    mean: Span
    layers: list[Span]
    heads: list[list[Span]]


@settings
class Analysis(SideRecord):
    """Attention and embeddings of one trained model.

    Attributes:
        spans: attention spans; None if the model has no attention weights.
        rollouts: of some validation examples; a pair has two. Empty without attention weights.
        refusal: reason for the lack of attention weights; None with them.
        positions: similarity of the position embeddings; None without a table of them.
        reference: name of the reference row or variant; None for a row of the mechanism.
        tokens: similarity of the token embeddings; None for continuous inputs.
    """

    subfolder: ClassVar[str] = ANALYSES
    title: ClassVar[str] = "an analysis"
    remedy: ClassVar[str] = "analyze again"
    protocol: str
    task: str
    mechanism: str
    seed: int
    config_hash: str
    split: str
    spans: AttentionSpans | None
    rollouts: list[Rollout]
    refusal: str | None
    positions: Similarity | None
    tokens: Similarity | None
    device: str
    versions: dict[str, str]
    date: str  # ISO 8601, UTC
    reference: str | None = None
    schema: int = ANALYSIS_SCHEMA

    def check(self) -> None:
        """Check that the packed numbers can be read, and agree with each other.

        Raises:
            DataError: they do not.
        """
        for rollout in self.rollouts:
            rollout.check()
        for similarity in filter(None, (self.positions, self.tokens)):
            similarity.read_vectors()
