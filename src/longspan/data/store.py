"""One split in one file: ragged token sequences and labels as Arrow, mapped, never copied.

Every row carries a CRC, which is looked at when the row is handed out: a set may be larger than
memory, is open at once, and what has changed on the disk is still never read.
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

from longspan.errors import DataError, RunError
from longspan.files import WRITE_REMEDY, atomic_write

_LISTS = ("tokens", "second", "targets")
# Values and rows looked at in one go, so that a set need not fit into memory.
_PIECE, _ROWS = 1 << 22, 1 << 16
_BUFFER = 1 << 17  # bytes that are written in one go
# Pages of files beyond so many bytes stay in memory for so many rows (a page may have megabytes).
_SMALL, _KEPT = 1 << 28, 64
_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)  # lists of more than 2**31 values


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, end to end: sequence i is values[offsets[i]:offsets[i+1]]."""

    values: np.ndarray  # uint8 or uint16
    offsets: np.ndarray  # int64, one more than there are sequences

    @classmethod
    def pack(cls, sequences: Sequence[np.ndarray], dtype: type[np.unsignedinteger]) -> "Ragged":
        """Lay the sequences end to end."""
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
        values = np.concatenate([np.empty(0, dtype), *sequences]).astype(dtype, copy=False)
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence."""
        return np.diff(self.offsets)


def read_only(values: np.ndarray) -> np.ndarray:
    """A view that cannot be written to, as those of a file: what is compiled for one is for all."""
    view = values.view()
    view.flags.writeable = False
    return view


class Mapping:
    """A file mapped to be read; of a large one, only what was read lately stays in memory.

    Otherwise all that was ever read counts as memory of the process until the system needs it.
    """

    def __init__(self, path: Path):
        """Map the file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is empty.
        """
        with path.open("rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._rows = 0

    def read(self, rows: int) -> None:
        """Note that so many rows were read; let go of the pages now and then."""
        self._rows += rows
        if self._rows >= _KEPT and len(self.bytes) > _SMALL and hasattr(self.bytes, "madvise"):
            self._rows = 0
            # Whoever reads them again finds them in the cache of the system, or on the disk.
            self.bytes.madvise(mmap.MADV_DONTNEED)


class Spool:
    """Sequences written to a file as they come, for sets that memory does not hold."""

    def __init__(self, path: Path, dtype: type[np.unsignedinteger]):
        """Begin an empty file.

        Raises:
            RunError: the disk is full or the folder cannot be written; so do all methods.
        """
        self.path, self.dtype = path, dtype
        self._lengths, self._unwritten = array.array("q"), bytearray()
        self._write("wb")

    def add(self, sequence: np.ndarray) -> None:
        """Append one sequence."""
        self.add_rows(sequence[None])

    def add_rows(self, rows: np.ndarray) -> None:
        """Append sequences of one length, (N, T)."""
        self._unwritten += np.ascontiguousarray(rows, self.dtype).data
        self._lengths.extend([rows.shape[1]] * len(rows))
        if len(self._unwritten) >= _BUFFER:
            self._write("ab")

    def ragged(self) -> Ragged:
        """The sequences so far; their values are a view of the file."""
        self._write("ab")
        offsets = np.zeros(len(self._lengths) + 1, np.int64)
        np.cumsum(self._lengths, out=offsets[1:])
        if not offsets[-1]:
            return Ragged(np.empty(0, self.dtype), offsets)
        return Ragged(np.memmap(self.path, self.dtype, mode="r"), offsets)

    def _write(self, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode) as file:
                file.write(self._unwritten)
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"cannot write {self.path}: {reason}; {WRITE_REMEDY}") from error
        self._unwritten = bytearray()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples of a split; a task over pairs has a second sequence in each.

    A task that scores tokens has a target at each of them: 0 is not scored, c + 1 is class c.
    """

    tokens: Ragged
    labels: np.ndarray
    second: Ragged | None = None
    targets: Ragged | None = None
    checks: np.ndarray | None = None  # uint32, the CRC of each row; None before it is written
    path: Path | None = None  # the file these are views of
    mapping: Mapping | None = None  # of that file

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lists(self) -> dict[str, Ragged]:
        """The one to three lists of the examples, by name."""
        named = {name: getattr(self, name) for name in _LISTS}
        return {name: part for name, part in named.items() if part is not None}

    def select(self, rows: Sequence[int]) -> "Examples":
        """The examples of these rows, in this order."""
        parts: dict[str, Any] = {
            name: Ragged.pack([part[row] for row in rows], part.values.dtype.type)
            for name, part in self.lists.items()
        }
        return Examples(**parts, labels=self.labels[np.asarray(rows, np.int64)])

    @classmethod
    def concatenate(cls, parts: Sequence["Examples"]) -> "Examples":
        """The examples of all parts, one after the other."""
        joined: dict[str, Any] = {}
        for name in parts[0].lists:
            ragged = [part.lists[name] for part in parts]
            shifts = np.cumsum([0, *(len(part.values) for part in ragged)])
            ends = [part.offsets[1:] + shift for part, shift in zip(ragged, shifts, strict=False)]
            offsets = np.concatenate([np.zeros(1, np.int64), *ends])
            joined[name] = Ragged(np.concatenate([part.values for part in ragged]), offsets)
        return cls(**joined, labels=np.concatenate([part.labels for part in parts]))

    def checksum(self) -> str:
        """sha256 over the content, the same whatever wrote the file."""
        digest = hashlib.sha256()
        for part in self.lists.values():
            digest.update(np.ascontiguousarray(part.offsets, "<i8").data)
            for first in range(0, len(part.values), _PIECE):
                digest.update(np.ascontiguousarray(part.values[first : first + _PIECE], "<u2").data)
        digest.update(np.ascontiguousarray(self.labels, "<i8").data)
        return digest.hexdigest()

    def index_checksum(self) -> str:
        """sha256 over all but the sequences: their type, where they begin, labels, their CRCs."""
        digest = hashlib.sha256()
        for part in self.lists.values():
            digest.update(part.values.dtype.str.encode())
            digest.update(np.ascontiguousarray(part.offsets, "<i8").data)
        digest.update(np.ascontiguousarray(self.labels, "<i8").data)
        digest.update(np.ascontiguousarray(self.crcs(), "<u4").data)
        return digest.hexdigest()

    def crcs(self) -> np.ndarray:
        """The CRC of each row as recorded, or computed where nothing is recorded yet."""
        if self.checks is not None:
            return self.checks
        rows = np.arange(len(self))
        pieces = [rows[first : first + _ROWS] for first in range(0, len(self), _ROWS)]
        return np.concatenate([np.empty(0, np.uint32), *map(self._crcs, pieces)])

    def check(self, rows: np.ndarray) -> None:
        """Compare rows, about to be handed out, with their recorded CRC.

        Raises:
            DataError: a row has changed since it was written.
        """
        if self.mapping is not None:
            self.mapping.read(len(rows))
        if self.checks is None:
            return
        changed = rows[self._crcs(rows) != self.checks[rows]]
        if len(changed):
            raise DataError(
                f"{self.path}: row {changed[0]} is not as it was written; run `longspan data "
                "verify` or delete the folder to have it built again"
            )

    def _crcs(self, rows: np.ndarray) -> np.ndarray:
        crcs = [0] * len(rows)
        for part in self.lists.values():
            values = np.ascontiguousarray(part.values).data
            ends = part.offsets[rows + 1].tolist()
            bounds = zip(part.offsets[rows].tolist(), ends, crcs, strict=True)
            crcs = [zlib.crc32(values[start:end], crc) for start, end, crc in bounds]
        return np.array(crcs, np.uint32)


def write(path: Path, examples: Examples) -> None:
    """Write a split as an Arrow IPC file, atomically.

    Raises:
        DataError: there are no examples, or a sequence is empty.
        RunError: the disk is full or the folder cannot be written.
    """
    if not len(examples):
        raise DataError(f"{path.name}: no examples to write; expected at least one")
    for part in examples.lists.values():
        if len(part) != len(examples) or not part.lengths.min():
            raise DataError(
                f"{path.name}: {len(examples)} labels and {len(part)} sequences, the shortest of "
                f"{part.lengths.min()} tokens; expected one sequence to a label, none empty"
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


def read(path: Path) -> Examples:
    """Map a split; the arrays are views of the file.

    Raises:
        DataError: the file is absent or not one that `write` wrote.
    """
    try:
        mapping = Mapping(path)
        file = pa.ipc.open_file(pa.py_buffer(mapping.bytes))
        if file.num_record_batches != 1 or not {"tokens", "label", "crc"} <= set(file.schema.names):
            raise DataError(f"{path} is not a longspan split (columns {file.schema.names})")
        batch = file.get_batch(0)
        # What the file says of its buffers may have changed too: nothing is read beyond them.
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
        raise DataError(
            f"{path} is not a readable Arrow file ({reason}); build it again"
        ) from error
    return Examples(**parts, labels=labels, checks=checks, path=path, mapping=mapping)
