"""A split goes into its file and comes back mapped, or is refused."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.data import store
from longspan.data.store import Examples, Ragged
from longspan.errors import DataError


def make(sequences, dtype=np.uint8, labels=None, second=None):
    return Examples(
        tokens=Ragged.pack([np.array(one, dtype) for one in sequences], dtype),
        labels=np.array(labels or range(len(sequences)), np.uint8),
        second=second and Ragged.pack([np.array(one, dtype) for one in second], dtype),
    )


def contents(examples):
    parts = [[one.tolist() for one in part] for part in examples.lists.values()]
    return parts, examples.labels.tolist()


SEQUENCES = st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=9)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sequences=SEQUENCES, dtype=st.sampled_from([np.uint8, np.uint16]), pair=st.booleans())
def test_what_is_written_is_read(tmp_path, sequences, dtype, pair):
    examples = make(sequences, dtype, second=sequences[::-1] if pair else None)
    store.write(tmp_path / "a.arrow", examples)
    back = store.read(tmp_path / "a.arrow")
    assert contents(back) == contents(examples)
    assert back.tokens.values.dtype == dtype
    assert back.checksum() == examples.checksum()


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
    store.write(tmp_path / "a.arrow", make([[1] * 1_000_000, [2]]))
    before = pa.total_allocated_bytes()
    back = store.read(tmp_path / "a.arrow")
    assert back.tokens.values.sum() == 1_000_002
    assert pa.total_allocated_bytes() - before < 10_000
    assert not back.tokens.values.flags.owndata
    assert not back.tokens.offsets.flags.owndata


@pytest.mark.parametrize("change", ["token", "label", "border", "second"])
def test_checksum_sees_every_part(change):
    plain = make([[1, 2], [3]])
    other = {
        "token": make([[1, 2], [4]]),
        "label": make([[1, 2], [3]], labels=[0, 2]),
        "border": make([[1], [2, 3]]),
        "second": make([[1, 2], [3]], second=[[1], [1]]),
    }[change]
    assert plain.checksum() != other.checksum()


def test_checksum_is_of_the_content_not_of_its_type():
    assert make([[1, 2], [3]]).checksum() == make([[1, 2], [3]], np.uint16).checksum()


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        (make([]), "no examples to write"),
        (make([[1], []]), "the shortest of 0 tokens"),
        (make([[1], [2]], labels=[1]), "1 labels and 2 sequences"),
        (make([[1], [2]], second=[[1]]), "2 labels and 1 sequences"),
    ],
)
def test_inconsistent_examples_are_not_written(tmp_path, examples, reason):
    with pytest.raises(DataError, match=reason):
        store.write(tmp_path / "a.arrow", examples)
    assert list(tmp_path.iterdir()) == []


def test_truncated_file_is_refused(tmp_path):
    path = tmp_path / "a.arrow"
    store.write(path, make([[1, 2, 3]] * 50))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"a\.arrow is not a readable Arrow file"):
        store.read(path)


def test_absent_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.arrow is not a readable Arrow file"):
        store.read(tmp_path / "a.arrow")


def test_foreign_arrow_file_is_refused(tmp_path):
    path = tmp_path / "a.arrow"
    batch = pa.record_batch({"x": pa.array([1])})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(DataError, match=r"is not a longspan split \(columns \['x'\]\)"):
        store.read(path)


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    """A limit on file size stands for a full disk: the write itself fails, in the middle."""
    script = f"""
import resource, pathlib
import numpy as np
from longspan.data import store
from longspan.errors import RunError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
examples = store.Examples(
    tokens=store.Ragged(np.ones(100_000, np.uint8), np.array([0, 100_000])),
    labels=np.zeros(1, np.uint8),
)
try:
    store.write(pathlib.Path({str(tmp_path)!r}) / "a.arrow", examples)
except RunError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "cannot write" in run.stdout
    assert "free space or choose another folder" in run.stdout
    assert len(run.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
