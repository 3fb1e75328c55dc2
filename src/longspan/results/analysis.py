"""Records of what a trained model attends to, stored next to the record of its run.

The path is `<results>/<protocol>/<task>/analysis/<file name of the record>`.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from longspan.config import settings
from longspan.errors import DataError
from longspan.files import read_json_file, write_json
from longspan.results.reading import other_folders, validate

ANALYSIS_SCHEMA = 1
FOLDER = "analysis"


@settings
class Span:
    """Distance in tokens: mean and standard deviation over the samples."""

    mean: float
    deviation: float


@settings
class Similarity:
    """Cosine similarities of embeddings, averaged over groups of neighbors.

    Cell (i, j) is the mean cosine between the embeddings of group i and those of group j.

    Attributes:
        count: number of embeddings.
        grid: rows and columns of the squares of an image; None where groups are ranges of ids or
            positions.
        matrix: mean cosines.
    """

    count: int
    grid: list[int] | None
    matrix: list[list[float]]


@settings
class Rollout:
    """Attention rollout: the share of each input token in the output.

    The shares sum to one, together with that of the summary token where the model has one.

    Attributes:
        split: split of the input.
        row: row of the input.
        start: states that are traced back: "first state" or "mean of states".
        shares: share of each input token.
        side: side of the image that the tokens form; None for other inputs.
        levels: gray levels of the image, 0 to 255.
        tokens: tokens as text, for other inputs.
    """

    split: str
    row: int
    start: str
    shares: list[float]
    side: int | None
    levels: list[int] | None
    tokens: list[str] | None


@settings
class Analysis:
    """Attention of one trained model over validation samples.

    The span of a sample is the mean over its real tokens t of sum_s a_ts |t - s| (Tay et al.
    2021, section 3.4), with a_ts = |w_ts| / sum_s |w_ts| over the real tokens s. Weights may be
    implicit and negative. A summary token counts neither as t nor as s.

    Attributes:
        samples: sequences analyzed; a pair has two.
        available: sequences of the split.
        mean_length: real tokens per sample.
        uniform: span of uniform attention on the samples.
        negative: share of the weights' absolute sum that is negative.
        span: mean over layers and heads.
        layers: mean over heads, by layer.
        heads: by layer and head.
        positions: similarity of the position embeddings; None without a table of them.
        tokens: similarity of the token embeddings; None for continuous inputs.
    """

    protocol: str
    task: str
    mechanism: str
    seed: int
    config_hash: str
    split: str
    samples: int
    available: int
    mean_length: float
    uniform: float
    negative: float
    span: Span
    layers: list[Span]
    heads: list[list[Span]]
    positions: Similarity | None
    tokens: Similarity | None
    rollout: Rollout | None
    device: str
    versions: dict[str, str]
    date: str  # ISO 8601, UTC
    schema: int = ANALYSIS_SCHEMA

    @property
    def filename(self) -> str:
        """Name of the file, equal to that of the run's record."""
        return f"{self.mechanism}-{self.config_hash}-{self.seed}.json"

    def save(self, folder: Path) -> Path:
        """Write the analysis below the folder of the run's record; return its path."""
        path = folder / FOLDER / self.filename
        write_json(path, dataclasses.asdict(self))
        return path


def load_analysis(path: Path) -> Analysis:
    """Read one analysis.

    Raises:
        DataError: the file is not a valid analysis; the message lists every reason.
    """
    _, text, content = read_json_file(path)
    if not isinstance(content, dict) or content.get("schema") != ANALYSIS_SCHEMA:
        raise DataError(f"{path} is not an analysis of schema {ANALYSIS_SCHEMA}; analyze again")
    return validate(Analysis, text, path)


def load_analyses(folders: Iterable[Path]) -> list[Analysis]:
    """Read all analyses below some folders, in a stable order; there may be none.

    Raises:
        DataError: a file is invalid.
    """
    return [
        load_analysis(path)
        for folder in folders
        for path in sorted(folder.rglob(f"{FOLDER}/*.json"))
        if not path.name.startswith(".") and other_folders(path, folder) == {FOLDER}
    ]
