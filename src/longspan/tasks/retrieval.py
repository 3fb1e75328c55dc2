"""Retrieval: two papers side by side; say whether one cites the other.

Radev et al., "The ACL Anthology Network Corpus", 2013 (AAN); pairs read byte by byte in two towers,
as in Tay et al., "Long Range Arena", 2021, or by characters, as in Gu et al., "S4", 2022.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from longspan.config import setting, settings
from longspan.data import aan
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged, Spool
from longspan.data.tokenizers import ByteTokenizer
from longspan.errors import OptionError
from longspan.tasks._reading import ReadingOptions, ReadingTask, pick
from longspan.tasks.base import (
    SPLITS,
    ProgressCallback,
    Split,
    TaskInfo,
    check_least,
    published,
    register,
)
from longspan.tasks.layout import PairLayout

_SHOWN = 400  # characters of each paper


@settings
class RetrievalOptions(ReadingOptions):
    """How papers are read, and sizes of the splits."""

    length: int = setting("tokens (bytes or characters) of each paper that are kept", 4_000)
    minimum: int = setting("a character that occurs less often in the training pairs is unknown", 1)
    train: int | None = setting("training pairs, as many of each class; none: all", None)
    validation: int | None = setting("validation pairs, as many of each class; none: all", None)
    test: int | None = setting("test pairs, as many of each class; none: all", None)
    seed: int = setting("seed that chooses which pairs are kept", 0)

    def __post_init__(self) -> None:
        """Refuse empty splits, and what cannot be read."""
        # two pairs are one of each class
        check_least(self, dict.fromkeys(SPLITS, 2))
        super().__post_init__()
        if self.length > aan.LONGEST:
            raise OptionError(
                f"length={self.length}; expected {aan.LONGEST} or less, since texts are cut there "
                "before they are read, as in Long Range Arena"
            )


@register
class Retrieval(ReadingTask):
    """Two classes, pairs of papers by bytes or characters."""

    Options = RetrievalOptions
    options: RetrievalOptions
    info = TaskInfo(
        name="retrieval",
        version=1,
        title="Retrieval (AAN, bytes)",
        summary="Whether one of two papers, each read byte by byte, cites the other.",
        source="AAN pairs of the Long Range Arena release, Tay et al. 2021",
        checksum=None,
        license="none stated for the pairs; ACL papers before 2016 are CC BY-NC-SA 3.0",
        sizes={"train": 147_086, "validation": 18_090, "test": 17_437},
        vocabulary=ByteTokenizer.vocab_size,
        classes=2,
        metrics=("accuracy",),
        chance=0.5,
        layout=PairLayout(),
        published=(
            *published(
                "lra-paper",
                "Tay et al. 2021, Long Range Arena, table 1",
                {
                    "full": 57.46,
                    "local": 53.39,
                    "sparse_transformer": 59.59,
                    "longformer": 56.89,
                    "linformer": 52.27,
                    "reformer": 53.40,
                    "sinkhorn": 53.83,
                    "synthesizer": 54.67,
                    "bigbird": 59.29,
                    "linear": 53.09,
                    "performer": 53.82,
                },
            ),
            *published(
                "lra-small",
                "Xiong et al. 2021, Nystromformer, LRA table of its repository",
                {
                    "full": 79.35,
                    "reformer": 78.64,
                    "linformer": 79.37,
                    "performer": 78.62,
                    "nystrom": 79.56,
                },
            ),
            *published(
                "lra-small",
                "xformers v0.0.22, BENCHMARKS.md",
                {
                    "full": 79.24,
                    "nystrom": 78.18,
                    "performer": 81.1,
                    "fouriermix": 76.41,
                    "linformer": 76.41,
                    "lambda": 79.11,
                    "orthoformer": 77.96,
                },
            ),
            *published(
                "xiong",
                "Xiong et al. 2022, Simple Local Attentions Remain Competitive, table 1",
                {
                    "sinkhorn": 80.4,
                    "reformer": 80.5,
                    "linformer": 78.4,
                    "nystrom": 81.0,
                    "performer": 79.8,
                    "long_short": 81.6,
                    "local": 81.6,
                    "blockwise": 81.3,
                },
            ),
        ),
        notes=(
            "Validation is the release's eval file. Pairs are taken as they are: papers, and a few "
            "pairs, are in more than one split; the set's record counts them, as it counts labels "
            "and repeated pairs. The recipe alone moves the full Transformer from 57 to 79 %. "
            "xformers prints one score for two mechanisms (76.41), which looks like a copy."
        ),
    )

    def origin(self, data: Path | None) -> dict[str, Any]:
        """Which pairs are read."""
        return aan.find(data).origin

    def make(
        self, data: Path | None, scratch: Path, report: ProgressCallback | None
    ) -> BuildOutput:
        """Read the pairs, cut to size; memory does not grow with their number."""
        source = aan.find(data)
        expected = sum(self.info.sizes.values())

        def progress(done: int) -> None:
            if report:
                report("reading AAN", done, expected)

        collection = aan.collect(aan.read(source), scratch, progress)
        chosen = {split: self._choose(split, pairs) for split, pairs in collection.splits.items()}
        encoding = self.encoding(lambda: _texts(collection, chosen["train"]))
        ids = Spool(scratch / "ids", np.uint8)
        for text in collection.texts:
            ids.add(encoding.encode(text.tobytes(), self.options.length))
        encoded = ids.ragged()
        return BuildOutput(
            splits={
                split: _examples(encoded, pairs, scratch / split) for split, pairs in chosen.items()
            },
            source=source.describe({s: len(p.labels) for s, p in collection.splits.items()}),
            license=self.info.license,
            facts={
                "source_sha256": source.checksums(),
                **collection.facts,
                **encoding.facts,
            },
        )

    def show(self, split: Split, row: int) -> str:
        """Both beginnings and the label."""
        tokens, label = self._example(split, row)
        second = self._examples(split).second
        assert second is not None
        first, other = (self.text(part[:_SHOWN]) for part in (tokens, second[row]))
        return f"{first}\n\n{other}\n\n= {aan.LABELS[label]}"

    def _choose(self, split: Split, pairs: aan.Pairs) -> aan.Pairs:
        """The pairs that the options keep."""
        options = self.options
        count = {"train": options.train, "validation": options.validation, "test": options.test}
        rows = pick(
            np.arange(len(pairs.labels)),
            pairs.labels,
            count[split],
            (options.seed, SPLITS.index(split)),
            split,
            ("pairs without a citation", "pairs with one"),
        )
        return pairs.select(rows)


def _texts(collection: aan.Collection, pairs: aan.Pairs) -> Iterator[tuple[bytes, int]]:
    """The different texts of some pairs, and how often each occurs."""
    for row, times in zip(*np.unique(pairs.texts, return_counts=True), strict=True):
        yield collection.texts[int(row)].tobytes(), int(times)


def _examples(encoded: Ragged, pairs: aan.Pairs, path: Path) -> Examples:
    """The examples of a split, their tokens in files beside `path`."""
    parts = []
    for side in range(2):
        spool = Spool(path.with_suffix(f".{side}"), np.uint8)
        for row in pairs.texts[:, side].tolist():
            spool.add(encoded[row])
        parts.append(spool.ragged())
    return Examples(tokens=parts[0], second=parts[1], labels=pairs.labels)
