"""WikiText-2 and WikiText-103: articles of Wikipedia; predict the next word.

Merity et al., "Pointer Sentinel Mixture Models", 2016 (https://arxiv.org/abs/1609.07843).
"""

import functools
from pathlib import Path
from typing import ClassVar

from longspan.data.cache import BuildOutput, BuiltDataset
from longspan.data.source_files import SourceFiles
from longspan.data.store import Examples
from longspan.data.stream_vocabularies import WordVocabulary
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language import wikitext_files as wikitext
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.language.wikitext_files import WikiText
from longspan.tasks.registry import register
from longspan.tasks.task_data import SPLITS

_NOTES = (
    "Words are those of the published tokenized files, with `<unk>` for rare ones, and `<eos>` "
    "ends each line; all of them count in the perplexity. Documents are articles. The first token "
    "of an article is not predicted: that of the line that is its title (of the first article: a "
    "blank line). A state or a window does not pass from one article to the next, while published "
    "scores read a split as one text. Ids are in the order of Transformer-XL: `<eos>`, then by "
    "decreasing frequency in the training split, behind padding."
)


class WikiTextTask(StreamTask):
    """Next words of articles; a subclass names the published set."""

    sorts_by_frequency = True
    published_set: ClassVar[WikiText]

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the copy of the set."""
        return wikitext.find(self.published_set, data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Collect the words of the training split, and read all splits."""
        published = self.published_set
        copy = self.find_source(data)
        progress("collecting words", 0, 0)
        words = wikitext.read_vocabulary(published, copy)
        splits: dict[str, Examples] = {}
        articles: dict[str, int] = {}
        for split in SPLITS:
            progress(f"reading {split}", sum(articles.values()), 0)
            splits[split], articles[split] = wikitext.read_split(
                published, copy, split, words, scratch
            )
        return BuildOutput(
            splits=splits,
            source=f"{published.folder}, {sum(articles.values()):,} articles",
            facts={
                "articles": articles,
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
                "source_sha256": copy.checksums(),
                "words": " ".join(words.words),
            },
        )

    def _use_dataset(self, dataset: BuiltDataset | None) -> None:
        super()._use_dataset(dataset)
        self.__dict__.pop("vocabulary", None)

    @functools.cached_property
    def vocabulary(self) -> WordVocabulary:
        """Words of the training split; requires an open task."""
        return WordVocabulary(tuple(self.facts["words"].split(" ")))


def _describe(published: WikiText, title: str, checksum: str) -> TaskInfo:
    """Return the metadata of a set."""
    size, name = published.words + 1, published.folder.replace("-", "_")
    return TaskInfo(
        name=name,
        title=title,
        summary="Predict the next word of an article of Wikipedia.",
        source=f"{published.folder}, Merity et al. 2016, {published.url}",
        checksum=checksum,
        license="CC BY-SA 3.0",
        vocab_size=size,
        num_classes=size,
        metrics=("perplexity",),
        head="causal_lm",
        published=published_scores(name),
        notes=_NOTES,
    )


@register
class WikiText2(WikiTextTask):
    """Next words of WikiText-2."""

    published_set: ClassVar[WikiText] = WikiText(
        folder="wikitext-2",
        tokens={"train": 2_088_628, "validation": 217_646, "test": 245_569},
        words=33_278,
    )
    info = _describe(
        published_set,
        "WikiText-2 (words)",
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    )


@register
class WikiText103(WikiTextTask):
    """Next words of WikiText-103."""

    published_set: ClassVar[WikiText] = WikiText(
        folder="wikitext-103",
        tokens={"train": 103_227_021, "validation": 217_646, "test": 245_569},
        words=267_735,
    )
    info = _describe(
        published_set,
        "WikiText-103 (words)",
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    )
