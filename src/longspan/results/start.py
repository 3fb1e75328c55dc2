"""Start of a run in its record: the weights that were loaded, and those that were not."""

import dataclasses

from longspan.config import settings


@settings
class StartRecord:
    """Checkpoint that a run has started from.

    Attributes:
        source: folder of the checkpoint, below the folder of results for a run's.
        sha256: of its weights.
        new: names of weights of the model that the checkpoint lacks, drawn as without it.
        started: weights that it lacks and that began as copies of others: of which ones, by name.
        dropped: names of weights of the checkpoint that the model lacks.
        changed: fields that the checkpoint's configuration has with another value, as
            `[of the checkpoint, of the model]`.
        positions: extension of the learned positions, such as "tiled, 256 to 1,024 rows"; None:
            they are those of the checkpoint.
    """

    source: str
    sha256: str
    new: list[str]
    dropped: list[str]
    changed: dict[str, list]
    positions: str | None = None
    started: dict[str, str] = dataclasses.field(default_factory=dict)
