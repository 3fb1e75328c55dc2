"""Device, versions and limits of a machine, for the records of a day on it.

PYTHONPATH=src python benchmarks/gpu_environment.py --out environment.json
"""

import argparse
import dataclasses
import shutil
import subprocess
from pathlib import Path

import torch
from timing import environment, package_version, write_record

from longspan.bench import measure_limits

PACKAGES = (
    *("torch", "triton", "numpy", "transformers", "accelerate", "pydantic", "typer", "pytest"),
    *("flash-attn", "flash-linear-attention", "xformers", "natten"),
)
# A CPU without instructions for the half types takes minutes for their products.
DTYPES = {"cuda": ("float32", "bfloat16", "float16"), "cpu": ("float32",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limits = {
        x: dataclasses.asdict(measure_limits(getattr(torch, x), device))
        for x in DTYPES[device.type]
    }
    record = {
        "environment": environment(device),
        "packages": {name: package_version(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "capability": torch.cuda.get_device_capability() if device.type == "cuda" else None,
        "memory": torch.cuda.mem_get_info()[1] if device.type == "cuda" else None,
        "driver": driver(),
        "limits": limits,
    }
    write_record(record, given.out)


def driver() -> str | None:
    """Return what the driver's own tool says of the devices; None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    found = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False)
    return found.stdout


if __name__ == "__main__":
    main()
