"""Compile the kernels of the recurrences for a GPU that need not be there.

    python compile_recurrence.py CAPABILITY DELTA CHANNELS KEYS VALUES DTYPE

Prints the shared memory of each, as compile_kernels.py.
"""

import sys

import torch
from compile_kernels import Compiled, Driver
from triton.runtime import driver

from longspan.attention.kernels.triton import launches, recurrence_launches

NAMES = ("solve_chunks", "scan_chunks", "read_chunks")
BACKWARD = ("query_gradients", "sum_gradients", "scan_gradients", "key_gradients")


def main() -> None:
    driver.set_active(Driver())
    delta, channels, keys, values = (int(x) for x in sys.argv[2:6])
    dtype = getattr(torch, sys.argv[6])
    for name in NAMES + BACKWARD:
        kernel = Compiled(getattr(recurrence_launches, name))
        setattr(recurrence_launches, name, kernel)
    recurrence_launches.chunk_length = lambda _: launches.CHUNK if int(sys.argv[1]) >= 90 else 32
    q, v = (torch.empty(1, 2, 4096, width, dtype=dtype) for width in (keys, values))
    decay, beta = (torch.empty(1, 2, 4096, width) for width in (keys if channels else 1, 1))
    arguments = q, q, v, decay, beta, bool(delta)
    recurrence_launches.mix_rows(*arguments)
    recurrence_launches.mix_rows_gradients(v, *arguments)


if __name__ == "__main__":
    main()
