"""Checks of kernels from torch's libraries, on a GPU and with stand-ins on the CPU."""

import copy
import os
import subprocess
import sys

import torch
from contract import (
    HERE,
    SOURCE,
    assert_near,
    build_small,
    gradients,
    key_masks,
    qkv,
    reference_copy,
)

D = 16  # the smallest head dimension of FlexAttention

# Mechanisms with options whose structure shows within two tiles of 128 tokens.
FLEX_CASES = [
    ("local", {"window": 300}),
    ("local", {"window": 9}),
    ("dilated", {"window": 7, "dilation": [1, 3, 2]}),
    ("longformer", {"window": 5, "first_global": 2, "dilation": [1, 2, 3]}),
    ("blockwise", {"block": 24}),
    ("disjoint", {"block": 40}),
    ("sparse_transformer", {"stride": 11}),
    ("sparse_transformer", {"kind": "fixed", "stride": 12, "summary": 2}),
    ("sparse_transformer", {"kind": "fixed", "stride": 16, "head_patterns": "separate"}),
    ("bigbird", {"block": 128, "num_random_blocks": 1}),
    ("bigbird", {"block": 12, "num_random_blocks": 1}),
    ("bigbird", {"form": "etc", "block": 16, "global_tokens": 5, "num_random_blocks": 2}),
    ("bigbird", {"block": 32, "num_random_blocks": 2, "sampling": "original"}),
]


def flex_cases():
    """Return the cases, not causal and, where a form exists, causal."""
    only_full = {"form", "sampling"}
    return [
        (name, options, causal)
        for name, options in FLEX_CASES
        for causal in ((False,) if only_full & set(options) else (False, True))
    ]


def masks_of(T, B=3):
    """Return pairs of key mask and global mask; in the last, row 0 has a hole, the last no key."""
    ragged = key_masks(T, B)["ragged"]
    empty = ragged.clone()
    empty[-1] = False
    empty[0, min(2, T - 1)] = False
    place = torch.arange(T)
    chosen = ((place % 61 == 5) | (place == T - 1)) & (torch.arange(B) < B - 1)[:, None]
    return [(None, None), (ragged, None), (None, chosen), (empty, chosen)]


def check_rows_and_gradients(attention, T, device="cpu", dtype=torch.float64, atol=1e-10, B=3):
    """Check output and gradients of a kernel against the float64 reference on the CPU."""
    exact = reference_copy(attention).double()
    attention = copy.deepcopy(attention).to(device, dtype)
    for key_mask, global_mask in masks_of(T, B):
        rounded = [x.to(dtype).double() for x in qkv(T, B=B, D=D)]
        results = []
        for module, place, kind in ((attention, device, dtype), (exact, "cpu", torch.float64)):
            inputs = [x.to(place, kind).requires_grad_() for x in rounded]
            masks = [None if x is None else x.to(place) for x in (key_mask, global_mask)]
            out = module(*inputs, key_mask=masks[0], global_mask=masks[1])
            found = (out, *gradients(out.cpu(), inputs, module))
            results.append([x.cpu().double() for x in found])
        assert attention.backend_used == attention.backend
        given = f"T={T}, key mask {key_mask is not None}, globals {global_mask is not None}"
        for name, a, b in zip(("output", "q", "k", "v"), *results, strict=False):
            assert a.isfinite().all(), f"{given}: {name}"
            assert_near(a, b, f"{given}: {name}", atol)
        if key_mask is not None and not key_mask[-1].any():
            assert not any(x[-1].any() for x in results[0][:4]), "a row without keys is zero"


def build_flex(name, causal=False, max_length=700, **options):
    return build_small(name, causal, "flex", max_length=max_length, head_dim=D, **options)


def run_file(*arguments, **environment):
    """Run a Python command on the tested source; return what it printed."""
    paths = os.pathsep.join([str(SOURCE), str(HERE)])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def run_tests(file, *options, **environment):
    """Run the tests of a file in a process of their own, without what type checks import."""
    plain = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=")
    plain += (f"--confcutdir={HERE}",)
    return run_file("-m", "pytest", *plain, file, *options, **environment)
