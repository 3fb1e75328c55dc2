"""Hyperpartisan: a news article; decide whether it argues blindly for one political side.

Kiesel et al., "SemEval-2019 Task 4: Hyperpartisan News Detection", 2019, the articles labeled by
crowdsourcing. Longformer (Beltagy et al. 2020, section 6) and others report scores on splits of
which 58 of the 65 test articles are also in training or validation (allenai/longformer, issue 181).

A copy has the two XML files of the data set, plain, as .gz or as the .zip of Zenodo: the articles,
and their labels. The article ids of a published split are those of `hp-splits.json` of the
repository of Longformer.
"""

import dataclasses
import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from longspan.config import setting, settings
from longspan.data import archives
from longspan.data.cache import BuildOutput
from longspan.data.json_files import load_json
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.sources.text import explain_damage, open_packed
from longspan.errors import DataError, MissingSourceError
from longspan.tasks.base import HELD_OUT, SPLITS, ProgressCallback, Split
from longspan.tasks.documents.documents import (
    HELD_OUT_SHARE,
    DocumentOptions,
    DocumentTask,
    hold_out,
)
from longspan.tasks.encoded_text import LabeledTexts
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register

URL = "https://zenodo.org/records/1489920"
_SPLITS_URL = "https://raw.githubusercontent.com/allenai/longformer/master/scripts/hp-splits.json"
CLASSES = ("mainstream", "hyperpartisan")
PUBLISHED = {"train": "train", "validation": "dev", "test": "test"}  # names in hp-splits.json

_ARTICLES = "articles-training-byarticle-20181122.xml"
_TRUTH = "ground-truth-training-byarticle-20181122.xml"
_SPLITS = "hp-splits.json"
_VALUES = {"false": 0, "true": 1}
_MOST = 1 << 26  # bytes of an unpacked file; the articles have 2.6 million


@dataclasses.dataclass(frozen=True, kw_only=True)
class Article:
    """One article.

    Attributes:
        id: number of the article.
        title: title, possibly empty.
        text: body in UTF-8 with white space collapsed, never empty.
        label: index in `CLASSES`.
        publisher: host of the address of the article.
    """

    id: int
    title: str
    text: str
    label: int
    publisher: str


def find(data: Path | None) -> SourceFiles:
    """Find a copy of the data set.

    Args:
        data: a folder. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA. Its subfolder
            `hyperpartisan` is searched too.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, f"the folder that holds {_ARTICLES}")
    for folder in (folder for path in paths for folder in usual_folders(path, "hyperpartisan")):
        articles, truth = _find_xml(folder, _ARTICLES), _find_xml(folder, _TRUTH)
        if articles and truth:
            files = {"articles": (articles,), "ground_truth": (truth,)}
            if (splits := folder / _SPLITS).exists():
                files["splits"] = (splits,)
            return SourceFiles(form="XML", path=folder, files=files)
    raise MissingSourceError(
        f"Hyperpartisan is not here (searched {format_paths(paths)}); download the two "
        f"training-byarticle files of {URL} to FOLDER and run `longspan data build hyperpartisan "
        "--data FOLDER`"
    )


def read(source: SourceFiles) -> list[Article]:
    """Return the articles by id.

    Raises:
        DataError: a file is damaged, an article has no text, or no or two labels.
    """
    articles, truth = (source.firsts[x] for x in ("articles", "ground_truth"))
    labels = _read_labels(truth)
    by_id: dict[int, Article] = {}
    for element in _parse(articles):
        number, where = _number(element, articles)
        text = " ".join("".join(element.itertext()).split())
        if number in by_id or not text:
            fault = "is there twice" if number in by_id else "has no text"
            raise DataError(f"{where} {fault}; fetch the file again from {URL}")
        if number not in labels:
            raise DataError(f"{where} has no label in {truth}; fetch both files again")
        label, publisher = labels[number]
        title = " ".join(element.get("title", "").split())
        by_id[number] = Article(id=number, title=title, text=text, label=label, publisher=publisher)
    if extra := sorted(labels.keys() - by_id.keys()):
        raise DataError(
            f"{truth} has {len(extra)} labels without an article, the first of id "
            f"{extra[0]}; fetch both files again from {URL}"
        )
    return [by_id[number] for number in sorted(by_id)]


def read_published_splits(source: SourceFiles) -> dict[str, np.ndarray]:
    """Return the article ids of each split of Longformer's experiments, in their order.

    Raises:
        DataError: the file is missing or malformed.
    """
    if (path := source.firsts.get("splits")) is None:
        raise DataError(
            f"{source.path} has no {_SPLITS}; download {_SPLITS_URL} to that folder, or "
            "set split='clean'"
        )
    content = load_json(path)
    try:
        ids = {split: np.array(content[name], np.int64) for split, name in PUBLISHED.items()}
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise DataError(
            f"{path} must be JSON with the article ids of train, dev and test; download "
            f"it again from {_SPLITS_URL}"
        ) from error
    return ids


def _find_xml(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / f"{name}.gz", folder / name.replace(".xml", ".zip"))
    return next((path for path in candidates if path.is_file()), None)


def _read_labels(path: Path) -> dict[int, tuple[int, str]]:
    """Return label and publisher by article id."""
    labels = {}
    for element in _parse(path):
        number, where = _number(element, path)
        value = element.get("hyperpartisan", "")
        if value not in _VALUES or number in labels:
            fault = "is there twice" if number in labels else f"has label {value!r:.20}"
            raise DataError(f"{where} {fault}; expected one label, true or false")
        labels[number] = (_VALUES[value], urlsplit(element.get("url", "")).netloc)
    return labels


def _number(element: ET.Element, path: Path) -> tuple[int, str]:
    """Return the id of an article, and its location."""
    text = element.get("id", "")
    if not (text.isascii() and text.isdigit()):
        raise DataError(f"{path} has an article with id {text!r:.20}; expected digits")
    return int(text), f"{path}: article {text}"


class _Builder(ET.TreeBuilder):
    """Builder of a tree; a document type, which may declare entities of any size, is refused."""

    def doctype(self, *_: object) -> None:
        raise ValueError("it declares a document type")


def _parse(path: Path) -> list[ET.Element]:
    """Return the articles of an XML file."""
    try:
        root = ET.fromstring(_unpack(path), parser=ET.XMLParser(target=_Builder()))
    except (ET.ParseError, ValueError) as error:
        raise DataError(
            f"{path} is not an XML file of articles ({error}); fetch it again from {URL}"
        ) from error
    return root.findall("article")


def _unpack(path: Path) -> bytes:
    """Return the content of a file, or of the XML file in it.

    Raises:
        DataError: it is truncated, damaged or too large.
    """
    if path.suffix == ".zip":
        limits = archives.Limits(member=_MOST, total=_MOST)
        members = archives.read_members(path, lambda name: name.endswith(".xml"), limits)
        return b"".join([member.read() for member in members])
    with open_packed(path) as file, explain_damage(path):
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise DataError(f"{path} unpacks to more than {_MOST >> 20} MiB; fetch it again")
    return content


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
    class_names = CLASSES
    info = TaskInfo(
        name="hyperpartisan",
        title="Hyperpartisan news",
        summary="Decide whether a news article argues blindly for one political side.",
        source=f"SemEval-2019 task 4, articles labeled by crowdsourcing, {URL}",
        checksum="bbabd848f66ddd102651745930b50c41a11ade8d2a9273a6bd6b2db1e0642229",
        license="CC BY 4.0",
        sizes={"train": 515, "validation": 65, "test": 65},
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
        source, parts = find(data), ("articles", "ground_truth")
        origin: dict[str, Any] = {
            x: hashlib.sha256(_unpack(source.firsts[x])).hexdigest() for x in parts
        }
        if self.options.split == "clean":
            return origin
        splits = read_published_splits(source)
        return {**origin, "splits": {split: x.tolist() for split, x in splits.items()}}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the articles and split them."""
        source = find(data)
        articles = read(source)
        progress("splitting Hyperpartisan", 0, len(articles))
        rows = self._choose_rows(source, articles)
        documents = LabeledTexts(
            [self._text(article) for article in articles],
            np.array([article.label for article in articles], np.uint8),
        )
        splits, facts = self.encode_documents({s: documents.select(rows[s]) for s in SPLITS})
        used_rows = set().union(*(x.tolist() for x in rows.values()))
        publishers = {articles[row].publisher for row in rows["train"]}
        return BuildOutput(
            splits=splits,
            source=f"Hyperpartisan by article, {len(articles)} articles, {self.options.split} "
            "splits",
            facts={
                "source_sha256": source.checksums(),
                "unused": len(articles) - len(used_rows),
                "publisher_in_training": {
                    s: sum(articles[row].publisher in publishers for row in rows[s])
                    for s in HELD_OUT
                },
                **facts,
            },
        )

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a new article; a first line is its title where titles are read."""
        lines = text.strip().split("\n", 1) if self.options.title else [text]
        return super().encode("\n".join(" ".join(x.split()) for x in lines))

    def _choose_rows(
        self, source: SourceFiles, articles: Sequence[Article]
    ) -> dict[str, np.ndarray]:
        """Return the rows of each split, of published ones in their order."""
        if self.options.split == "clean":
            texts = [article.text.encode() for article in articles]
            labels = np.array([article.label for article in articles])
            return hold_out(texts, labels, dict.fromkeys(HELD_OUT, HELD_OUT_SHARE))
        ids = read_published_splits(source)
        rows = {article.id: row for row, article in enumerate(articles)}
        if unknown := sorted({int(x) for split in ids.values() for x in split} - rows.keys()):
            raise DataError(
                f"{_SPLITS} names article {unknown[0]}, which the articles in {source.path} lack; "
                "fetch both again"
            )
        return {x: np.array([rows[n] for n in y], np.int64) for x, y in ids.items()}

    def _text(self, article: Article) -> bytes:
        has_title = self.options.title and article.title
        return (f"{article.title}\n{article.text}" if has_title else article.text).encode()
