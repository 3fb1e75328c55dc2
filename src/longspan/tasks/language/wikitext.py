"""WikiText-2 and WikiText-103: articles of Wikipedia; predict the next word.

Merity et al., "Pointer Sentinel Mixture Models", 2016 (https://arxiv.org/abs/1609.07843). A copy is
the folder or the zip of the tokenized form: wiki.train.tokens, wiki.valid.tokens and
wiki.test.tokens; or the parquet files of the hub, of a configuration without "raw", with a line in
each row. Words are separated by spaces and every line ends with `<eos>`, which the files do
not contain. An article begins with its title, a line such as " = Robert <unk> = " between blank
lines; headings of sections have more equals signs.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.data import archives
from longspan.data.cache import BuildOutput, BuiltDataset
from longspan.data.document_rows import DocumentWriter
from longspan.data.json_files import field
from longspan.data.parquet import read_records, split_files
from longspan.data.source_files import (
    SourceFiles,
    find_archives,
    format_paths,
    search_paths,
    usual_folders,
)
from longspan.data.sources.text import decode_utf8
from longspan.data.store import Examples
from longspan.data.stream_vocabularies import END, WordVocabulary
from longspan.errors import DataError, MissingSourceError
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language.hutter_prize import IMPORT_HINT
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.registry import register
from longspan.tasks.task_data import SPLITS

FILES = {
    "train": "wiki.train.tokens",
    "validation": "wiki.valid.tokens",
    "test": "wiki.test.tokens",
}
LONGEST = 1 << 20  # bytes of a line, which is a paragraph
_LIMITS = archives.Limits(member=1 << 30, total=1 << 31)
_REFUSAL = f"As official data, a part of it is refused; {IMPORT_HINT}"
_RARE = "<unk>"
_TITLE = re.compile(r"= (?!= ).+(?<! =) =")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText:
    """A published set.

    Attributes:
        folder: name of its folder, and the beginning of that of its zip.
        tokens: words and ends of lines of each split.
        words: different words, `<eos>` included.
    """

    folder: str
    tokens: Mapping[str, int]
    words: int

    @property
    def url(self) -> str:
        """Address of the zip."""
        return f"https://s3.amazonaws.com/research.metamind.io/wikitext/{self.folder}-v1.zip"


def find(published: WikiText, data: Path | None) -> SourceFiles:
    """Find a copy of a set.

    Args:
        published: the set.
        data: a folder or the zip. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA.

    Raises:
        DataError: there is no copy, one is in the raw form, or a file of it is missing.
    """
    name = published.folder
    paths = search_paths(data, f"the folder of {name} or its zip")
    for path in paths:
        folders = usual_folders(path, name)
        if data is not None and (path / FILES["train"]).is_file():
            return _check_files(path)
        shards = {split: split_files(path, split) for split in FILES}
        if data is not None and all(shards.values()):
            return SourceFiles(form="parquet", path=path, files=shards)
        for folder in folders[1:]:
            if any((folder / x).is_file() for x in FILES.values()):
                return _check_files(folder)
        for archive in find_archives(path, folders, f"{name}-v1.zip", _is_in_zip, _LIMITS):
            return SourceFiles(form="zip", path=archive)
    raw = [
        x for path in paths for x in usual_folders(path, name) if (x / "wiki.train.raw").exists()
    ]
    hint = f"; {raw[0]} is the raw form, whose words differ" if raw else ""
    raise MissingSourceError(
        f"{name} is not here (searched {format_paths(paths)}){hint}; download {published.url} to "
        f"FOLDER and run `longspan data build {name.replace('-', '_')} --data FOLDER`"
    )


def _check_files(folder: Path) -> SourceFiles:
    missing = [name for name in FILES.values() if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)}; fetch the whole set again")
    files = {split: (folder / name,) for split, name in FILES.items()}
    return SourceFiles(form="folder", path=folder, files=files)


def read_vocabulary(published: WikiText, copy: SourceFiles) -> WordVocabulary:
    """Return the words of the training split.

    Raises:
        DataError: the split has another number of words than the published one, or is damaged.
    """
    words = WordVocabulary.learn(read_lines(copy, "train"))
    if len(words.words) != published.words:
        # The raw form has rare words in place of <unk>.
        is_raw = _RARE not in words.words and len(words.words) > 1
        raw = " of the raw form, whose words differ" if is_raw else ""
        raise DataError(
            f"{copy.path}: {FILES['train']} has {len(words.words):,} different words{raw}, {END} "
            f"included, expected {published.words:,}; fetch {published.url}, or from the hub the "
            f"configuration {published.folder}-v1. {_REFUSAL}"
        )
    return words


def read_lines(copy: SourceFiles, split: str) -> Iterator[list[str]]:
    """Yield the words of each line of a split.

    Raises:
        DataError: the file is missing, damaged or no UTF-8 text.
    """
    if copy.form == "parquet":
        for path in copy.files[split][:1]:
            for number, row in enumerate(read_records(path)):
                yield field(row, "text", str, f"{path}: row {number}").split()
        return
    name, is_present = FILES[split], False
    depth = 1 if copy.form == "folder" else 2  # a zip has a folder

    def match(member: str) -> bool:
        parts = Path(member).parts
        return parts[-1] == name and len(parts) <= depth

    for member in archives.read_members(copy.path, match, _LIMITS):
        is_present = True
        for where, line in member.lines(LONGEST):
            yield decode_utf8(line, where).split()
    if not is_present:
        raise DataError(f"{copy.path} lacks {name}; fetch the whole set again")


def _is_in_zip(member: str) -> bool:
    *folders, name = Path(member).parts
    return name in FILES.values() and len(folders) <= 1


def read_articles(lines: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    """Yield the lines of each article.

    The first article begins with the first line, which is blank, each later one with its title.
    """
    article: list[list[str]] = []
    has_title = False
    for line in lines:
        # The line before this one is a title if this one and the one before it are blank.
        if (
            not line
            and len(article) > 1
            and not article[-2]
            and _TITLE.fullmatch(" ".join(article[-1]))
        ):
            if has_title:
                yield article[:-1]
                article = article[-1:]
            has_title = True
        article.append(line)
    if article:
        yield article


def read_split(
    published: WikiText, copy: SourceFiles, split: str, words: WordVocabulary, scratch: Path
) -> tuple[Examples, int]:
    """Return the articles of a split, and their number.

    Raises:
        DataError: the split has another number of tokens than the published one, a word that is not
            in the vocabulary, or is damaged.
        RunError: the disk is full.
    """
    writer = DocumentWriter(scratch / f"{split}.tokens", words.dtype, min_length=2)
    tokens, vocabulary, missing_word = 0, set(words.words), ""
    for article in read_articles(read_lines(copy, split)):
        article_words = [word for line in article for word in (*line, END)]
        tokens += len(article_words)
        missing_word = missing_word or min(set(article_words) - vocabulary, default="")
        if not missing_word:
            writer.add(np.array(words.encode_words(article_words), words.dtype))
            writer.end_document()
    expected = published.tokens[split]
    if tokens != expected:
        raise DataError(
            f"{copy.path}: {FILES[split]} has {tokens:,} words and ends of lines, expected "
            f"{expected:,}; fetch {published.url} again. {_REFUSAL}"
        )
    if missing_word:
        raise DataError(
            f"{copy.path}: {FILES[split]} has {missing_word!r}, which {FILES['train']} lacks; "
            f"fetch {published.url} again"
        )
    return writer.examples(), writer.num_documents


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
        return find(self.published_set, data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Collect the words of the training split, and read all splits."""
        published = self.published_set
        copy = self.find_source(data)
        progress("collecting words", 0, 0)
        words = read_vocabulary(published, copy)
        splits: dict[str, Examples] = {}
        articles: dict[str, int] = {}
        for split in SPLITS:
            progress(f"reading {split}", sum(articles.values()), 0)
            splits[split], articles[split] = read_split(published, copy, split, words, scratch)
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
