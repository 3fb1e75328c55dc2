"""Time and memory of one attention layer in bfloat16, for every mechanism, against `full`.

Layers in float32 are measured by `longspan bench`, of which all pages read one record.

    python benchmarks/layer.py --out benchmarks/results/layer-cpu.json

A layer maps (B, T, 512) to (B, T, 512): the input projections that the mechanism uses, 8 heads of
64, the mechanism with its default options, the output projection; forward and backward. B x T is
4096 tokens (16384 at T = 16384). Runs of all mechanisms of one length and dtype are interleaved in
one process. The FLOP floor is the time that the layer's FLOPs (backward counts twice) take at the
rate of a large matrix product measured in the same process. Ratios are against `full` in the same
process. A mechanism is skipped at a length at which its memory, extrapolated from the previous
length, exceeds half of the machine's. Peak memory on a CPU is measured in another process, which
keeps no freed memory.
"""

import argparse
import dataclasses
import functools
import itertools
import os
from pathlib import Path

import torch
from timing import environment, matmul_rate, write_record

from longspan.attention import MECHANISMS
from longspan.bench.peaks import PeakMeter
from longspan.bench.timing import time_interleaved
from longspan.memory import keep_freed_memory
from longspan.models import LongspanConfig
from longspan.models.attention_layer import SelfAttention

WIDTH, HEADS, TOKENS = 512, 8, 4096
POWER = {"T": 1, "T^1.5": 1.5, "T^2": 2}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_layer(name: str, length: int, dtype: torch.dtype, device: torch.device) -> SelfAttention:
    config = LongspanConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=WIDTH,
        max_position_embeddings=length,
        attention_dropout=0.0,
        attention=name,
    )
    return SelfAttention(config, 0).to(device=device, dtype=dtype)


def fits_memory(name: str, length: int, rows: list[dict]) -> bool:
    """Return whether the peak memory, scaled from the previous length, is available."""
    previous = [x for x in rows if x["mechanism"] == name and x["peak_memory"]]
    if not previous:
        return True
    last, power = previous[-1], POWER[MECHANISMS[name].traits.cost]
    expected = last["peak_memory"] * (length / last["length"]) ** power
    return expected < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def make_pass(module: SelfAttention, length: int, dtype: torch.dtype, device: torch.device):
    """Return the callable of a pass of a layer with random inputs."""
    shape = max(1, TOKENS // length), length, WIDTH
    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)

    def call() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        module(x).states.backward(grad)

    return call


def make_call(name: str, length: int, dtype: torch.dtype, device: torch.device):
    """Return the callable of a pass of a new layer."""
    return make_pass(build_layer(name, length, dtype, device), length, dtype, device)


def measure(
    length: int,
    dtype: str,
    names: list[str],
    runs: int,
    device: torch.device,
    peaks: PeakMeter,
) -> list[dict]:
    """Measure mechanisms at one length and dtype."""
    batch_size, torch_dtype = max(1, TOKENS // length), DTYPES[dtype]
    case = length, torch_dtype, device
    measured = {x: peaks.measure(functools.partial(make_call, x, *case)) for x in names}
    modules = {name: build_layer(name, *case) for name in names}
    rate = matmul_rate(torch_dtype, device)
    calls = {name: make_pass(module, *case) for name, module in modules.items()}
    timings = time_interleaved(calls, measured, runs=runs, device=device)
    rows = []
    for name, timing in timings.items():
        mechanism = modules[name].mechanism
        attention_flops = HEADS * mechanism.flops(length, WIDTH // HEADS)
        projections = len(mechanism.traits.inputs) + 1
        flops = 3 * batch_size * (2 * projections * length * WIDTH**2 + attention_flops)
        row = {
            "length": length,
            "batch": batch_size,
            "dtype": dtype,
            "mechanism": name,
            "backend": mechanism.backend_used,
            **dataclasses.asdict(timing),
            "flops": flops,
            "gemm_flops_per_second": rate,
            "floor_seconds": flops / rate,
            "times_floor": timing.median * rate / flops,
            "full_over_this": timings["full"].median / timing.median,
        }
        rows.append(row)
        print(
            f"{dtype:9} T={length:<6} {name:18} {1e3 * timing.median:8.0f} ms  "
            f"{row['full_over_this']:6.2f} x full  floor {1e3 * row['floor_seconds']:6.0f} ms",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=list(DTYPES))
    parser.add_argument("--mechanisms", nargs="+", default=sorted(MECHANISMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    names = sorted({"full", *args.mechanisms}, key=lambda name: (name != "full", name))
    rows = []
    with PeakMeter(device) as peaks:
        for dtype, length in itertools.product(args.dtypes, args.lengths):
            runs = args.runs if length < 16384 else max(3, args.runs // 2)
            previous = [x for x in rows if x["dtype"] == dtype]
            chosen = [name for name in names if fits_memory(name, length, previous)]
            rows += measure(length, dtype, chosen, runs, device, peaks)
    record = {"environment": environment(device), "width": WIDTH, "heads": HEADS, "rows": rows}
    write_record(record, args.out)


if __name__ == "__main__":
    main()
