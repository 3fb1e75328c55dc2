"""Benchmark of decoding: prefixes, turns with `full`, limits, and its table."""

import argparse
import json
import sys

import pytest
import torch

from longspan.attention.cache import MOST_UNUSED

CPU = torch.device("cpu")


def arguments(**changes):
    values = {"prefixes": [16, 40, 90], "tokens": 24, "chunk": 16, "layers": 1, "width": 64}
    values |= {"read_seconds": 60.0, "decode_seconds": 60.0}
    return argparse.Namespace(**values | changes)


def measure(decoding, names, args):
    full = decoding.read_prefixes("full", args, CPU)
    return [decoding.measure(name, full, args, CPU) for name in names]


def test_every_causal_mechanism_is_measured_by_default(import_script):
    decoding = import_script("decoding")
    assert {"full", "local", "linear", "reformer", "synthesizer"} <= set(decoding.CAUSAL)
    assert "linformer" not in decoding.CAUSAL


@torch.no_grad()
def test_state_of_a_prefix_is_that_of_one_call(import_script):
    decoding, args = import_script("decoding"), arguments()
    read = decoding.read_prefixes("local", args, CPU)
    assert list(read.outputs) == args.prefixes
    for prefix, output in read.outputs.items():
        whole = read.model(read._ids[:, :prefix], use_cache=False).logits[:, -1:]
        torch.testing.assert_close(output.logits, whole, rtol=0, atol=1e-5)
        assert output.past_key_values.get_seq_length() == prefix


def test_rows_have_the_times_and_states_of_each_prefix(import_script):
    rows = measure(import_script("decoding"), ["full", "linear"], arguments())
    full, linear = ({one["prefix"]: one for one in row["prefixes"]} for row in rows)
    assert list(full) == list(linear) == [16, 40, 90]
    for prefix, one in full.items():
        # Keys and values of the prefix, of ten tokens without time and of those with.
        kept = 2 * (prefix + 10 + 24) * 64 * 4
        assert kept <= one["state_bytes"] <= kept * (1 + 1 / MOST_UNUSED)
        assert "full_seconds_per_token" not in one
    assert len({one["state_bytes"] for one in linear.values()}) == 1
    for one in linear.values():
        assert one["tokens"] == 24
        assert min(one["seconds_per_token"], one["full_seconds_per_token"]) > 0
    assert [row["left_out"] for row in rows] == [{}, {}]


def test_prefixes_beyond_the_limits_have_a_reason(import_script, monkeypatch):
    decoding = import_script("decoding")
    (row,) = measure(decoding, ["full"], arguments(read_seconds=0.0))
    assert (row["prefixes"], row["growth"]) == ([], None)
    reason = "reading 16 tokens took more than 0 s"
    assert row["left_out"] == dict.fromkeys([16, 40, 90], reason)

    read = decoding.Prefixes._read_piece

    def refuse(self, end):
        if end > 40:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        read(self, end)

    monkeypatch.setattr(decoding.Prefixes, "_read_piece", refuse)
    (row,) = measure(decoding, ["full"], arguments(prefixes=[40, 90]))
    assert row["growth"] is None  # of one prefix
    (row,) = measure(decoding, ["full"], arguments())
    assert [one["prefix"] for one in row["prefixes"]] == [16, 40]
    reason = "reading more than 40 tokens needs more memory than there is"
    assert row["left_out"] == {90: reason}
    assert reason in decoding.describe(row)


def test_time_of_the_run_limits_every_mechanism(import_script, monkeypatch, tmp_path):
    decoding = import_script("decoding")
    args = arguments(total_seconds=100.0, mechanisms=["full", "local", "linear"])
    one = decoding.limited(args, 30.0)
    assert (one.read_seconds, one.decode_seconds) == pytest.approx((18.0, 4.0))
    assert decoding.limited(args, 1e6).read_seconds == args.read_seconds
    given = []
    monkeypatch.setattr(decoding, "read_prefixes", lambda name, args, device: args.read_seconds)
    monkeypatch.setattr(
        decoding, "measure", lambda name, full, args, device: given.append((full, args)) or {}
    )
    assert [len(rows) for rows in decoding.measure_all(args, CPU)] == [1, 2, 3]
    assert [full for full, _ in given] == [40.0] * 3
    # What a mechanism leaves is shared among those after it.
    limits = [one.read_seconds for _, one in given]
    assert limits == pytest.approx([0.6 * 100 / 3, 0.6 * 100 / 2, 60.0], rel=0.2)


def test_record_is_written_after_each_mechanism(import_script, monkeypatch, tmp_path):
    decoding, path = import_script("decoding"), tmp_path / "found.json"
    small = ["--prefixes", "8", "16", "--tokens", "3", "--layers", "1", "--width", "64"]
    monkeypatch.setattr(
        sys, "argv", ["decoding", *small, "--mechanisms", "linear", "local", "--out", str(path)]
    )
    whole = decoding.measure

    def fail(name, *others):
        if name == "local":
            raise KeyboardInterrupt
        return whole(name, *others)

    monkeypatch.setattr(decoding, "measure", fail)
    with pytest.raises(KeyboardInterrupt):
        decoding.main()
    record = json.loads(path.read_text())
    assert [row["mechanism"] for row in record["rows"]] == ["linear"]
    assert any(
        "after 16: ms" in line for line in import_script("mechanism_tables").decoding(record)
    )


def test_slow_tokens_are_fewer(import_script):
    decoding = import_script("decoding")
    rows = measure(decoding, ["full", "local"], arguments(decode_seconds=1e-9))
    assert {one["tokens"] for row in rows for one in row["prefixes"]} == {decoding.LEAST_TOKENS}


def test_table_compares_with_full_of_the_same_run(import_script):
    def one(prefix, seconds, size, **more):
        return {"prefix": prefix, "seconds_per_token": seconds, "state_bytes": size, **more}

    rows = [
        {"mechanism": "full", "growth": 9.0, "prefixes": [one(10, 0.1, 4e6), one(90, 1.0, 4e7)]},
        {
            "mechanism": "local",
            "growth": 0.0,
            "prefixes": [one(10, 0.1, 4e6), one(90, 0.1, 4e6, full_seconds_per_token=0.8)],
        },
        {
            "mechanism": "slow",
            "growth": None,
            "prefixes": [],
            "left_out": {"10": "reading 5 tokens took more than 1 s"},
        },
    ]
    record = {"layers": 1, "width": 64, "tokens": 24, "environment": {"device": "x"}, "rows": rows}
    lines = import_script("mechanism_tables").decoding(record)
    assert "| `full` | 100.00 | 3.8 | 1000.00 | 38.1 | +900.0 | 1.0 | 1.0 |" in lines
    assert "| `local` | 100.00 | 3.8 | 100.00 | 3.8 | +0.0 | 8.0 | 10.0 |" in lines
    assert "| `slow` | – | – | – | – | – | – | – |" in lines
    assert "`slow` after 10 tokens: reading 5 tokens took more than 1 s.\n" in lines
    # Where `full` was too slow for the longest prefix, the longest one that it has is compared.
    del rows[0]["prefixes"][1]
    lines = import_script("mechanism_tables").decoding(record)
    assert "| `local` | 100.00 | 3.8 | 100.00 | 3.8 | +0.0 | 1.0 | 1.0 |" in lines
    assert any("in the same run after 10 tokens" in line for line in lines)
