"""Records of what a trained model attends to, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/analysis/<file name of the record>`.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from longspan.config import settings
from longspan.errors import DataError
from longspan.results.packing import Quantized, quantize
from longspan.results.reading import ANALYSES
from longspan.results.side_record import SideRecord

_ANALYSIS_SCHEMA = 2
GRAY_LEVELS = 256
RANKS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)  # shares of the number of tokens


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
        uniform: span of uniform attention on the samples; of a causal model, of causal attention.
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
class Spectra:
    """Cumulative share of the singular values of attention, mean over validation samples.

    Attributes:
        samples: sequences analyzed.
        heads: share at each of `RANKS`, by layer and head.
    """

    samples: int
    heads: list[list[list[float]]]

    def share(self, rank: float, layer: int | None = None) -> float:
        """Return the share at one of `RANKS`, mean over heads, of a layer or of all.

        Args:
            rank: share of the number of tokens.
            layer: number of the layer from 0; None: the mean over all.
        """
        values = np.array(self.heads)[..., RANKS.index(rank)]
        return float((values if layer is None else values[layer]).mean())


@settings
class Rollout:
    """Attention rollout: the share of each input token in the output, for one sequence.

    The shares sum to one, together with that of the CLS token where the model has one.

    Attributes:
        split: split of the example.
        row: row of the example.
        part: 1, or 2 for the second sequence of a pair.
        start: states that are traced back, such as "the CLS token" or "token 3".
        label: class of the example; None where it has not one class, or not recorded.
        prediction: class that the model predicts; None like `label`.
        shares: share of each input token.
        side: side of the image that the tokens form; None for other inputs.
        levels: gray levels of the image, 0 to 255.
        text: tokens as text, for other inputs.
        separator: text between two tokens; empty where every token is one character.
    """

    split: str
    row: int
    part: int
    start: str
    label: str | None
    prediction: str | None
    shares: Quantized
    side: int | None
    levels: Quantized | None
    text: str | None
    separator: str = ""

    @property
    def tokens(self) -> list[str] | None:
        """Tokens as text; None for images."""
        if self.text is None:
            return None
        return self.text.split(self.separator) if self.separator else list(self.text)

    def check(self) -> None:
        """Check that there are as many shares as tokens or pixels.

        Raises:
            DataError: the numbers differ, or the packed numbers are damaged.
        """
        shares = len(self.shares.unpack())
        tokens = self.tokens
        if tokens is None:
            tokens = [] if self.levels is None else self.levels.unpack().tolist()
        if len(tokens) != shares or (self.side is not None and self.side**2 != shares):
            raise DataError(
                f"rollout of example {self.row}: {shares} shares of {len(tokens)} tokens"
            )


@settings
class Analysis(SideRecord):
    """Attention and embeddings of one trained model.

    Attributes:
        spans: attention spans; None if the model has no attention weights.
        spectra: singular values of the weights; None without weights, of long inputs, where a head
            attends to nothing, and in older records.
        rollouts: of some validation examples; a pair has two. Empty without attention weights.
        refusal: reason for the lack of attention weights; None with them.
        positions: similarity of the position embeddings; None without a table of them.
        tokens: similarity of the token embeddings; None for continuous inputs.
    """

    subfolder: ClassVar[str] = ANALYSES
    title: ClassVar[str] = "an analysis"
    remedy: ClassVar[str] = "analyze again"
    task: str
    split: str
    spans: AttentionSpans | None
    rollouts: list[Rollout]
    refusal: str | None
    positions: Similarity | None
    tokens: Similarity | None
    device: str
    versions: dict[str, str]
    spectra: Spectra | None = None
    schema: int = _ANALYSIS_SCHEMA

    def check(self) -> None:
        """Check that the packed numbers can be read, and agree with each other.

        Raises:
            DataError: they do not.
        """
        for rollout in self.rollouts:
            rollout.check()
        for similarity in filter(None, (self.positions, self.tokens)):
            similarity.read_vectors()


def pack_tokens(tokens: list[str]) -> dict[str, str]:
    """Return the fields `text` and `separator` of a rollout; spaces in long tokens become `␣`."""
    if all(len(token) == 1 for token in tokens):
        return {"text": "".join(tokens), "separator": ""}
    return {"text": " ".join(token.replace(" ", "␣") for token in tokens), "separator": " "}


def pack_levels(levels: ArrayLike) -> Quantized:
    """Return the field `levels` of a rollout."""
    return quantize(levels, 8, (0.0, GRAY_LEVELS - 1.0))
