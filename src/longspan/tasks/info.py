"""Metadata of tasks, and scores reported elsewhere."""

import dataclasses
import json
from importlib import resources

# Heads of tasks that are texts without labels.
LANGUAGE_MODELING = ("masked_lm", "causal_lm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """Score reported elsewhere, with the protocol that produced it."""

    mechanism: str
    value: float  # as stored in records: accuracy is a fraction
    protocol: str
    source: str
    metric: str = "accuracy"


def published_scores(task: str) -> tuple[Published, ...]:
    """Return the published scores of a task, from `published.json`, which reports read too."""
    text = resources.files("longspan").joinpath("published.json").read_text("utf-8")
    scores = [score for score in json.loads(text) if score.pop("task") == task]
    return tuple(Published(**score) for score in scores)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """Metadata of a task. What its options decide is known of the task alone.

    Attributes:
        name: key in the registry.
        version: raised whenever examples, splits or metrics change.
        title: name for readers.
        summary: one sentence that says what the model predicts.
        source: origin of the data.
        checksum: sha256 of the published source files, if there are any.
        license: license of the data.
        sizes: examples by split of the published files.
        vocab_size: number of token ids, padding (id 0) included; 0: the options decide it.
        num_classes: number of classes; 0: the options decide it.
        head: file of the model head in `longspan.models.heads`, at the default options.
        metrics: names of the metrics, the main one first.
        chance: expected main metric of a uniform guess; None: undefined, or the options decide it.
        published: scores reported elsewhere.
        hub: name of the data set on the Hugging Face hub.
        notes: caveats for readers of scores.
    """

    name: str
    version: int = 1
    title: str
    summary: str
    source: str
    checksum: str | None = None
    license: str
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    vocab_size: int = 0
    num_classes: int = 0
    head: str
    metrics: tuple[str, ...]
    chance: float | None = None
    published: tuple[Published, ...] = ()
    hub: str | None = None
    notes: str = ""
