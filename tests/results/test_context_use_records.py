"""Records of the use of the context: stored apart from the records of runs."""

import dataclasses

import pytest
from record_examples import IDENTITY, RESULT

from longspan.errors import DataError
from longspan.files import read_json, write_json
from longspan.results import (
    ContextLoss,
    ContextUse,
    PositionLoss,
    effective_context,
    load_results,
    load_side_record,
    load_side_records,
)
from longspan.validation import validate_records


def losses(*values):
    return [
        ContextLoss(context=32 * 2**i, loss=x, difference=x - values[-1], low=-0.1, high=0.1)
        for i, x in enumerate(values)
    ]


FOUND = ContextUse(
    **{name: IDENTITY[name] for name in ("protocol", "config_hash", "seed", "device", "versions")},
    date=IDENTITY["date"],
    task="listops",
    mechanism="local",
    split="validation",
    segment=64,
    positions=[
        PositionLoss(first=0, last=0, targets=3, fresh=2.0, kept=1.5),
        PositionLoss(first=1, last=3, targets=7, fresh=1.8, kept=1.4),
    ],
    blocks=16,
    available=80,
    contexts=losses(2.0, 1.5, 1.26, 1.25),
    tolerance=0.01,
    effective=128,
    parts=[{"memory": 0.25, "segment": 0.75}, {}],
    buckets=[{"memory": [0.0, 0.25], "segment": [0.5, 0.25]}, {}],
    part_windows=5,
)


def test_record_is_read_as_written_and_is_no_result(tmp_path):
    record = RESULT.save(tmp_path)
    path = FOUND.save(record.parent)
    assert path == record.parent / "context" / record.name
    assert load_side_record(ContextUse, path) == FOUND
    assert load_side_records(ContextUse, [tmp_path]) == [FOUND]
    assert load_results([tmp_path]) == [RESULT]
    named = dataclasses.replace(FOUND, reference="full-short")
    assert named.filename == FOUND.filename.replace("local-", "full-short-", 1)


def test_effective_context_is_the_smallest_within_the_tolerance():
    assert effective_context(losses(2.0, 1.5, 1.26, 1.25), 0.01) == 128
    assert effective_context(losses(2.0, 1.5, 1.26, 1.25), 0.001) == 256
    assert effective_context(losses(2.0, 1.5, 1.26, 1.25), 0.3) == 64
    # More context may harm a model.
    assert effective_context(losses(1.0, 1.5, 1.25), 0.0) == 32
    assert effective_context(losses(1.25), 0.0) == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "is not a record of the use of the context of schema 2, got 3; measure"),
        ({"buckets": [{"memory": [0.25]}, {}]}, "buckets must have the layers and parts of the"),
        (
            {"buckets": [{"memory": [0.125, 0.0], "segment": [0.75]}, {}]},
            "buckets of memory in layer 1 do not sum to its share",
        ),
        ({"split": 3}, "split should be a valid string"),
        ({"effective": 64}, "the effective context must be 128, got 64; measure again"),
        ({"positions": []}, "positions do not follow each other"),
        ({"contexts": []}, r"contexts must ascend, got \[\]"),
        ({"parts": [{"memory": 0.5, "segment": 0.7}]}, r"layer 1 must sum to 1, got 1\.2000"),
    ],
)
def test_damaged_record_is_rejected_and_found(tmp_path, change, message):
    record = RESULT.save(tmp_path)
    path = FOUND.save(record.parent)
    intact = {x.file for x in validate_records([tmp_path]).findings}
    assert str(path) not in intact
    write_json(path, {**read_json(path), **change})
    with pytest.raises(DataError, match=message):
        load_side_records(ContextUse, [tmp_path])
    (finding,) = (x for x in validate_records([tmp_path]).findings if x.file == str(path))
    assert finding.severity == "error"
    assert "expected a side record of the folder context" in str(finding)


@pytest.mark.parametrize(
    ("part", "place", "field", "value", "message"),
    [
        ("positions", 1, "first", 2, "positions do not follow each other"),
        ("positions", 1, "last", 0, "positions do not follow each other"),
        ("positions", 1, "kept", None, "losses with state are missing at some positions"),
        ("contexts", 1, "context", 16, r"contexts must ascend, got \[32, 16, 128, 256\]"),
        ("contexts", 1, "difference", 0.3, "the difference at 64 tokens is not that of the losses"),
    ],
)
def test_contradictions_within_a_record_are_found(tmp_path, part, place, field, value, message):
    path = FOUND.save(tmp_path)
    content = read_json(path)
    content[part][place][field] = value
    write_json(path, content)
    with pytest.raises(DataError, match=message):
        load_side_record(ContextUse, path)
