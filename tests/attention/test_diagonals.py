"""One diagonal of a window at a time: the same rows as blocks and the dense reference."""

import pytest
import torch
from contract import (
    assert_equal_results,
    build_small,
    full_and_causal,
    key_masks,
    qkv,
    reference_copy,
)

from longspan.attention import MECHANISMS, backends
from longspan.errors import InputError

NAMES = [name for name in MECHANISMS if "diagonals" in backends(name)]


def test_windows_have_diagonals():
    assert set(NAMES) == {"dilated", "local"}


@pytest.mark.parametrize("name", NAMES)
@full_and_causal
def test_diagonals_equal_blocks_and_the_reference(name, causal):
    one = build_small(name, causal, "diagonals")
    for T in (1, 2, 7, 33):
        for kind, mask in key_masks(T).items():
            for other in (build_small(name, causal), reference_copy(one)):
                assert_equal_results(one, other, qkv(T), f"T={T}, {kind}", mask=mask)
            assert one.backend_used == "diagonals"


def test_what_diagonals_do_not_compute_is_refused():
    attention, inputs = build_small("local", backend="diagonals"), qkv(9)
    mask = torch.zeros(len(inputs[0]), 9, dtype=torch.bool)
    with pytest.raises(InputError, match=r"'diagonals' does not support.*: global tokens"):
        attention(*inputs, global_mask=mask)
    bias = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    with pytest.raises(InputError, match="a bias, or dropout"):
        attention(*inputs, bias=bias)
    heads = build_small("dilated", backend="diagonals", dilation=[1, 2, 3])
    with pytest.raises(InputError, match="the windows of the heads differ"):
        heads(*inputs)
