"""Documents among which an evaluation ranks those that answer its queries."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from longspan.tasks.batching import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedDocuments:
    """Documents of a collection, for some queries of a split.

    Attributes:
        count: number of documents.
        depth: largest number of documents in the ranking of a query.
        batches: yields every document once, as the first sequences of batches of a given size;
            rows are the numbers of the documents.
        relevant: query and document of each pair that belongs together, (P, 2): the place of the
            query among those that are scored, and the number of the document. Every query has one.
        excluded: pairs that are not ranked, such as a query and the document that it is itself.
        scale: factor of the similarities in the loss.
    """

    count: int
    depth: int
    batches: Callable[[int], Iterator[Batch]]
    relevant: np.ndarray
    excluded: np.ndarray
    scale: float
