"""20 Newsgroups: a post; decide to which of 20 groups it was sent.

Lang, "NewsWeeder: Learning to filter netnews", 1995; split by date as on the page of Jason Rennie.
Headers name the group, footers its regular authors, and quotes are texts of other posts: all three
are removed by default, as the documentation of scikit-learn's `fetch_20newsgroups` recommends and
with its rules.
"""

from pathlib import Path

import numpy as np

from longspan.config import setting, settings
from longspan.data.cache import BuildOutput
from longspan.data.tokenizers import ByteTokenizer
from longspan.tasks.base import SPLITS, ProgressCallback
from longspan.tasks.documents import newsgroups_archive as newsgroups
from longspan.tasks.documents.documents import (
    HELD_OUT_SHARE,
    DocumentOptions,
    Documents,
    DocumentTask,
)
from longspan.tasks.documents.grouped_splits import hold_out
from longspan.tasks.documents.newsgroups_archive import Post
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register

TEST_SHARE = 0.2  # of a copy that is not split by date
_EMPTIED = b" "  # examples need a token


@settings
class NewsgroupsOptions(DocumentOptions):
    """Encoding of the posts, and the parts of a post."""

    headers: bool = setting("keep the headers, which name the group", False)
    footers: bool = setting("keep signatures", False)
    quotes: bool = setting("keep quotations of other posts", False)


@register
class Newsgroups(DocumentTask):
    """Twenty classes of Usenet posts."""

    Options = NewsgroupsOptions
    options: NewsgroupsOptions
    class_names = newsgroups.GROUPS
    info = TaskInfo(
        name="newsgroups",
        title="20 Newsgroups",
        summary="Decide to which of 20 newsgroups a post was sent.",
        source=f"20 Newsgroups, split by date, {newsgroups.URL}",
        license="none stated",
        sizes={"train": 10_184, "validation": 1_130, "test": 7_532},
        vocab_size=ByteTokenizer.vocab_size,
        num_classes=len(newsgroups.GROUPS),
        metrics=("accuracy",),
        chance=1 / len(newsgroups.GROUPS),
        head="sequence_classification",
        notes=(
            "Validation is a tenth of each class of the training part, near duplicates together. A "
            "copy without a split by date (20news-18828, 20news-19997, mini_newsgroups) is split "
            "likewise, with a fifth as test: its scores are not comparable with those of the "
            "split by date. A post of which nothing is left is one space, so that every test post "
            "is scored; the manifest counts them."
        ),
    )

    def find_source(self, data: Path | None) -> newsgroups.NewsgroupsFiles:
        """Return the copy."""
        return newsgroups.find(data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the posts, remove parts of them, and split them."""
        source = self.find_source(data)
        progress("reading 20 Newsgroups", 0, 0)
        posts = newsgroups.read(source)
        texts = [self._text(post) for post in posts]
        documents = Documents(texts, np.array([post.label for post in posts], np.uint8))
        progress("splitting 20 Newsgroups", 0, len(posts))
        rows = _choose_rows(posts)
        splits, facts = self.encode_documents({s: documents.select(rows[s]) for s in SPLITS})
        extent = "split by date" if posts[0].split else "not split by date"
        emptied = {s: sum(texts[row] == _EMPTIED for row in rows[s]) for s in SPLITS}
        return BuildOutput(
            splits=splits,
            source=f"20 Newsgroups, {extent}, {len(posts)} posts",
            license=self.info.license,
            facts={"source_sha256": source.checksums(), "emptied": emptied, **facts},
        )

    def _text(self, post: Post) -> bytes:
        """Return the parts of a post that the options keep."""
        text, options = post.text, self.options
        if not options.headers:
            text = newsgroups.remove_headers(text)
        if not options.footers:
            text = newsgroups.remove_footer(text)
        if not options.quotes:
            text = newsgroups.remove_quotes(text)
        return text.strip().encode() or _EMPTIED


def _choose_rows(posts: list[Post]) -> dict[str, np.ndarray]:
    """Return the rows of each split, the same whichever parts of the posts are kept."""
    splits = np.array([post.split or "" for post in posts])
    shares = {"validation": HELD_OUT_SHARE}
    if not posts[0].split:
        return _hold_out(posts, np.arange(len(posts)), {**shares, "test": TEST_SHARE})
    rows = _hold_out(posts, np.flatnonzero(splits == "train"), shares)
    return {**rows, "test": np.flatnonzero(splits == "test")}


def _hold_out(
    posts: list[Post], pool: np.ndarray, shares: dict[str, float]
) -> dict[str, np.ndarray]:
    """Split some rows; posts that differ only in their headers are in one split."""
    bodies = [newsgroups.remove_headers(posts[row].text) or posts[row].text for row in pool]
    labels = np.array([posts[row].label for row in pool])
    rows = hold_out([body.encode() for body in bodies], labels, shares)
    return {split: pool[own] for split, own in rows.items()}
