"""Hyperpartisan: a news article; decide whether it argues blindly for one political side.

Kiesel et al., "SemEval-2019 Task 4: Hyperpartisan News Detection", 2019, the articles labeled by
crowdsourcing. Longformer (Beltagy et al. 2020, section 6) and others report scores on splits of
which 58 of the 65 test articles are also in training or validation (allenai/longformer, issue 181).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.tokenizers import ByteTokenizer
from longspan.tasks.base import HELD_OUT, SPLITS, ProgressCallback, Split
from longspan.tasks.documents import hyperpartisan_articles as hyperpartisan
from longspan.tasks.documents.documents import (
    HELD_OUT_SHARE,
    DocumentOptions,
    Documents,
    DocumentTask,
)
from longspan.tasks.documents.grouped_splits import hold_out
from longspan.tasks.documents.hyperpartisan_articles import Article
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register

_PUBLISHED_SIZES: dict[Split, int | None] = {"train": 516, "validation": 64, "test": 65}


@settings
class HyperpartisanOptions(DocumentOptions):
    """Encoding of the articles, and the splits."""

    split: Literal["clean", "published"] = setting(
        "clean: a tenth of each class is validation and a tenth test, near duplicates in one "
        "split; published: the overlapping splits of Longformer's repository, to compare with "
        "published scores",
        "clean",
    )
    title: bool = setting("put the title before the article", False)


@register
class Hyperpartisan(DocumentTask):
    """Two classes of news articles."""

    Options = HyperpartisanOptions
    options: HyperpartisanOptions
    class_names = hyperpartisan.CLASSES
    info = TaskInfo(
        name="hyperpartisan",
        title="Hyperpartisan news",
        summary="Decide whether a news article argues blindly for one political side.",
        source=f"SemEval-2019 task 4, articles labeled by crowdsourcing, {hyperpartisan.URL}",
        checksum="bbabd848f66ddd102651745930b50c41a11ade8d2a9273a6bd6b2db1e0642229",
        license="CC BY 4.0",
        sizes={"train": 515, "validation": 65, "test": 65},
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=2,
        metrics=("accuracy", "f1"),
        chance=0.5,
        head="sequence_classification",
        notes=(
            "The published splits (split='published') overlap: of the 65 test articles 51 are in "
            "training and 7 in validation, and 58 of the 645 articles are in no split. Their "
            "scores measure memory too; the scores of test articles with and without a copy in "
            "training are reported as slices. The clean splits share no article and no near "
            "duplicate, but publishers: 287 of them wrote the 645 articles. White space is "
            "collapsed; the other replacements of Longformer's preprocessing are not made."
        ),
    )

    @property
    def sizes(self) -> dict[Split, int | None]:
        """Examples by split."""
        return super().sizes if self.options.split == "clean" else dict(_PUBLISHED_SIZES)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the checksums of the articles and labels, and the published splits."""
        source = hyperpartisan.find(data)
        if self.options.split == "clean":
            return source.origin
        splits = hyperpartisan.read_published_splits(source)
        return {**source.origin, "splits": {split: x.tolist() for split, x in splits.items()}}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the articles and split them."""
        source = hyperpartisan.find(data)
        articles = hyperpartisan.read(source)
        progress("splitting Hyperpartisan", 0, len(articles))
        rows = self._choose_rows(source, articles)
        documents = Documents(
            [self._text(article) for article in articles],
            np.array([article.label for article in articles], np.uint8),
        )
        splits, facts = self.encode_documents({s: documents.select(rows[s]) for s in SPLITS})
        used = set().union(*(x.tolist() for x in rows.values()))
        known = {articles[row].publisher for row in rows["train"]}
        return BuildOutput(
            splits=splits,
            source=f"Hyperpartisan by article, {len(articles)} articles, {self.options.split} "
            "splits",
            license=self.info.license,
            facts={
                "source_sha256": source.checksums(),
                "unused": len(articles) - len(used),
                "publisher_in_training": {
                    s: sum(articles[row].publisher in known for row in rows[s]) for s in HELD_OUT
                },
                **facts,
            },
        )

    def _choose_rows(
        self, source: hyperpartisan.HyperpartisanFiles, articles: Sequence[Article]
    ) -> dict[str, np.ndarray]:
        """Return the rows of each split."""
        if self.options.split == "clean":
            texts = [article.text.encode() for article in articles]
            labels = np.array([article.label for article in articles])
            return hold_out(texts, labels, dict.fromkeys(HELD_OUT, HELD_OUT_SHARE))
        ids = hyperpartisan.read_published_splits(source)
        return hyperpartisan.rows_of(articles, ids, source)

    def _text(self, article: Article) -> bytes:
        titled = self.options.title and article.title
        return (f"{article.title}\n{article.text}" if titled else article.text).encode()
