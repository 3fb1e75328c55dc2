"""One diagonal of a window at a time: the same rows as blocks and the dense reference."""

import pytest
import torch
from contract import assert_near, build_small, gradients, key_masks, qkv, reference_copy

from longspan.attention import MECHANISMS, backends
from longspan.errors import InputError

NAMES = [name for name in MECHANISMS if "diagonals" in backends(name)]


def test_windows_have_diagonals():
    assert set(NAMES) == {"dilated", "local"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_diagonals_equal_blocks_and_the_reference(name, causal):
    one = build_small(name, causal, "diagonals")
    for T in (1, 2, 7, 33):
        for kind, mask in key_masks(T).items():
            results = []
            for module in (one, build_small(name, causal), reference_copy(one)):
                inputs = [x.requires_grad_() for x in qkv(T)]
                out = module(*inputs, mask)
                results.append((out, *gradients(out, inputs, module)))
            assert one.backend_used == "diagonals"
            for other in results[1:]:
                for a, b in zip(results[0], other, strict=True):
                    assert_near(a, b, f"T={T}, {kind}")


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
