"""Texts of symbols and a marker: ids and names that compression and duplication share."""

from typing import Any

import numpy as np

from longspan.tasks.synthetic.generated import GeneratedTask

MARKER = 1
FIRST_SYMBOL = 2  # ids 0 and 1 are padding and the marker


class MarkedSymbolsTask(GeneratedTask):
    """A task whose classes are its symbols; the option `symbols` is their number."""

    options: Any

    @property
    def vocab_size(self) -> int:
        """Number of token ids, padding included."""
        return FIRST_SYMBOL + self.options.symbols

    @property
    def num_classes(self) -> int:
        """Number of symbols."""
        return self.options.symbols

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return the names of the symbols, and a bar for the marker."""
        return [f"s{x - FIRST_SYMBOL}" if x >= FIRST_SYMBOL else "|" for x in ids.tolist()]
