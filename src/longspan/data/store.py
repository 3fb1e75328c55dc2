"""Examples of a split in one memory-mapped Arrow file: ragged token sequences and labels.

Every row has a CRC, which is checked when the row is read. So a dataset may be larger than memory
and opens at once, and a row that has changed on the disk is never used.
"""

import array
import dataclasses
import hashlib
import mmap
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from longspan.errors import DataError
from longspan.files import atomic_write, explain_read_error, explain_write_errors, open_file

_LISTS = ("tokens", "second", "targets", "details")
# Values and rows processed at a time, since a split may be larger than memory.
_PIECE, _ROWS = 1 << 22, 1 << 16
_BUFFER = 1 << 17  # bytes written at a time
# Pages (of up to megabytes) of a file above _SMALL bytes are released after _RELEASE_EVERY rows.
_SMALL, _RELEASE_EVERY = 1 << 28, 64
_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)  # lists of more than 2**31 values


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Concatenated sequences: sequence i is values[offsets[i]:offsets[i+1]]."""

    values: np.ndarray  # uint8, uint16 or uint32
    offsets: np.ndarray  # int64, one more than there are sequences

    @classmethod
    def pack(cls, sequences: Sequence[np.ndarray], dtype: type[np.unsignedinteger]) -> "Ragged":
        """Concatenate the sequences."""
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
        values = np.concatenate([np.empty(0, dtype), *sequences]).astype(dtype, copy=False)
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int | np.integer) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Length of each sequence."""
        return np.diff(self.offsets)

    def count(self, value: int) -> int:
        """Return how often a value occurs, with a piece of the comparison in memory at a time."""
        firsts = range(0, len(self.values), _PIECE)
        return sum(int(np.count_nonzero(self.values[i : i + _PIECE] == value)) for i in firsts)


def as_read_only(values: np.ndarray) -> np.ndarray:
    """Return a read-only view; numba compiles a function once for these and for mapped arrays."""
    view = values.view()
    view.flags.writeable = False
    return view


class MappedFile:
    """Memory-mapped file; pages of a large one are released some rows after they were read.

    Otherwise every page that was ever read counts as memory of the process until the system needs
    it.
    """

    def __init__(self, path: Path):
        """Map the file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is empty.
        """
        with open_file(path) as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._rows = 0

    def read(self, rows: int) -> None:
        """Count rows that were read; release the pages after every `_RELEASE_EVERY` rows."""
        self._rows += rows
        if (
            self._rows >= _RELEASE_EVERY
            and len(self.bytes) > _SMALL
            and hasattr(self.bytes, "madvise")
        ):
            self._rows = 0
            # a later read finds them in the cache of the system, or on the disk
            self.bytes.madvise(mmap.MADV_DONTNEED)


class SequenceWriter:
    """Sequences appended to a file, for splits larger than memory."""

    def __init__(self, path: Path, dtype: type[np.unsignedinteger]):
        """Create an empty file.

        Raises:
            RunError: the disk is full or the folder cannot be written; all methods raise it.
        """
        self.path, self.dtype = path, dtype
        self._lengths, self._unwritten = array.array("q"), bytearray()
        self._write("wb")

    def add(self, sequence: np.ndarray) -> None:
        """Append one sequence."""
        self.add_rows(sequence[None])

    def add_rows(self, rows: np.ndarray) -> None:
        """Append sequences of equal length, (N, T)."""
        self._unwritten += np.ascontiguousarray(rows, self.dtype).data
        self._lengths.extend([rows.shape[1]] * len(rows))
        if len(self._unwritten) >= _BUFFER:
            self._write("ab")

    def ragged(self) -> Ragged:
        """Return the sequences so far; their values are a view of the file."""
        self._write("ab")
        offsets = np.zeros(len(self._lengths) + 1, np.int64)
        np.cumsum(self._lengths, out=offsets[1:])
        if not offsets[-1]:
            return Ragged(np.empty(0, self.dtype), offsets)
        return Ragged(np.memmap(self.path, self.dtype, mode="r"), offsets)

    def _write(self, mode: str) -> None:
        with explain_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(self._unwritten)
        self._unwritten = bytearray()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples of a split; labels are classes, or floating-point numbers to predict.

    Each example of a task over pairs has a second sequence. A task that scores tokens has a target
    for each token: 0 is not scored, c + 1 is class c. Details are bytes that no model reads: JSON
    with the text of a document and the right answers, from which scores are computed.
    """

    tokens: Ragged
    labels: np.ndarray
    second: Ragged | None = None
    targets: Ragged | None = None
    details: Ragged | None = None
    checks: np.ndarray | None = None  # uint32, the CRC of each row; None before writing
    path: Path | None = None  # the file that the arrays are views of
    mapping: MappedFile | None = None  # of that file

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lists(self) -> dict[str, Ragged]:
        """Sequences of the examples by name: tokens, and the other ones if present."""
        lists = {name: getattr(self, name) for name in _LISTS}
        return {name: part for name, part in lists.items() if part is not None}

    def select(self, rows: Sequence[int]) -> "Examples":
        """Return the examples of these rows, in this order."""
        parts: dict[str, Any] = {
            name: Ragged.pack([part[row] for row in rows], part.values.dtype.type)
            for name, part in self.lists.items()
        }
        return Examples(**parts, labels=self.labels[np.asarray(rows, np.int64)])

    @classmethod
    def concatenate(cls, parts: Sequence["Examples"]) -> "Examples":
        """Concatenate the examples of all parts."""
        lists: dict[str, Any] = {}
        for name in parts[0].lists:
            ragged = [part.lists[name] for part in parts]
            shifts = np.cumsum([0, *(len(part.values) for part in ragged)])
            ends = [part.offsets[1:] + shift for part, shift in zip(ragged, shifts, strict=False)]
            offsets = np.concatenate([np.zeros(1, np.int64), *ends])
            lists[name] = Ragged(np.concatenate([part.values for part in ragged]), offsets)
        return cls(**lists, labels=np.concatenate([part.labels for part in parts]))

    def checksum(self) -> str:
        """Return the sha256 of the content, independent of the file format."""
        digest = hashlib.sha256()
        for part in self.lists.values():
            digest.update(np.ascontiguousarray(part.offsets, "<i8").data)
            # bytes count as 16-bit ids, so that a narrower type has the same checksum
            dtype = "<u2" if part.values.itemsize <= 2 else "<u4"
            for first in range(0, len(part.values), _PIECE):
                piece = part.values[first : first + _PIECE]
                digest.update(np.ascontiguousarray(piece, dtype).data)
        digest.update(self._label_bytes())
        return digest.hexdigest()

    def index_checksum(self) -> str:
        """Return the sha256 of everything but the sequences: types, offsets, labels and CRCs."""
        digest = hashlib.sha256()
        for part in self.lists.values():
            digest.update(part.values.dtype.str.encode())
            digest.update(np.ascontiguousarray(part.offsets, "<i8").data)
        digest.update(self._label_bytes())
        digest.update(np.ascontiguousarray(self.crcs(), "<u4").data)
        return digest.hexdigest()

    def _label_bytes(self) -> memoryview:
        """Return the labels as 64-bit numbers: integers, or floats of a regression."""
        dtype = "<f8" if self.labels.dtype.kind == "f" else "<i8"
        return np.ascontiguousarray(self.labels, dtype).data

    def crcs(self) -> np.ndarray:
        """Return the CRC of each row: as recorded, or computed if the examples are unwritten."""
        if self.checks is not None:
            return self.checks
        rows = np.arange(len(self))
        pieces = [rows[first : first + _ROWS] for first in range(0, len(self), _ROWS)]
        return np.concatenate([np.empty(0, np.uint32), *map(self._crcs, pieces)])

    def check(self, rows: np.ndarray) -> None:
        """Compare rows with their recorded CRC; call this before using them.

        Raises:
            DataError: a row has changed since it was written.
        """
        if self.mapping is not None:
            self.mapping.read(len(rows))
        if self.checks is None:
            return
        changed_rows = rows[self._crcs(rows) != self.checks[rows]]
        if len(changed_rows):
            raise DataError(
                f"{self.path}: row {changed_rows[0]} has changed since it was written; run "
                "`longspan data verify`, or delete the folder to rebuild it"
            )

    def _crcs(self, rows: np.ndarray) -> np.ndarray:
        crcs = [0] * len(rows)
        for part in self.lists.values():
            values = np.ascontiguousarray(part.values).data
            ends = part.offsets[rows + 1].tolist()
            bounds = zip(part.offsets[rows].tolist(), ends, crcs, strict=True)
            crcs = [zlib.crc32(values[start:end], crc) for start, end, crc in bounds]
        return np.array(crcs, np.uint32)


def write_examples(path: Path, examples: Examples) -> None:
    """Write a split as an Arrow IPC file, atomically.

    Raises:
        DataError: there are no examples, a sequence is empty or missing.
        RunError: the disk is full or the folder cannot be written.
    """
    if not len(examples):
        raise DataError(f"{path.name}: no examples to write; expected one or more")
    for part in examples.lists.values():
        if len(part) != len(examples) or not part.lengths.min():
            raise DataError(
                f"{path.name}: {len(examples)} labels and {len(part)} sequences, the shortest of "
                f"{part.lengths.min()} tokens; expected one sequence for each label, none empty"
            )
    columns = {"label": pa.array(examples.labels), "crc": pa.array(examples.crcs())}
    for name, part in examples.lists.items():
        columns[name] = pa.LargeListArray.from_arrays(part.offsets, pa.array(part.values))
    batch = pa.record_batch(columns)
    with (
        atomic_write(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, batch.schema, options=_OPTIONS) as writer,
    ):
        writer.write_batch(batch)


def read_examples(path: Path) -> Examples:
    """Map a split into memory; the arrays are views of the file.

    Raises:
        DataError: the file is missing or `write_examples` did not write it.
        UnreadableError: the system does not read it now.
    """
    try:
        mapping = MappedFile(path)
    except OSError as error:
        raise explain_read_error(path, error) from error
    except ValueError as error:
        raise DataError(f"{path} is empty; rebuild it") from error
    try:
        file = pa.ipc.open_file(pa.py_buffer(mapping.bytes))
        if file.num_record_batches != 1 or not {"tokens", "label", "crc"} <= set(file.schema.names):
            raise DataError(f"{path} is not a longspan split (columns {file.schema.names})")
        batch = file.get_batch(0)
        # the buffer sizes in the file may be damaged too; this keeps reads inside the buffers
        batch.validate()
        parts = {
            name: Ragged(
                batch.column(name).values.to_numpy(zero_copy_only=True),
                batch.column(name).offsets.to_numpy(zero_copy_only=True),
            )
            for name in _LISTS
            if name in batch.schema.names
        }
        labels, checks = (
            batch.column(name).to_numpy(zero_copy_only=True) for name in ("label", "crc")
        )
    except (pa.ArrowException, OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable Arrow file ({reason}); rebuild it") from error
    return Examples(**parts, labels=labels, checks=checks, path=path, mapping=mapping)
