"""Mechanisms of a file outside the package: contract, and the messages to their author."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    SOURCE,
    assert_steps_near,
    build_small,
    check_contract,
    full_and_causal,
    import_mechanisms,
    qkv,
    reference_copy,
)
from test_contract_traits import check_row_sums

from longspan.attention import MECHANISMS, Inputs
from longspan.attention.ops.pattern_base import PatternAttention

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "unpublished.py"
NAMES = ("example_off_by_one", "gated_window")


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Register the mechanisms of the files for this module only."""
    before = dict(MECHANISMS)
    yield [import_mechanisms(str(x)) for x in (FILE, ROOT / "tests" / "gated_window.py")]
    MECHANISMS.clear()
    MECHANISMS.update(before)


def test_file_registers_its_mechanisms(plugin):
    assert plugin == [{name} for name in NAMES]


@full_and_causal
@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_not_normalized_obey_the_contract(name, causal):
    attention = build_small(name, causal)
    assert attention.traits.paper is None
    check_contract(attention, lengths=(1, 9, 33))
    check_row_sums(attention)


def test_bias_without_global_tokens_is_no_global_mask():
    attention, bias = build_small("gated_window"), torch.randn(1, 1, 9, 9).double()
    attention.traits = dataclasses.replace(attention.traits, global_tokens=False)
    out = attention(*qkv(9), bias=bias)
    torch.testing.assert_close(out, reference_copy(attention)(*qkv(9), bias=bias))
    assert not torch.allclose(out, attention(*qkv(9)))


def test_off_by_one_softmax_equals_its_formula():
    q, k, v = qkv(20)
    scores = q @ k.mT / HEAD_DIM**0.5
    near = (torch.arange(20) - torch.arange(20)[:, None]).abs() <= 5
    weights = scores.exp() * near
    expected = weights @ v / (1 + weights.sum(-1, keepdim=True))
    torch.testing.assert_close(build_small("example_off_by_one")(q, k, v), expected)


@pytest.mark.parametrize(
    ("name", "claim", "remedy"),
    [
        ("gated_window", "one", "at most one"),
        ("gated_window", "any", "at most one"),
        ("local", "at most one", "one"),
        ("local", "any", "one"),
        ("nystrom", "one", "any"),
        ("nystrom", "at most one", "any"),
    ],
)
def test_wrong_claim_of_row_sums_is_found_and_named(name, claim, remedy):
    attention = build_small(name)
    attention.traits = dataclasses.replace(attention.traits, row_sums=claim)
    with pytest.raises(AssertionError, match=rf"declare Traits\(row_sums='{remedy}'\)"):
        check_row_sums(attention)


@pytest.mark.parametrize(
    ("advance", "kind", "message"),
    [
        (None, "none", "(no mask): override `advance`"),
        (PatternAttention.advance, "holes", "(holes mask): correct `advance`"),
    ],
)
def test_steps_without_the_gate_name_the_remedy(advance, kind, message):
    gated = MECHANISMS["gated_window"]
    own = {} if advance is None else {"advance": advance}
    ungated = type("Ungated", (gated,), own)(heads=HEADS, head_dim=HEAD_DIM, causal=True)
    inputs = qkv(9)
    expected = ungated.double()(*inputs)
    out, _ = PatternAttention.advance(ungated, Inputs(*inputs))
    with pytest.raises(AssertionError, match=re.escape(f"step() differs from forward() {message}")):
        assert_steps_near(ungated, out, expected, kind)


def run_contract(mechanism):
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", str(Path(__file__).parent)]
    return subprocess.run(
        [*command, "--mechanism", mechanism],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_command_runs_the_contract_of_a_file():
    finished = run_contract(str(FILE))
    assert finished.returncode == 0, finished.stdout[-3000:]
    # Only the mechanisms of the file are tested.
    refused = run_contract("locl")
    assert "no mechanism 'locl'; there are: bigbird" in refused.stdout + refused.stderr
