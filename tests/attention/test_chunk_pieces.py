"""Chunks of sorted tokens, piece by piece: derivatives, and what is saved."""

import pytest
import torch
from contract import assert_near, both_derivatives, qkv, run_and_count_saved
from test_fused import names_of_graph

from longspan import build
from longspan.attention.ops import chunk_pieces

T = 200
REFORMER = {"heads": 3, "head_dim": 8, "max_length": T, "chunk": 32}
CASES = {
    "rounds": {},
    "one round": {"hashes": 1},
    "causal": {"causal": True},
    "deduplicated": {"dedupe": True},
    "same bucket": {"same_bucket": True, "buckets": 4},
    "wrapped": {"wrap": True},
    "grid": {"grid": 64},
    "causal grid": {"grid": 64, "causal": True},
}


@pytest.fixture(params=[1, 500, 1 << 14], ids=["chunks", "some", "whole"])
def piece(request, monkeypatch):
    """Set the size of pieces: one chunk of all rounds and heads, some, or all."""
    monkeypatch.setattr(chunk_pieces, "PIECE", request.param)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


MASKS = {
    "all": {},
    "padded": {"key_mask": torch.ones(2, T).bool()},
    "global": {"global_mask": torch.zeros(2, T).bool()},
}
MASKS["padded"]["key_mask"][0, 20:40] = MASKS["padded"]["key_mask"][1, 90:] = False
MASKS["global"]["global_mask"][0, [3, 150]] = MASKS["global"]["global_mask"][1, 70] = True


def derivatives(case, masks, backend):
    """Return rows, gradients and second derivatives."""
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    attention = build("reformer", backend=backend, **REFORMER, **CASES[case]).double()
    out = attention(*inputs, **MASKS[masks])
    if backend == "torch":
        assert "_PieceSoftmax" in names_of_graph(out.grad_fn)
    return out, *both_derivatives(out, inputs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("masks", MASKS)
def test_all_derivatives_equal_the_reference(piece, case, masks):
    pairs = zip(*(derivatives(case, masks, x) for x in ("torch", "reference")), strict=True)
    for x, y in pairs:
        assert_near(x, y, "derivative", 1e-7)


def test_gathered_chunks_are_not_saved():
    inputs = [x.requires_grad_() for x in qkv(T, B=2)]
    _, saved = run_and_count_saved(build("reformer", backend="torch", **REFORMER).double(), *inputs)
    # Queries, keys, values and their scales; rows of two rounds, padded and merged. Two rounds of
    # queries, and keys and values twice in each, would be ten more.
    assert saved < 14 * inputs[0].nbytes
