"""A split is written to a file and read back as a memory map, or rejected."""

import threading
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.data import store
from longspan.data.store import Examples, Ragged, SequenceWriter
from longspan.errors import DataError, RunError


def make(sequences, dtype=np.uint8, labels=None, second=None, targets=None, details=None):
    return Examples(
        tokens=Ragged.pack([np.array(one, dtype) for one in sequences], dtype),
        labels=np.array(labels or range(len(sequences)), np.uint8),
        second=second and Ragged.pack([np.array(one, dtype) for one in second], dtype),
        targets=targets and Ragged.pack([np.array(one, dtype) for one in targets], dtype),
        details=details and Ragged.pack([np.array(one, dtype) for one in details], dtype),
    )


def contents(examples):
    parts = [[one.tolist() for one in part] for part in examples.lists.values()]
    return parts, examples.labels.tolist()


SEQUENCES = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=9)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sequences=SEQUENCES,
    dtype=st.sampled_from([np.uint8, np.uint16]),
    pair=st.booleans(),
    scored=st.booleans(),
    detailed=st.booleans(),
)
def test_examples_survive_a_round_trip(tmp_path, sequences, dtype, pair, scored, detailed):
    examples = make(
        sequences,
        dtype,
        second=sequences[::-1] if pair else None,
        targets=[[token % 3 for token in one] for one in sequences] if scored else None,
        details=[one[:1] for one in sequences] if detailed else None,
    )
    store.write_examples(tmp_path / "a.arrow", examples)
    back = store.read_examples(tmp_path / "a.arrow")
    assert contents(back) == contents(examples)
    assert back.tokens.values.dtype == dtype
    further = {"second": pair, "targets": scored, "details": detailed}
    assert list(back.lists) == ["tokens", *(name for name, has in further.items() if has)]
    assert back.checksum() == examples.checksum()
    assert back.index_checksum() == examples.index_checksum()
    assert back.checks.tolist() == crcs_of(contents(examples)[0], dtype)
    back.check(np.arange(len(back)))


def crcs_of(lists, dtype):
    """Compute the CRCs with zlib, over the concatenated sequences of each row."""
    rows = zip(*lists, strict=True)
    return [zlib.crc32(b"".join(np.array(one, dtype).tobytes() for one in row)) for row in rows]


@given(left=SEQUENCES, right=SEQUENCES, data=st.data())
@settings(deadline=None, max_examples=40)
def test_concatenate_and_select_agree_with_lists(left, right, data):
    joined = Examples.concatenate([make(left), make(right)])
    assert contents(joined)[0] == [left + right]
    rows = data.draw(st.lists(st.integers(0, len(joined) - 1), max_size=9))
    chosen = joined.select(rows)
    assert [one.tolist() for one in chosen.tokens] == [(left + right)[row] for row in rows]
    assert chosen.labels.tolist() == [joined.labels[row] for row in rows]


def test_reading_copies_nothing(tmp_path):
    store.write_examples(tmp_path / "a.arrow", make([[1] * 1_000_000, [2]]))
    before = pa.total_allocated_bytes()
    back = store.read_examples(tmp_path / "a.arrow")
    assert back.tokens.values.sum() == 1_000_002
    assert pa.total_allocated_bytes() - before < 10_000
    assert not back.tokens.values.flags.owndata
    assert not back.tokens.offsets.flags.owndata


def test_concatenate_and_select_keep_every_list():
    joined = Examples.concatenate(
        [
            make([[1, 2]], second=[[3]], targets=[[0, 1]]),
            make([[4]], second=[[5, 6]], targets=[[2]]),
        ]
    )
    assert contents(joined)[0] == [[[1, 2], [4]], [[3], [5, 6]], [[0, 1], [2]]]
    assert contents(joined.select([1]))[0] == [[[4]], [[5, 6]], [[2]]]


@pytest.mark.parametrize("change", ["token", "label", "border", "second", "targets"])
def test_checksum_depends_on_every_array(change):
    plain = make([[1, 2], [3]])
    other = {
        "token": make([[1, 2], [4]]),
        "label": make([[1, 2], [3]], labels=[0, 2]),
        "border": make([[1], [2, 3]]),
        "second": make([[1, 2], [3]], second=[[1], [1]]),
        "targets": make([[1, 2], [3]], targets=[[0, 0], [0]]),
    }[change]
    assert plain.checksum() != other.checksum()


def test_checksum_does_not_depend_on_the_dtype():
    assert make([[1, 2], [3]]).checksum() == make([[1, 2], [3]], np.uint16).checksum()


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        (make([]), "no examples to write"),
        (make([[1], []]), "the shortest of 0 tokens"),
        (make([[1], [2]], labels=[1]), "1 labels and 2 sequences"),
        (make([[1], [2]], second=[[1]]), "2 labels and 1 sequences"),
        (make([[1], [2]], targets=[[1]]), "2 labels and 1 sequences"),
    ],
)
def test_inconsistent_examples_are_not_written(tmp_path, examples, reason):
    with pytest.raises(DataError, match=reason):
        store.write_examples(tmp_path / "a.arrow", examples)
    assert list(tmp_path.iterdir()) == []


def test_unreadable_and_foreign_files_are_rejected(tmp_path):
    path = tmp_path / "a.arrow"
    with pytest.raises(DataError, match=r"a\.arrow cannot be read \(No such file"):
        store.read_examples(path)
    store.write_examples(path, make([[1, 2, 3]] * 50))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"a\.arrow is not a readable Arrow file"):
        store.read_examples(path)
    batch = pa.record_batch({"x": pa.array([1])})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match=r"is not a longspan split \(columns \['x'\]\)"):
        store.read_examples(path)


@pytest.fixture
def written(tmp_path):
    """Write a file with all kinds of sequences."""
    rows = [[row * 10 + place for place in range(4)] for row in range(9)]
    scored = [[place % 2 for place in range(4)] for _ in rows]
    store.write_examples(
        tmp_path / "a.arrow",
        make(rows, second=[[200 + row] * 8 for row in range(9)], targets=scored),
    )
    return tmp_path / "a.arrow"


@pytest.mark.parametrize(("content", "row"), [(bytes([30, 31, 32]), 3), (bytes([205] * 8), 5)])
def test_row_changed_on_the_disk_is_named(written, content, row):
    raw = bytearray(written.read_bytes())
    place = raw.index(content) + 1
    raw[place] ^= 4
    written.write_bytes(raw)
    examples = store.read_examples(written)
    examples.check(np.delete(np.arange(9), row))
    for rows in ([row], [8, row, 0]):
        with pytest.raises(
            DataError, match=rf"a\.arrow: row {row} has changed since it was written; run"
        ):
            examples.check(np.array(rows))


def test_unwritten_examples_pass_the_check():
    make([[1, 2], [3]]).check(np.array([0, 1]))


def test_crcs_do_not_depend_on_the_piece_size(monkeypatch):
    examples = make([[row, row + 1] for row in range(100)])
    whole = examples.crcs()
    monkeypatch.setattr(store, "_ROWS", 7)
    assert examples.crcs().tolist() == whole.tolist()


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequences=SEQUENCES, dtype=st.sampled_from([np.uint8, np.uint16]), data=st.data())
def test_writer_equals_packed_sequences(tmp_path, monkeypatch, sequences, dtype, data):
    monkeypatch.setattr(store, "_BUFFER", data.draw(st.integers(1, 40)))
    writer = SequenceWriter(tmp_path / "new" / "x", dtype)
    looks = data.draw(st.sets(st.integers(0, 9)))
    arrays = [np.array(one) for one in sequences]
    for number, one in enumerate(arrays):
        if number in looks:
            assert [x.tolist() for x in writer.ragged()] == sequences[:number]
        writer.add(one)
    ragged = writer.ragged()
    packed = Ragged.pack(arrays, dtype)
    assert ragged.values.dtype == dtype
    assert ragged.values.tolist() == packed.values.tolist()
    assert ragged.offsets.tolist() == packed.offsets.tolist()
    assert isinstance(ragged.values, np.memmap)


def test_rows_of_equal_length_are_written_together(tmp_path):
    writer = SequenceWriter(tmp_path / "x", np.uint16)
    assert len(writer.ragged()) == 0
    writer.add_rows(np.arange(6).reshape(2, 3))
    writer.add_rows(np.empty((0, 5), int))
    writer.add_rows(np.arange(8).reshape(4, 2)[::2])
    assert [one.tolist() for one in writer.ragged()] == [[0, 1, 2], [3, 4, 5], [0, 1], [4, 5]]
    assert len(SequenceWriter(tmp_path / "x", np.uint16).ragged()) == 0, "a new file is empty"


def test_writer_in_an_unwritable_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*file/x: .*; free space or choose another"):
        SequenceWriter(tmp_path / "file" / "x", np.uint8)


def file_pages():
    """Return the bytes of mapped files in the memory of this process."""
    status = Path("/proc/self/status")
    if not status.exists() or "RssFile" not in status.read_text():
        pytest.skip("the kernel does not count mapped pages here")
    (line,) = (x for x in status.read_text().splitlines() if x.startswith("RssFile"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("large", [True, False])
def test_old_pages_of_a_large_file_are_released(tmp_path, monkeypatch, large):
    rows, width = 64, 1 << 20
    values = np.random.default_rng(0).integers(0, 256, rows * width, np.uint8)
    examples = Examples(
        tokens=Ragged(values, np.arange(rows + 1) * width), labels=np.zeros(rows, np.uint8)
    )
    store.write_examples(tmp_path / "a.arrow", examples)
    monkeypatch.setattr(store, "_SMALL", 0 if large else 1 << 40)
    monkeypatch.setattr(store, "_RELEASE_EVERY", 4)
    back, before, most = store.read_examples(tmp_path / "a.arrow"), file_pages(), 0
    for row in range(rows):
        back.check(np.array([row]))
        assert np.array_equal(back.tokens[row], examples.tokens[row])
        most = max(most, file_pages() - before)
    assert (most < 24 << 20) == large
    assert np.array_equal(back.tokens.values, values), "released pages are read again"


def test_pages_may_be_released_while_another_thread_reads(tmp_path, monkeypatch):
    store.write_examples(tmp_path / "a.arrow", make([[row] * 5000 for row in range(200)]))
    monkeypatch.setattr(store, "_SMALL", 0)
    monkeypatch.setattr(store, "_RELEASE_EVERY", 1)
    examples, wrong = store.read_examples(tmp_path / "a.arrow"), []

    def read():
        for row in range(200):
            try:
                examples.check(np.array([row]))
            except DataError as error:
                wrong.append(error)

    both = [threading.Thread(target=read) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert not wrong


@pytest.mark.slow
def test_more_than_2_to_the_31_tokens_are_supported(tmp_path):
    """The training split of Path-X needs this; the values are a sparse file of zeros."""
    rows, width = 2, (1 << 30) + 5
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(rows * width)
    values = np.memmap(tmp_path / "zeros", np.uint8, mode="r")
    examples = Examples(
        tokens=Ragged(values, np.arange(rows + 1) * width), labels=np.zeros(rows, np.uint8)
    )
    store.write_examples(tmp_path / "a.arrow", examples)
    back = store.read_examples(tmp_path / "a.arrow")
    assert back.tokens.lengths.tolist() == [width] * rows
    back.check(np.array([1]))
    (tmp_path / "a.arrow").unlink()


def test_values_are_counted_in_pieces():
    values = np.zeros(5 * store._PIECE + 7, np.uint8)
    values[:: store._PIECE] = 1
    ragged = Ragged(values, np.array([0, len(values)]))
    tracemalloc.start()
    try:
        assert ragged.count(1) == 6
        assert tracemalloc.get_traced_memory()[1] < 2 * store._PIECE
    finally:
        tracemalloc.stop()
