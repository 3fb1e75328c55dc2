"""The mechanism `convolution`: torch's depthwise convolution, gated, of any length."""

import pytest
import torch
import torch.nn.functional as F
from contract import (
    HEAD_DIM,
    HEADS,
    assert_equals_reference,
    assert_near,
    build_small,
    check_contract,
    full_and_causal,
    key_masks,
    qkv,
    run_steps,
    weights_of,
)

from flop_counter import flop_counter

both_kinds = pytest.mark.parametrize("kernels", ["channel", "head"])


@full_and_causal
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 9, 40, 100, 150])
def test_kernels_of_channels_are_a_gated_depthwise_convolution_of_torch(taps, causal):
    """Zoology's BaseConv multiplies a depthwise convolution by a linear map of the input."""
    attention = build_small("convolution", causal, taps=taps, kernels="channel")
    (q, k, v), T = qkv(70), 70
    ahead = 0 if causal else (taps - 1) // 2
    padded = F.pad(v.mT.flatten(1, 2), (taps - 1 - ahead, ahead))
    kernel = attention.kernels.flatten(0, 1)[:, None].flip(-1)
    convolved = F.conv1d(padded, kernel, groups=HEADS * HEAD_DIM)
    expected = q * convolved.unflatten(1, (HEADS, HEAD_DIM)).mT
    assert_near(attention(q, k, v), expected[:, :, :T], "output")


@full_and_causal
@both_kinds
@pytest.mark.parametrize("taps", [1, 4, 70, 400])
def test_kernels_of_any_length_equal_the_reference(kernels, taps, causal):
    attention = build_small("convolution", causal, taps=taps, kernels=kernels)
    check_contract(attention, lengths=(1, 9, 64))
    for mask in (None, key_masks(300, B=2)["holes"]):
        assert_equals_reference(attention, qkv(300, B=2), "300 tokens", mask=mask)


@full_and_causal
def test_weights_of_a_head_are_its_taps_times_its_gate(causal):
    attention, (q, k, _) = build_small("convolution", causal, taps=4), qkv(30)
    weights = weights_of(attention, q, k)
    gate = q.sum(-1) / HEAD_DIM**0.5
    for j in range(4):
        offset = j if causal else j - 1
        diagonal = weights.diagonal(-offset, -2, -1)
        rows = gate[:, :, max(offset, 0) : 30 + min(offset, 0)]
        assert_near(diagonal, rows * attention.kernels[:, :, j], f"{offset} tokens before")


@both_kinds
def test_state_is_the_last_values(kernels):
    attention, inputs = build_small("convolution", True, taps=6, kernels=kernels), qkv(50)
    out, cache = run_steps(attention, inputs, (1, 2, 30, 1, 16))
    assert_near(out, attention(*inputs), "output")
    assert torch.equal(cache.state["tail"], inputs[2][:, :, -5:])
    _, cache = run_steps(attention, inputs, (3,))
    assert cache.state["tail"].shape[2] == 3


def test_no_more_than_the_sequence_is_computed():
    counts = []
    for taps in (100, 400):
        with flop_counter() as counter:
            build_small("convolution", taps=taps)(*qkv(40, B=1))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
