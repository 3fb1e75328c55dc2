"""20 Newsgroups: a post; decide to which of 20 groups it was sent.

Lang, "NewsWeeder: Learning to filter netnews", 1995; split by date as on the page of Jason Rennie.
Headers name the group, footers its regular authors, and quotes are texts of other posts: all three
are removed by default, as the documentation of scikit-learn's `fetch_20newsgroups` recommends and
with its rules.

A copy is the folder or archive of http://qwone.com/~jason/20Newsgroups (`20news-bydate`, split by
date; `20news-18828` and `20news-19997`, not split) or `mini_newsgroups` of the UCI archive, 100
posts a group. A folder has one subfolder for each group, and in it one file for each post.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.config import setting, settings
from longspan.data import archives
from longspan.data.cache import BuildOutput
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.errors import DataError, MissingSourceError
from longspan.files import file_sha256
from longspan.tasks.base import SPLITS, ProgressCallback
from longspan.tasks.documents.documents import (
    HELD_OUT_SHARE,
    DocumentOptions,
    DocumentTask,
    hold_out,
)
from longspan.tasks.encoded_text import LabeledTexts
from longspan.tasks.info import TaskInfo
from longspan.tasks.registry import register

URL = "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"
GROUPS = (
    *("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware"),
    *("comp.sys.mac.hardware", "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles"),
    *("rec.sport.baseball", "rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med"),
    *("sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast"),
    *("talk.politics.misc", "talk.religion.misc"),
)

_BY_DATE = {"20news-bydate-train": "train", "20news-bydate-test": "test"}  # split of a folder
# Folders of the published archives in order of preference.
_COPIES = (tuple(_BY_DATE), ("20news-18828",), ("20_newsgroups",), ("mini_newsgroups",))
_FOLDERS = [name for names in _COPIES for name in names]
_ARCHIVES = (
    *("20news-bydate*.tar.gz", "20news-18828*.tar.gz", "20news-19997*.tar.gz"),
    *("20_newsgroups*.tar.gz", "mini_newsgroups*.tar.gz"),
)
_MEMBER = re.compile(rf"(?:.*/)?({'|'.join(_FOLDERS)})/([^/]+)/(\d+)")
_LIMITS = archives.Limits(member=1 << 22, total=1 << 30)
_QUOTED = re.compile(r"^[>|]|^In article|^Quoted from|writes in|writes:|wrote:|says:|said:")


@dataclasses.dataclass(frozen=True)
class Post:
    """One post.

    Attributes:
        name: group and number, such as "sci.med/59211".
        text: the whole post, headers included, with lines that end in a newline.
        label: index in `GROUPS`.
        split: train or test; None if the copy has no splits.
    """

    name: str
    text: str
    label: int
    split: str | None


def find(data: Path | None) -> SourceFiles:
    """Find a copy, one that is split by date first.

    Args:
        data: a folder or archive. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA. Their subfolders
            `newsgroups20` and `newsgroups20_mini` are searched too.

    Raises:
        DataError: there is no copy; the message says how to get one.
    """
    paths = search_paths(data, "a folder or archive of 20 Newsgroups")
    for path in paths:
        if path.is_file() and archives.may_contain(path, _MEMBER.fullmatch, _LIMITS):
            return SourceFiles(form="archive", path=path)
        folders = (*usual_folders(path, "newsgroups20"), path / "newsgroups20_mini")
        if copy := _find_copy(folders):
            return SourceFiles(form="folder" if copy.is_dir() else "archive", path=copy)
    raise MissingSourceError(
        f"20 Newsgroups is not here (searched {format_paths(paths)}); download {URL} to FOLDER and "
        "run `longspan data build newsgroups --data FOLDER`"
    )


def _find_copy(folders: Sequence[Path]) -> Path | None:
    """Return the first folder with an unpacked copy, else the first archive."""
    for names in _COPIES:
        for folder in folders:
            if all((folder / name).is_dir() for name in names):
                return folder
    candidates = (
        x for pattern in _ARCHIVES for folder in folders for x in sorted(folder.glob(pattern))
    )
    return next(candidates, None)


def read(source: SourceFiles) -> list[Post]:
    """Return the posts by split and name, of the folder that `find` prefers.

    Bytes are read as latin-1: posts have no declared encoding.

    Raises:
        DataError: a group is missing or unknown, or a file is damaged.
    """
    by_folder: dict[str, list[Post]] = {}
    for folder, post in _posts(source.path):
        by_folder.setdefault(folder, []).append(post)
    whole = (names for names in _COPIES if by_folder.keys() >= set(names))
    folders: tuple[str, ...] = next(whole, ())
    if by_folder and not folders:
        absent = ", ".join(name for name in _BY_DATE if name not in by_folder)
        raise DataError(f"{source.path} has no posts of {absent}; fetch it again")
    posts = [post for name in folders for post in by_folder[name]]
    for name in folders:
        missing = sorted(set(range(len(GROUPS))) - {post.label for post in by_folder[name]})
        if missing:
            raise DataError(
                f"{source.path}: {name} has no posts of {GROUPS[missing[0]]}; fetch it again"
            )
    if not posts:
        raise DataError(
            f"{source.path} has no posts; expected GROUP/NUMBER in {', '.join(_FOLDERS)}"
        )
    return sorted(posts, key=lambda post: (post.split or "", post.name))


def remove_headers(text: str) -> str:
    """Return a post without its headers: what follows the first empty line."""
    return text.partition("\n\n")[2]


def remove_footer(text: str) -> str:
    """Return a text without what follows the last line that is empty or made of hyphens.

    That is mostly a signature. A text without such a line is returned whole, as is one where only
    the first line is such.
    """
    lines = text.strip().split("\n")
    ends = [number for number, line in enumerate(lines) if not line.strip().strip("-")]
    return "\n".join(lines[: ends[-1]]) if ends and ends[-1] else text


def remove_quotes(text: str) -> str:
    """Return a text without the lines that quote another post or introduce a quotation."""
    return "\n".join(line for line in text.split("\n") if not _QUOTED.search(line))


def _posts(path: Path) -> Iterator[tuple[str, Post]]:
    """Yield each post with the name of its folder."""
    for member in archives.read_members(path, _MEMBER.fullmatch, _LIMITS):
        match = _MEMBER.fullmatch(member.name)
        assert match is not None
        folder, group, number = match.groups()
        if group not in GROUPS:
            raise DataError(f"{member.where}: {group} is none of the 20 groups; remove it")
        text = member.read().decode("latin-1").replace("\r\n", "\n")
        if not text:
            raise DataError(f"{member.where} is empty; expected a post, fetch it again")
        yield folder, Post(f"{group}/{number}", text, GROUPS.index(group), _BY_DATE.get(folder))


_TEST_SHARE = 0.2  # of a copy that is not split by date
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
    class_names = GROUPS
    info = TaskInfo(
        name="newsgroups",
        title="20 Newsgroups",
        summary="Decide to which of 20 newsgroups a post was sent.",
        source=f"20 Newsgroups, split by date, {URL}",
        license="none stated",
        sizes={"train": 10_184, "validation": 1_130, "test": 7_532},
        num_classes=len(GROUPS),
        metrics=("accuracy",),
        chance=1 / len(GROUPS),
        head="sequence_classification",
        notes=(
            "Validation is a tenth of each class of the training part, near duplicates together. A "
            "copy without a split by date (20news-18828, 20news-19997, mini_newsgroups) is split "
            "likewise, with a fifth as test: its scores are not comparable with those of the "
            "split by date. A post of which nothing is left is one space, so that every test post "
            "is scored; the manifest counts them."
        ),
    )

    find_source = staticmethod(find)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the checksum of an archive; of a folder that of the names and sizes of posts."""
        path = find(data).path
        if path.is_file():
            return {"archive": file_sha256(path)}
        names = archives.list_names(path, _MEMBER.fullmatch)
        lines = "".join(f"{name} {(path / name).stat().st_size}\n" for name in names)
        return {"posts": hashlib.sha256(lines.encode()).hexdigest()}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the posts, remove parts of them, and split them."""
        source = self.find_source(data)
        progress("reading 20 Newsgroups", 0, 0)
        posts = read(source)
        texts = [self._text(post) for post in posts]
        documents = LabeledTexts(texts, np.array([post.label for post in posts], np.uint8))
        progress("splitting 20 Newsgroups", 0, len(posts))
        rows = _choose_rows(posts)
        splits, facts = self.encode_documents({s: documents.select(rows[s]) for s in SPLITS})
        extent = "split by date" if posts[0].split else "not split by date"
        emptied = {s: sum(texts[row] == _EMPTIED for row in rows[s]) for s in SPLITS}
        return BuildOutput(
            splits=splits,
            source=f"20 Newsgroups, {extent}, {len(posts)} posts",
            facts={"source_sha256": source.checksums(), "emptied": emptied, **facts},
        )

    def _text(self, post: Post) -> bytes:
        """Return the parts of a post that the options keep."""
        text, options = post.text, self.options
        if not options.headers:
            text = remove_headers(text)
        if not options.footers:
            text = remove_footer(text)
        if not options.quotes:
            text = remove_quotes(text)
        return text.strip().encode() or _EMPTIED


def _choose_rows(posts: list[Post]) -> dict[str, np.ndarray]:
    """Return the rows of each split, the same whichever parts of the posts are kept."""
    splits = np.array([post.split or "" for post in posts])
    shares = {"validation": HELD_OUT_SHARE}
    if not posts[0].split:
        return _hold_out(posts, np.arange(len(posts)), {**shares, "test": _TEST_SHARE})
    rows = _hold_out(posts, np.flatnonzero(splits == "train"), shares)
    return {**rows, "test": np.flatnonzero(splits == "test")}


def _hold_out(
    posts: list[Post], pool: np.ndarray, shares: dict[str, float]
) -> dict[str, np.ndarray]:
    """Split some rows; posts that differ only in their headers are in one split."""
    bodies = [remove_headers(posts[row].text) or posts[row].text for row in pool]
    labels = np.array([posts[row].label for row in pool])
    rows = hold_out([body.encode() for body in bodies], labels, shares)
    return {split: pool[places] for split, places in rows.items()}
