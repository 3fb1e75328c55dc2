"""One split in one file: ragged token sequences and labels as Arrow, mapped, never copied."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from longspan.errors import DataError
from longspan.files import replacing

_NAMES = ("tokens", "tokens_b", "label")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples of a split; a task over pairs has a second sequence in each."""

    tokens: Ragged
    labels: np.ndarray
    second: Ragged | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """The one or two sequences of the examples."""
        return (self.tokens,) if self.second is None else (self.tokens, self.second)

    def select(self, rows: Sequence[int]) -> "Examples":
        """The examples of these rows, in this order."""
        parts = [
            Ragged.pack([part[row] for row in rows], part.values.dtype.type)
            for part in self.sequences
        ]
        return Examples(
            tokens=parts[0],
            labels=self.labels[np.asarray(rows, np.int64)],
            second=None if self.second is None else parts[1],
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Examples"]) -> "Examples":
        """The examples of all parts, one after the other."""
        joined = []
        for ragged in zip(*(part.sequences for part in parts), strict=True):
            shifts = np.cumsum([0, *(len(part.values) for part in ragged)])
            ends = [part.offsets[1:] + shift for part, shift in zip(ragged, shifts, strict=False)]
            offsets = np.concatenate([np.zeros(1, np.int64), *ends])
            joined.append(Ragged(np.concatenate([part.values for part in ragged]), offsets))
        return cls(
            tokens=joined[0],
            labels=np.concatenate([part.labels for part in parts]),
            second=joined[1] if len(joined) > 1 else None,
        )

    def checksum(self) -> str:
        """sha256 over the content, the same whatever wrote the file."""
        digest = hashlib.sha256()
        for part in self.sequences:
            digest.update(np.ascontiguousarray(part.offsets, "<i8").data)
            digest.update(np.ascontiguousarray(part.values, "<u2").data)
        digest.update(np.ascontiguousarray(self.labels, "<i8").data)
        return digest.hexdigest()


def write(path: Path, examples: Examples) -> None:
    """Write a split as an Arrow IPC file, atomically.

    Raises:
        DataError: there are no examples, or a sequence is empty.
        RunError: the disk is full or the folder cannot be written.
    """
    if not len(examples):
        raise DataError(f"{path.name}: no examples to write; expected at least one")
    columns = {"label": pa.array(examples.labels)}
    for name, part in zip(_NAMES, examples.sequences, strict=False):
        if len(part) != len(examples) or not part.lengths.min():
            raise DataError(
                f"{path.name}: {len(examples)} labels and {len(part)} sequences, the shortest of "
                f"{part.lengths.min()} tokens; expected one sequence to a label, none empty"
            )
        columns[name] = pa.LargeListArray.from_arrays(part.offsets, pa.array(part.values))
    batch = pa.record_batch(columns)
    with (
        replacing(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def read(path: Path) -> Examples:
    """Map a split; the arrays are views of the file.

    Raises:
        DataError: the file is absent or not one that `write` wrote.
    """
    try:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        if file.num_record_batches != 1 or not {"tokens", "label"} <= set(file.schema.names):
            raise DataError(f"{path} is not a longspan split (columns {file.schema.names})")
        batch = file.get_batch(0)
        parts = [
            Ragged(
                batch.column(name).values.to_numpy(zero_copy_only=True),
                batch.column(name).offsets.to_numpy(zero_copy_only=True),
            )
            for name in _NAMES[:2]
            if name in batch.schema.names
        ]
        labels = batch.column("label").to_numpy(zero_copy_only=True)
    except (pa.ArrowException, OSError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{path} is not a readable Arrow file ({reason}); build it again"
        ) from error
    return Examples(tokens=parts[0], labels=labels, second=parts[1] if len(parts) > 1 else None)
