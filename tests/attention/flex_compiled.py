"""FlexAttention compiled by torch; test_flex.py runs this file in a process of its own."""

import pytest
import torch
from contract import assert_near, qkv, reference_copy
from kernel_checks import FLEX_CASES, D, build_flex, masks_of
from torch._dynamo.testing import CompileCounterWithBackend

from longspan.attention.kernels.flex import calls as flex
from longspan.errors import InputError


def test_lengths_of_a_bucket_and_other_masks_are_one_compilation(on_cpu, monkeypatch):
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(flex, "COMPILER", counter)
    attention, other = build_flex("local"), build_flex("local")
    with torch.no_grad():
        for T in (130, 200, 256, 140):
            for module in (attention, other):
                module(*qkv(T, D=D))
        assert counter.frame_count == 1
        for T in (130, 200):
            for seed in range(2):
                key_mask = torch.rand(3, T, generator=torch.Generator().manual_seed(seed)) < 0.7
                out = attention(*qkv(T, D=D), key_mask=key_mask)
                assert_near(out, reference_copy(attention)(*qkv(T, D=D), key_mask=key_mask), f"{T}")
        assert counter.frame_count == 2
        bigbird = build_flex("bigbird", block=8, num_random_blocks=1)
        for T in (130, 200):
            bigbird(*qkv(T, D=D), key_mask=torch.arange(T) < torch.tensor([[9], [90], [T]]))
        assert counter.frame_count == 3


def test_more_compilations_than_the_limit_of_one_function(on_cpu, monkeypatch):
    """Every kernel counts on its own: torch would stop at the ninth pattern."""
    monkeypatch.setattr(flex, "COMPILER", CompileCounterWithBackend("eager"))
    with torch.no_grad():
        for window in range(1, 11):
            attention = build_flex("local", window=window)
            expected = reference_copy(attention)(*qkv(20, D=D))
            assert_near(attention(*qkv(20, D=D)), expected, f"window {window}")
    assert flex.COMPILER.frame_count == 10


def test_tiles_made_without_gradients_serve_training(on_cpu, monkeypatch):
    monkeypatch.setattr(flex, "COMPILER", "eager")
    attention, mask = build_flex("disjoint", block=16), masks_of(40)[1][0]
    for key_mask in (None, mask):
        with torch.inference_mode():
            attention(*qkv(40, D=D), key_mask=key_mask)
        with torch.inference_mode():
            attention(*qkv(40, D=D), key_mask=None if key_mask is None else key_mask.clone())
        inputs = [x.requires_grad_() for x in qkv(40, D=D)]
        attention(*inputs, key_mask=key_mask).sum().backward()
        assert inputs[0].grad.isfinite().all()


def test_traced_calls_are_refused():
    """The mask functions of a call are no part of another graph."""
    local, inputs = build_flex("local").float(), qkv(40, D=D, dtype=torch.float32)
    with torch.no_grad(), pytest.raises(InputError, match="the call is traced"):
        torch.compile(local, backend="eager")(*inputs)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", ["local", "longformer", "bigbird"])
def test_compiled_kernel_on_the_cpu(name):
    """The compiled kernel visits listed tiles only, unlike the formula of the other tests."""
    options = dict(FLEX_CASES)[name] if name != "bigbird" else {"block": 16}
    attention = build_flex(name, **options)
    exact, attention = reference_copy(attention), attention.float()
    for key_mask, global_mask in masks_of(600):
        inputs = qkv(600, D=D)
        out = attention(*(x.float() for x in inputs), key_mask=key_mask, global_mask=global_mask)
        expected = exact(*inputs, key_mask=key_mask, global_mask=global_mask)
        assert_near(out.double(), expected, name, 1e-5)
