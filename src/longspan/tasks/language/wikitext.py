"""Left-to-right language modeling of WikiText, by words."""

import functools
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.cache import BuildOutput, BuiltDataset
from longspan.data.store import Examples
from longspan.data.stream_vocabularies import WordVocabulary
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo
from longspan.tasks.language import wikitext_files as wikitext
from longspan.tasks.language.published import published_language_scores
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.language.wikitext_files import WikiText
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

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the identity of the copy of the set."""
        return wikitext.find(self.published_set, data).origin

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Collect the words of the training split, and read all splits."""
        published = self.published_set
        copy = wikitext.find(published, data)
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
            license=self.info.license,
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


def make_info(published: WikiText, *, name: str, title: str, checksum: str) -> TaskInfo:
    """Return the metadata of a set."""
    size = published.words + 1
    return TaskInfo(
        name=name,
        version=1,
        title=title,
        summary="Predict the next word of an article of Wikipedia.",
        source=f"{published.folder}, Merity et al. 2016, {published.url}",
        checksum=checksum,
        license="CC BY-SA 3.0",
        sizes={},
        vocab_size=size,
        num_classes=size,
        metrics=("perplexity",),
        chance=None,
        head="causal_lm",
        published=published_language_scores(name, "perplexity"),
        notes=_NOTES,
    )
