"""enwik8 and text8: Wikipedia with its markup as bytes, or in 27 characters; predict the next one.

Mahoney, "About the Test Data", 2006 (http://mattmahoney.net/dc/textdata.html). enwik8 is the file
of the Hutter Prize: the first 10^8 bytes of an XML dump of Wikipedia, in UTF-8. text8 is the first
10^8 characters of Wikipedia without markup, in lower case, digits spelled out. A copy is the file,
plain or in a zip. The splits are those of Mikolov et al., "Subword Language Modeling with Neural
Networks", 2012: the first bytes are training, those behind them validation, the last ones test.
"""

import dataclasses
import hashlib
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from longspan.data import archives
from longspan.data.cache import BuildOutput
from longspan.data.document_rows import DocumentWriter
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.store import Examples
from longspan.data.stream_vocabularies import ByteVocabulary, CharacterVocabulary
from longspan.errors import DataError, MissingSourceError
from longspan.files import check_file
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.registry import register

_SIZES = {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}
IMPORT_HINT = "another text becomes a task by `longspan data import corpus PATH --objective next`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedText:
    """A published file.

    Attributes:
        name: name of the file, and of the zip without its suffix.
        sha256: of the unpacked file; None: not checked.
        sizes: bytes of each split, in the order of the file.
    """

    name: str
    sha256: str | None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=_SIZES.copy)

    @property
    def url(self) -> str:
        """Address of the zip."""
        return f"http://mattmahoney.net/dc/{self.name}.zip"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(self.sizes.values())


def find(text: PublishedText, data: Path | None) -> SourceFiles:
    """Find a copy of a published file that has its size.

    Args:
        text: the published file.
        data: a folder, the file or its zip. None: $LONGSPAN_DATA, then $LONGSPAN_TEST_DATA.

    Raises:
        DataError: there is no copy (the message says how to get one), or it has another size.
    """
    wrong = []
    paths = search_paths(data, f"{text.name}, {text.name}.zip or the folder that holds one of them")
    for path in paths:
        for copy in _copies_in(text.name, path):
            size = _unpacked_size(copy, text.name)
            if size == text.size:
                return copy
            wrong.append(f"{copy.path} has {size:,}")
    if wrong:
        raise DataError(
            f"{text.name} has {text.size:,} bytes, but {'; '.join(wrong)}; fetch {text.url} again. "
            f"As official data, a part of it is refused; {IMPORT_HINT}"
        )
    raise MissingSourceError(
        f"{text.name} is not here (searched {format_paths(paths)}); download {text.url} to FOLDER "
        f"and run `longspan data build {text.name} --data FOLDER`"
    )


def read_splits(
    text: PublishedText, copy: SourceFiles, ids: np.ndarray, scratch: Path
) -> dict[str, Examples]:
    """Return one document for each split, in constant memory.

    Args:
        text: the published file.
        copy: a copy of it.
        ids: id of each byte, (256,); 0 of those that the file lacks.
        scratch: folder of the tokens.

    Raises:
        DataError: the copy has another size, another sha256 or another byte.
        RunError: the disk is full.
    """
    writers = {name: DocumentWriter(scratch / f"{name}.tokens", np.uint8) for name in text.sizes}
    ends = np.cumsum(list(text.sizes.values()))
    digest, done = hashlib.sha256(), 0
    for block in _blocks(copy, text.name):
        digest.update(block)
        tokens = ids[np.frombuffer(block, np.uint8)]
        if not tokens.all():
            place = int(np.argmin(tokens))
            raise DataError(
                f"{copy.path}: byte {done + place:,} is {block[place : place + 1]!r}, which "
                f"{text.name} lacks; fetch {text.url} again"
            )
        bounds = np.clip(np.array([0, *ends]) - done, 0, len(tokens))
        for writer, first, last in zip(writers.values(), bounds, bounds[1:], strict=False):
            writer.add(tokens[first:last])
        done += len(block)
    if done != text.size or text.sha256 not in (None, digest.hexdigest()):
        raise DataError(
            f"{copy.path} is not the published {text.name}: expected {text.size:,} bytes with the "
            f"sha256 {text.sha256}, got {done:,} with {digest.hexdigest()}; fetch {text.url} again"
        )
    for writer in writers.values():
        writer.end_document()
    return {name: writer.examples() for name, writer in writers.items()}


def _copies_in(name: str, path: Path) -> Iterator[SourceFiles]:
    """Yield the copies in a search path, which may be one itself; unpacked ones first."""
    folders = usual_folders(path, name) if path.is_dir() else ()
    files = [path] if path.is_file() else [folder / name for folder in folders]
    for one in (*files, *(folder / f"{name}.zip" for folder in folders)):
        if one.is_file() and not _is_other_archive(one, name, is_search_path=one == path):
            yield SourceFiles(form="zip" if _is_zip(one) else "file", path=one)


def _is_other_archive(path: Path, name: str, *, is_search_path: bool) -> bool:
    """Return whether a file is another archive; of zips, only the search path is checked."""
    if not _is_zip(path):
        return tarfile.is_tarfile(path)
    with zipfile.ZipFile(path) as archive:
        return is_search_path and name not in archive.namelist()


def _is_zip(path: Path) -> bool:
    return zipfile.is_zipfile(check_file(path))


def _unpacked_size(copy: SourceFiles, name: str) -> int:
    """Return the bytes of the file; 0 if a zip lacks it."""
    if copy.form == "file":
        return copy.path.stat().st_size
    try:
        with zipfile.ZipFile(copy.path) as archive:
            return archive.getinfo(name).file_size
    except KeyError:
        return 0
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{copy.path} is damaged ({error}); fetch it again") from error


def _blocks(copy: SourceFiles, name: str) -> Iterator[bytes]:
    """Yield the unpacked file in blocks."""
    limits = archives.Limits(member=1 << 30, total=1 << 30)
    if copy.form == "zip":
        for member in archives.read_members(copy.path, name.__eq__, limits):
            yield from member.blocks()
        return
    with archives.open_member(copy.path.parent, copy.path.name, limits) as member:
        yield from member.blocks()


class PublishedTextTask(StreamTask):
    """Next bytes or characters of a published file; each split is one document."""

    text: ClassVar[PublishedText]

    @property
    def byte_ids(self) -> np.ndarray:
        """Id of each byte, (256,) uint8; 0 of those that the file lacks (UTF-8 has no 255)."""
        ids = np.zeros(256, np.int64)
        for token, text in enumerate(self.vocabulary.texts[1:], 1):
            ids[text[0]] = token
        return ids.astype(np.uint8)

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the copy of the file."""
        return find(self.text, data)

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the file, in constant memory."""
        copy = self.find_source(data)
        progress(f"reading {self.text.name}", 0, self.text.size)
        splits = read_splits(self.text, copy, self.byte_ids, scratch)
        return BuildOutput(
            splits=splits,
            source=f"{self.text.name}, {self.text.size:,} bytes",
            facts={
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
                "source_sha256": copy.checksums(),
            },
        )


@register
class Enwik8(PublishedTextTask):
    """Next bytes of enwik8."""

    vocabulary = ByteVocabulary()
    text: ClassVar[PublishedText] = PublishedText(
        name="enwik8", sha256="2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
    )
    info = TaskInfo(
        name="enwik8",
        title="enwik8 (bytes)",
        summary="Predict the next byte of Wikipedia with its markup.",
        source=f"enwik8, Mahoney 2006, {text.url}",
        checksum=text.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        vocab_size=vocabulary.size,
        num_classes=vocabulary.size,
        metrics=("bits_per_byte",),
        head="causal_lm",
        published=published_scores("enwik8"),
        notes=(
            "The splits are the first 90 million bytes, the next 5 million and the last 5 million; "
            "each is one document. The first byte of a split is not predicted, so 4,999,999 of the "
            "test split are scored. Papers call bits per byte of this file bits per character "
            "(bpc); a character of UTF-8 has one to four bytes. The published vocabulary has the "
            "205 bytes that occur, this one all 256 and padding. Intervals are over 100 blocks of "
            "the split, as there is one document. Published scores depend on the length of the "
            "segments and on how far windows overlap (evaluation='sliding')."
        ),
    )


@register
class Text8(PublishedTextTask):
    """Next characters of text8."""

    vocabulary = CharacterVocabulary(" abcdefghijklmnopqrstuvwxyz")
    text: ClassVar[PublishedText] = PublishedText(
        name="text8", sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"
    )
    info = TaskInfo(
        name="text8",
        title="text8 (characters)",
        summary="Predict the next of 27 characters of Wikipedia.",
        source=f"text8, Mahoney 2006, {text.url}",
        checksum=text.sha256,
        license="CC BY-SA 3.0 and GFDL (Wikipedia)",
        vocab_size=vocabulary.size,
        num_classes=vocabulary.size,
        metrics=("bits_per_character",),
        head="causal_lm",
        published=published_scores("text8"),
        notes=(
            "The splits are the first 90 million characters, the next 5 million and the last 5 "
            "million; each is one document. The first character of a split is not predicted, so "
            "4,999,999 of the test split are scored. Intervals are over 100 blocks of the split, "
            "as there is one document. A uniform guess has 4.755 bits per character. Published "
            "scores depend on the length of the segments and on how far windows overlap "
            "(evaluation='sliding')."
        ),
    )
