"""Documents in rows of tokens."""

import numpy as np
import pytest

from longspan.data.document_rows import ROW, DocumentWriter
from text_sources import documents_of

SIZES = (1, 2, ROW - 1, ROW, ROW + 1, 3 * ROW, 5)


@pytest.mark.parametrize("step", [1_000, ROW, 3 * ROW + 1])
def test_documents_are_kept_apart_in_rows_that_are_full_but_the_last(tmp_path, step):
    generator = np.random.default_rng(0)
    texts = [generator.integers(1, 257, size).astype(np.uint16) for size in SIZES]
    writer = DocumentWriter(tmp_path / "x.tokens", np.uint16)
    for text in texts:
        for first in range(0, len(text), step):
            writer.add(text[first : first + step])
        writer.end_document()
    examples = writer.examples()
    for one, other in zip(documents_of(examples), texts, strict=True):
        np.testing.assert_array_equal(one, other)
    is_last = np.append(np.diff(examples.labels) != 0, True)
    assert (examples.tokens.lengths[~is_last] == ROW).all()
    assert (writer.num_documents, writer.num_short) == (len(SIZES), 0)


def test_short_documents_are_counted_and_left_out(tmp_path):
    writer = DocumentWriter(tmp_path / "x.tokens", np.uint8, min_length=2)
    for text in ([1], [2, 3], [], [4], [5, 6, 7]):
        writer.add(np.array(text, np.uint8))
        writer.end_document()
    found = documents_of(writer.examples())
    assert [x.tolist() for x in found] == [[2, 3], [5, 6, 7]]
    assert (writer.num_documents, writer.num_short) == (2, 3)
