"""Sources of a corpus: a folder, a file or a data set, and the reader of each."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from longspan.data.corpora.documents import CorpusFormat, Document, ReadingReport
from longspan.data.corpora.tables import HUB, read_dataset, read_jsonl, read_parquet
from longspan.data.corpora.text import read_text, unpacked_path
from longspan.data.own_splits import NAMES, TRAIN
from longspan.data.parquet import SUFFIX
from longspan.errors import DataError

_READERS = {".jsonl": read_jsonl, ".ndjson": read_jsonl, SUFFIX: read_parquet}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A folder, a file or a data set, read as a whole.

    Attributes:
        path: path, or "hf:NAME" for a data set of the `datasets` library.
        split: split of its documents; those of "train" are split further.
    """

    path: str
    split: str = NAMES[TRAIN]

    @property
    def is_dataset(self) -> bool:
        """True for a data set of the `datasets` library."""
        return self.path.startswith(HUB)

    def read(self, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
        """Yield the documents in the order of the sorted paths, up to the limit of the format.

        Raises:
            DataError: there is no such path, it has no files, or one is unusable.
            OptionError: an encoding or the name of a data set is invalid.
        """
        if self.is_dataset:
            found = read_dataset(self.path, form, report)
        else:
            files = find_files(Path(self.path))
            found = itertools.chain.from_iterable(_read_file(x, form, report) for x in files)
        return itertools.islice(found, form.limit)


def find_files(path: Path) -> list[Path]:
    """Return a file, or the files of a folder and its subfolders, sorted; hidden ones are not read.

    Raises:
        DataError: there is no such path, or the folder has no files.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; pass a file, a folder or hf:NAME")
    if not path.is_dir():
        return [path]
    found = [x for x in path.rglob("*") if x.is_file() and not _is_hidden(x.relative_to(path))]
    if not found:
        raise DataError(f"{path} has no files; pass a folder of text, JSONL or parquet files")
    return sorted(found)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _read_file(path: Path, form: CorpusFormat, report: ReadingReport) -> Iterator[Document]:
    """Choose the reader by the suffix; text unless it says otherwise."""
    unpacked = unpacked_path(path)
    suffix = unpacked.suffix.lower()
    if suffix == SUFFIX and unpacked != path:
        report.add_bad(str(path), "expected plain parquet, got a packed file; unpack it")
        return iter(())
    return _READERS.get(suffix, read_text)(path, form, report)
