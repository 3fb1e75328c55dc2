"""Examples written to files one by one, with details as JSON, for splits larger than memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.store import Examples, SequenceWriter


class ExampleWriter:
    """Examples of a split in files."""

    def __init__(
        self,
        folder: Path,
        *,
        labels: type[np.unsignedinteger] = np.uint8,
        has_details: bool = True,
        **lists: type[np.unsignedinteger],
    ):
        """Create empty files in a folder.

        Args:
            folder: folder of the files.
            labels: type of the labels.
            has_details: whether examples have details.
            lists: type of each list of an example, such as its tokens.
        """
        types = {**lists, **({"details": np.uint8} if has_details else {})}
        self.lists = {name: SequenceWriter(folder / name, dtype) for name, dtype in types.items()}
        self.labels: list[int] = []
        self._label_type = labels

    def __len__(self) -> int:
        return len(self.labels)

    def add(
        self, label: int = 0, details: dict[str, Any] | None = None, **lists: np.ndarray
    ) -> None:
        """Append an example; details are what no model reads."""
        if details is not None:
            text = json.dumps(details, ensure_ascii=False, separators=(",", ":"))
            lists["details"] = np.frombuffer(text.encode(errors="replace"), np.uint8)
        for name, values in lists.items():
            self.lists[name].add(values)
        self.labels.append(label)

    def examples(self) -> Examples:
        """Return all examples; their sequences are views of the files."""
        lists: dict[str, Any] = {name: writer.ragged() for name, writer in self.lists.items()}
        return Examples(labels=np.array(self.labels, self._label_type), **lists)


def load_details(examples: Examples, row: int) -> dict[str, Any]:
    """Return the details of an example."""
    assert examples.details is not None
    return json.loads(examples.details[row].tobytes())
