"""Description of the processor that a test run computes on: results depend on it in the last digit.

.venv/bin/python tests/processor.py
"""

import os
import sys

import torch

from longspan.bench.machine import machine_name


def describe() -> str:
    """Return name, vector instructions that torch uses, cores, threads and torch's version."""
    name, vectors = machine_name(torch.device("cpu")), torch.backends.cpu.get_cpu_capability()
    return (
        f"processor {name}, vectors {vectors}, cores {os.cpu_count()}, "
        f"threads {torch.get_num_threads()}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    sys.stdout.write(f"{describe()}\n")
