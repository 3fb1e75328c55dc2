"""The variable-length kernel of torch: its arguments, by a dense stand-in, and its refusals.

The kernel runs on CUDA only. `test_cuda_kernels.py` runs it on a GPU.
"""

import inspect
import itertools

import pytest
import torch
from contract import (
    HEADS,
    assert_equals_reference,
    assert_near,
    build_small,
    full_and_causal,
    qkv,
    reference_copy,
)

from longspan.attention import MECHANISMS, backends
from longspan.attention.kernels import varlen
from longspan.errors import InputError

NAMES = ("full", "local")
OPTIONS = {"full": {}, "local": {"window": 3}}
every_name = pytest.mark.parametrize("name", NAMES)


def dense_varlen(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
):
    """Compute what torch documents for `varlen_attn`, document by document."""
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert cu_seq_q.tolist() == cu_seq_k.tolist()
    bounds, rows = cu_seq_q.tolist(), []
    assert bounds[0] == 0
    assert bounds[-1] == len(query) == len(key) == len(value)
    if key.shape[1] != query.shape[1]:
        assert enable_gqa
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    for start, end in itertools.pairwise(bounds):
        assert end - start <= min(max_q, max_k)
        t = torch.arange(end - start)
        offset = t - t[:, None]
        allowed = torch.ones_like(offset, dtype=torch.bool)
        if window_size[0] >= 0:
            allowed &= offset >= -window_size[0]
        if window_size[1] >= 0:
            allowed &= offset <= window_size[1]
        scores = torch.einsum("qhd,khd->hqk", query[start:end], key[start:end]) * scale
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        rows.append(torch.einsum("hqk,khe->qhe", weights, value[start:end]))
    return torch.cat(rows)


def older_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size):
    """Compute what torch 2.11 does: without fewer heads of keys."""
    assert key.shape[1] == query.shape[1]
    bounds = (cu_seq_q, cu_seq_k, max_q, max_k)
    return dense_varlen(query, key, value, *bounds, scale=scale, window_size=window_size)


@pytest.fixture(params=[dense_varlen, older_varlen], ids=["torch 2.13", "torch 2.11"])
def stand_in(request, monkeypatch):
    """Let the stand-in compute in float64 on the CPU."""
    monkeypatch.setattr(varlen, "device_refusals", lambda *_: [])
    monkeypatch.setattr(varlen, "DTYPES", (torch.float64,))
    monkeypatch.setattr(varlen, "load_varlen_attn", lambda: request.param)


def build_varlen(name, causal=False, **options):
    return build_small(name, causal, "varlen", **OPTIONS[name], **options)


def test_mechanisms_with_the_kernel():
    assert {name for name in MECHANISMS if "varlen" in backends(name)} == set(NAMES)


def test_stand_in_takes_the_arguments_of_torch():
    found = inspect.signature(varlen.load_varlen_attn()).parameters
    for name, own in inspect.signature(dense_varlen).parameters.items():
        if name != "enable_gqa" or name in found:  # torch 2.12
            assert found[name].kind == own.kind


@every_name
@full_and_causal
@pytest.mark.parametrize("T", [1, 2, 3, 40])
@pytest.mark.usefixtures("stand_in")
def test_batches_equal_the_reference(name, causal, T):
    attention = build_varlen(name, causal)
    assert_equals_reference(attention, qkv(T), f"T={T}")
    assert attention.backend_used == "varlen"


@every_name
@full_and_causal
@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.usefixtures("stand_in")
def test_packed_documents_and_grouped_heads_equal_documents_one_by_one(name, causal, groups):
    attention, lengths = build_varlen(name, causal), (7, 1, 12)
    exact = reference_copy(attention)
    q, k, v = (x[0].transpose(0, 1) for x in qkv(sum(lengths), B=1))
    k, v = k[:, :groups], v[:, :groups]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    out = attention.packed(q, k, v, bounds)
    assert attention.backend_used == "varlen"
    for start, end in itertools.pairwise(bounds.tolist()):
        document = [x[start:end].transpose(0, 1)[None] for x in (q, k, v)]
        assert_near(out[start:end], exact(*document)[0].transpose(0, 1), "document")


@pytest.mark.usefixtures("stand_in")
def test_inputs_without_a_kernel_are_refused():
    local, inputs = build_varlen("local"), qkv(9)
    mask = torch.ones(len(inputs[0]), 9, dtype=torch.bool)
    with pytest.raises(InputError, match=r"a key mask; use packed\(\)"):
        local(*inputs, key_mask=mask)
    with pytest.raises(InputError, match="global tokens are no window"):
        local(*inputs, global_mask=mask)
    with pytest.raises(InputError, match=r"dtype must be .*, got torch\.float32"):
        local.float()(*(x.float() for x in inputs))
    with pytest.raises(InputError, match=r"a multiple of 8 up to 256, is required, got 6 and 6"):
        build_small("local", backend="varlen", head_dim=6)(*qkv(9, D=6))
    dropped = build_varlen("local", weight_dropout=0.5)
    with pytest.raises(InputError, match="dropout of weights"):
        dropped(*inputs)
    with pytest.raises(InputError, match=r"torch\.func transforms"):
        torch.func.vmap(build_varlen("local"))(*(x[None] for x in inputs))


def test_devices_without_a_kernel_are_refused():
    with pytest.raises(InputError, match="device must be cuda, got cpu"):
        build_varlen("local")(*qkv(9))
