"""Retrieval: two papers; decide whether one cites the other.

Radev et al., "The ACL Anthology Network Corpus", 2013 (AAN); each paper passes through one encoder
byte by byte, as in Tay et al., "Long Range Arena", 2021, by characters, as in Gu et al., "S4",
2022, or by words.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.store import Examples, Ragged, SequenceWriter
from longspan.data.tokenizers import ByteTokenizer
from longspan.tasks.base import SPLITS, ProgressCallback, Split
from longspan.tasks.encoded_text import (
    BothClasses,
    EncodedTextTask,
    EncodingOptions,
    count_unknown,
    sample_balanced,
)
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.lra import aan
from longspan.tasks.registry import register
from longspan.tasks.rules import Rule, most_frequent_labels

_MAX_CHARACTERS = 400  # characters of each paper


def _predict_by_second_paper(train: Examples, examples: Examples) -> np.ndarray:
    """Return the most frequent training label of the second paper, known by its text.

    Some papers are cited more often than others, so this label says how often the paper is cited in
    training.
    """
    train_keys, keys = (_identify_texts(part.second) for part in (train, examples))
    return most_frequent_labels(train_keys, train.labels, keys)


def _identify_texts(texts: Ragged | None) -> np.ndarray:
    """Return one number for each text, the same for equal texts."""
    assert texts is not None
    digests = (hashlib.blake2b(text.tobytes(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8")


_SECOND_PAPER = Rule(
    name="second paper",
    summary="the most frequent training label of the second paper",
    predict=_predict_by_second_paper,
)


@settings
class RetrievalOptions(EncodingOptions):
    """Encoding of the papers, and the splits."""

    # Long Range Arena truncates the texts before reading them.
    length: Annotated[int, Field(ge=1, le=aan.LONGEST)] = setting(
        "tokens of each paper that are kept", 4_000
    )
    minimum: PositiveInt = setting(
        "occurrences in the training pairs that make a character known", 1
    )
    seed: NonNegativeInt = setting("seed that chooses which pairs are kept", 0)
    train: BothClasses | None = setting(
        "training pairs, equally many of each class; none: all", None
    )
    validation: BothClasses | None = setting(
        "validation pairs, equally many of each class; none: all", None
    )
    test: BothClasses | None = setting("test pairs, equally many of each class; none: all", None)


@register
class Retrieval(EncodedTextTask):
    """Two classes, pairs of papers as bytes, characters or words."""

    Options = RetrievalOptions
    options: RetrievalOptions
    class_names = aan.LABELS
    rules = (_SECOND_PAPER,)
    info = TaskInfo(
        name="retrieval",
        version=2,
        title="Retrieval (AAN, bytes)",
        summary="Decide whether one of two papers cites the other, byte by byte.",
        source="AAN pairs of the Long Range Arena release, Tay et al. 2021",
        license="none stated for the pairs; ACL papers before 2016 are CC BY-NC-SA 3.0",
        sizes={"train": 147_086, "validation": 18_090, "test": 17_437},
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=2,
        metrics=("accuracy",),
        chance=0.5,
        head="pair_classification",
        published=published_scores("retrieval"),
        notes=(
            "Validation is the release's eval file. Pairs are not filtered: papers, and a few "
            "pairs, occur in more than one split; the manifest counts them, as well as labels and "
            "repeated pairs. The recipe alone moves the full Transformer from 57 to 79 %. xformers "
            "prints one score for two mechanisms (76.41), which looks like a copying error. "
            "How often the second paper is cited in training predicts a citation, whatever the "
            "first paper: the rule on the data card scores 72.8 ± 1.0 % (± one standard error) on "
            "1,890 test pairs, half citations of the network and half random pairs, that are not "
            "those of the release. Only higher scores compare the papers."
        ),
    )

    find_source = staticmethod(aan.find)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the pairs and select subsets; memory does not grow with their number."""
        source = self.find_source(data)
        expected = sum(self.info.sizes.values())
        collection = aan.collect(
            aan.read(source), scratch, lambda done: progress("reading AAN", done, expected)
        )
        pairs_by_split = {
            split: self._sample(split, pairs) for split, pairs in collection.splits.items()
        }
        tokenizer = self.make_tokenizer(lambda: _count_texts(collection, pairs_by_split["train"]))
        ids = SequenceWriter(scratch / "ids", tokenizer.dtype)
        for text in collection.texts:
            ids.add(tokenizer.encode(text.tobytes(), self.options.length))
        paper_tokens = ids.ragged()
        splits: dict[str, Examples] = {
            split: _pack_pairs(paper_tokens, pairs, scratch / split)
            for split, pairs in pairs_by_split.items()
        }
        return BuildOutput(
            splits=splits,
            source=aan.describe(source, {s: len(p.labels) for s, p in collection.splits.items()}),
            facts={
                "source_sha256": source.checksums(),
                **collection.facts,
                **count_unknown(tokenizer, splits),
                **tokenizer.facts,
            },
        )

    def show(self, split: Split, row: int) -> str:
        """Return the beginnings of both papers, and the label."""
        tokens, label = self._example(split, row)
        second = self._examples(split).second
        assert second is not None
        beginnings = [self.decode(ids[:_MAX_CHARACTERS]) for ids in (tokens, second[row])]
        return "\n\n".join([*beginnings, f"= {aan.LABELS[label]}"])

    def _sample(self, split: Split, pairs: aan.Pairs) -> aan.Pairs:
        """Return the subset of the pairs that the options select."""
        rows = sample_balanced(
            np.arange(len(pairs.labels)),
            pairs.labels,
            getattr(self.options, split),
            (self.options.seed, SPLITS.index(split)),
            split,
            ("pairs without a citation", "pairs with one"),
        )
        return pairs.select(rows)


def _count_texts(collection: aan.Collection, pairs: aan.Pairs) -> Iterator[tuple[bytes, int]]:
    """Yield the different texts of some pairs, and the number of occurrences of each."""
    for row, count in zip(*np.unique(pairs.texts, return_counts=True), strict=True):
        yield collection.texts[int(row)].tobytes(), int(count)


def _pack_pairs(paper_tokens: Ragged, pairs: aan.Pairs, path: Path) -> Examples:
    """Return the examples of a split, with their tokens in files named after `path`."""
    sides = []
    for side in range(2):
        writer = SequenceWriter(path.with_suffix(f".{side}"), paper_tokens.values.dtype.type)
        for row in pairs.texts[:, side].tolist():
            writer.add(paper_tokens[row])
        sides.append(writer.ragged())
    return Examples(tokens=sides[0], second=sides[1], labels=pairs.labels)
