"""What a trained model looks at, written down beside the record of its run.

`<runs>/<protocol>/<task>/analysis/<name of the record>.json`; nothing here needs torch.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longspan.errors import DataError
from longspan.files import read_json, write_json
from longspan.results.reading import _made, aside

ANALYSIS = 1  # schema
FOLDER = "analysis"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A distance in tokens: mean over the samples, and how far single samples are from it."""

    mean: float
    deviation: float  # standard deviation over the samples; 0 with one of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Similarity:
    """Cosines of embeddings with one another, as means over groups of neighbours.

    Cell (i, j) is the mean cosine of the embeddings of group i with those of group j. With a
    `grid` the groups are squares of an image, row by row; otherwise stretches of ids or positions.
    """

    count: int  # embeddings, before they were put in groups
    grid: list[int] | None  # rows and columns of squares
    matrix: list[list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """How much of one input reaches the output, by token (attention rollout).

    The shares sum to one, together with that of the summary that a model may put before the input.
    """

    split: str
    row: int
    start: str  # what is followed back: "first state", or "mean of states"
    shares: list[float]  # of each token of the input
    side: int | None  # of the image that the tokens are, row by row
    levels: list[int] | None  # its grey levels, 0 to 255
    tokens: list[str] | None  # in words, where the input is no image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """The attention of one trained model over validation samples.

    The span of a sample is the mean over its real tokens t of sum_s a_ts |t - s| (Tay et al.
    2021, section 3.4), with a_ts = |w_ts| / sum_s |w_ts| over the real tokens s: weights may be
    implicit and negative, and a summary token counts neither as t nor as s.
    """

    protocol: str
    task: str
    mechanism: str
    seed: int
    config_hash: str
    split: str
    samples: int  # sequences looked at; a pair has two
    available: int  # sequences of the split
    mean_length: float  # real tokens of the samples
    uniform: float  # span of uniform attention on them
    negative: float  # share of the weights' absolute sum that is negative
    span: Span  # mean over layers and heads
    layers: list[Span]  # mean over heads
    heads: list[list[Span]]  # by layer
    positions: Similarity | None  # of position embeddings; None: it has no table of them
    tokens: Similarity | None  # of the embeddings of token ids: of pixel intensities, of bytes
    rollout: Rollout | None
    device: str
    versions: dict[str, str]
    date: str  # ISO 8601, UTC
    schema: int = ANALYSIS

    @property
    def filename(self) -> str:
        """Name of the file inside `<protocol>/<task>/analysis/`: that of the run's record."""
        return f"{self.mechanism}-{self.config_hash}-{self.seed}.json"

    def save(self, folder: Path) -> Path:
        """Write it into `analysis/` below the folder of the run's record; return its path."""
        path = folder / FOLDER / self.filename
        write_json(path, dataclasses.asdict(self))
        return path


def load_analysis(path: Path) -> Analysis:
    """Read one analysis.

    Raises:
        DataError: the file is none of a known schema; the message says what is wrong with it.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != ANALYSIS:
        raise DataError(f"{path} is not an analysis of schema {ANALYSIS}; run it again")
    parts: dict[str, Any] = {
        "span": Span,
        "positions": Similarity,
        "tokens": Similarity,
        "rollout": Rollout,
    }
    for name, kind in parts.items():
        if record.get(name) is not None:
            record[name] = _made(kind, record[name], path)
    for name in ("layers", "heads"):
        if name in record:
            record[name] = _spans(record[name], path)
    return _made(Analysis, record, path)


def load_analyses(folders: Iterable[Path]) -> list[Analysis]:
    """Read every analysis below the folders, in a stable order; there may be none.

    Raises:
        DataError: one of them is malformed.
    """
    return [
        load_analysis(path)
        for folder in folders
        for path in sorted(folder.rglob(f"{FOLDER}/*.json"))
        if not path.name.startswith(".") and aside(path, folder) == {FOLDER}
    ]


def _spans(values: Any, path: Path) -> Any:
    """A list of spans, or of lists of them; what is neither is left for the record to refuse."""
    if isinstance(values, list):
        return [_spans(value, path) for value in values]
    return _made(Span, values, path)
