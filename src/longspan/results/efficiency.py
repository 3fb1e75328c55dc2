"""Records of efficiency: what was measured, on which machine, and against which limits."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from longspan.bounds import MOST_HEADS, MOST_IDS, MOST_LAYERS, WIDEST
from longspan.config import setting, settings
from longspan.config.base import list_out_of_bounds
from longspan.errors import OptionError
from longspan.files import write_json
from longspan.results.reading import EFFICIENCY, read_record

_EFFICIENCY_SCHEMA = 1
Scope = Literal["operator", "layer", "model"]
Pass = Literal["forward", "training", "inference", "decoding"]
Precision = Literal["float32", "bfloat16", "float16"]
State = Literal["measured", "out of memory", "too slow", "refused"]


@settings
class Sizes:
    """Sizes of the measured attention, and of the model around it."""

    hidden_size: int = setting("width of layers and models", 512, bounds=(1, WIDEST))
    heads: int = setting("heads", 8, bounds=(1, MOST_HEADS))
    intermediate_size: int = setting("width of the feed-forward layers", 2_048, bounds=(1, WIDEST))
    layers: int = setting("layers of a model", 4, bounds=(1, MOST_LAYERS))
    vocab_size: int = setting("tokens of a model", 256, bounds=(1, MOST_IDS))
    num_labels: int = setting("classes of a model", 2, bounds=(1, MOST_IDS))

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            OptionError: one is out of range, or the heads do not divide the width.
        """
        if reasons := list_out_of_bounds(self):
            raise OptionError("; ".join(reasons))
        if self.hidden_size % self.heads:
            raise OptionError(
                f"heads must divide hidden_size, got {self.heads} heads and {self.hidden_size}"
            )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.heads


@settings
class Limits:
    """Rates that no program of a device exceeds by much, measured in the same process.

    Attributes:
        flops_per_second: floating-point operations of a large square matrix product.
        bytes_per_second: bytes read and written by a large copy.
    """

    flops_per_second: float
    bytes_per_second: float

    def least_seconds(self, flops: int, traffic: int) -> float:
        """Return the time that the slower of the two limits asks for.

        Args:
            flops: floating-point operations.
            traffic: bytes that must be read or written.
        """
        return max(flops / self.flops_per_second, traffic / self.bytes_per_second)


@settings
class Measurement:
    """Time, memory and operations of one case.

    Attributes:
        mechanism: mechanism, or `identity`.
        scope: operator, layer or model.
        work: forward, training, inference or decoding.
        length: tokens of a row.
        batch_size: rows.
        precision: dtype.
        padding: share of padding.
        state: measured; out of memory: it needs more than the machine has; too slow: a pass would
            exceed the limit of the suite; refused: the mechanism cannot do it.
        reason: why it was not measured.
        backend: implementation that computed it.
        median: median seconds of a pass.
        minimum: fastest pass.
        maximum: slowest pass.
        runs: timed passes.
        peak_memory: bytes above those in use before; None: not counted on this system.
        estimated_memory: bytes of the tensors of a pass, counted without running it; None: its
            shapes depend on values.
        flops: operations that the formulas ask for; None for decoding.
        executed_flops: operations that were executed.
        least_seconds: time that these operations (the fewer of both) or the traffic of inputs,
            outputs and parameters take at the limits of the machine.
    """

    mechanism: str
    scope: Scope
    work: Pass
    length: int
    batch_size: int
    precision: Precision
    padding: float
    state: State
    reason: str | None = None
    backend: str | None = None
    median: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    runs: int = 0
    peak_memory: int | None = None
    estimated_memory: int | None = None
    flops: int | None = None
    executed_flops: int | None = None
    least_seconds: float | None = None

    @property
    def useful(self) -> float | None:
        """Share of the machine's limit that is used: least time over measured time."""
        if self.median is None or self.least_seconds is None:
            return None
        return self.least_seconds / self.median

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of a pass, padding included, per second; of decoding one a row."""
        if self.median is None:
            return None
        tokens = 1 if self.work == "decoding" else self.length
        return self.batch_size * tokens / self.median


@settings
class EfficiencyRecord:
    """A suite of measurements of one process.

    Attributes:
        suite: name of the suite.
        sizes: sizes of attention and model.
        options: options of each mechanism by name, and by length where they depend on it.
        limits: limits by dtype.
        measurements: in the order of measuring.
        device: name of the device.
        threads: threads of torch.
        versions: versions of Python and packages.
        date: ISO 8601, UTC.
    """

    title: ClassVar[str] = "a record of efficiency"
    remedy: ClassVar[str] = "measure again with `longspan bench`"
    suite: str
    sizes: Sizes
    options: dict[str, dict[str, Any]]
    limits: dict[str, Limits]
    measurements: list[Measurement]
    device: str
    threads: int
    versions: dict[str, str]
    git_commit: str | None
    date: str
    schema: int = _EFFICIENCY_SCHEMA


def save_efficiency(record: EfficiencyRecord, path: Path) -> None:
    """Write a record; an existing file is replaced."""
    write_json(path, dataclasses.asdict(record))


def load_efficiency(path: Path) -> EfficiencyRecord:
    """Read a record.

    Raises:
        DataError: the file is not a valid record; the message lists every reason.
    """
    return read_record(EfficiencyRecord, path)


def efficiency_paths(folders: Iterable[Path]) -> list[Path]:
    """Return the records of efficiency in folders of results, or of efficiency, in order."""
    places = (x if x.resolve().name == EFFICIENCY else x / EFFICIENCY for x in folders)
    return [path for place in places for path in sorted(place.glob("*.json"))]
