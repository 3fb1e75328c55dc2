"""Compile the kernels for a GPU that need not be there, and print their shared memory.

    python compile_kernels.py CAPABILITY CAUSAL FEATURES VALUES DTYPE

The interpreter runs Python, and accepts what Triton's compiler refuses. A stand-in for the driver
names the GPU; kernels are compiled instead of launched.
"""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from longspan.attention.kernels.triton import launches

NAMES = ("sum_segment", "scan_segments", "mix_segment", "query_gradients", "key_gradients")


class Driver:
    """Driver of a GPU of this compute capability."""

    def get_current_target(self):
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


class Compiled:
    """Kernel that compiles at every launch."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def compile_it(*inputs, **options):
            made = self.kernel.warmup(*inputs, grid=grid, **options)
            assert made.asm["cubin"]
            sys.stdout.write(f"{self.kernel.__name__} {made.metadata.shared}\n")

        return compile_it


def main() -> None:
    driver.set_active(Driver())
    causal, features, values = (int(x) for x in sys.argv[2:5])
    dtype, fused = getattr(torch, sys.argv[5]), features == values
    for name in NAMES:
        setattr(launches, name, Compiled(getattr(launches, name)))
    launches.PROGRAMS = 4  # two segments of a row, each a loop over many chunks
    launches.chunk_length = lambda _: launches.CHUNK if int(sys.argv[1]) >= 90 else 32
    q, v = torch.empty(1, 2, 4096, features), torch.empty(1, 2, 4096, values, dtype=dtype)
    q = q.to(dtype) if fused else q
    mask = torch.ones(1, 4096, dtype=torch.bool) if fused else None
    _, inverse = launches.mix_values(q, q, v, mask, fused, bool(causal), 1e-30)
    launches.mix_gradients(v, q, q, v, mask, inverse, fused, bool(causal))


if __name__ == "__main__":
    main()
