"""Equality to the last bit, which a test claims only under a stated contract.

A result of floating-point arithmetic depends on the processor, the number of threads, the shape of
a batch, the padding, and the address of a tensor: matrix products choose their code by all of them.
Results of two computations are therefore compared with the tolerance of their dtype
(`torch.testing.assert_close`). They are equal to the last bit only where the same code runs on the
same layout, or where nothing is computed.
"""

from typing import Literal

import torch

Contract = Literal["rerun", "resumption", "copy"]


def assert_bitwise_equal(actual, expected, contract: Contract):
    """Assert that tensors, or dictionaries of tensors, are equal to the last bit.

    Args:
        actual: found values.
        expected: values that the contract promises.
        contract: reason why the processor has no influence. "rerun": the same code on tensors of
            the same layout. "resumption": a run that was interrupted, and one that was not. "copy":
            values that were saved, loaded, drawn or kept, and entered no arithmetic.
    """
    torch.testing.assert_close(
        actual, expected, rtol=0, atol=0, msg=lambda text: f"{contract}: {text}"
    )
