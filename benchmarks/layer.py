"""One attention layer of every mechanism against `full`: seconds, memory, and the FLOP floor.

    python benchmarks/layer.py --out benchmarks/results/layer-cpu.json

A layer maps (B, T, 512) to (B, T, 512): the input projections that the mechanism reads, 8 heads of
64, the mechanism with its default options, the output projection; forward and backward. B x T is
4096 tokens (16384 at T = 16384). All mechanisms of a row group are timed in turns in one process,
on one allocator setting. The floor is the layer's FLOPs, forward and twice that backward, over the
rate of a large matrix product measured in the same run; ratios are against `full` of the same
group. A mechanism that would need half of the machine's memory at a length, judged by the length
before, is left out there.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import torch
from timing import compare, environment, gemm_rate

from longspan.attention import MECHANISMS
from longspan.memory import keep_freed_memory
from longspan.models import LongspanConfig
from longspan.models.layers import SelfAttention

WIDTH, HEADS, TOKENS = 512, 8, 4096
POWER = {"T": 1, "T^1.5": 1.5, "T^2": 2}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def layer(name: str, length: int, dtype: torch.dtype, device: torch.device) -> SelfAttention:
    config = LongspanConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=WIDTH,
        max_position_embeddings=length,
        attention_dropout=0.0,
        attention=name,
    )
    return SelfAttention(config, 0).to(device=device, dtype=dtype)


def fits(name: str, length: int, lines: list[dict]) -> bool:
    """Whether the memory of the last length, grown as the mechanism claims, is to be had."""
    before = [x for x in lines if x["mechanism"] == name and x["peak_memory"]]
    if not before:
        return True
    last, power = before[-1], POWER[MECHANISMS[name].traits.cost]
    grown = last["peak_memory"] * (length / last["length"]) ** power
    return grown < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def passes(module: SelfAttention, x: torch.Tensor, grad: torch.Tensor):
    def call() -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        module(x).backward(grad)

    return call


def group(length: int, dtype: str, names: list[str], runs: int, device: torch.device) -> list[dict]:
    rows, kind = max(1, TOKENS // length), DTYPES[dtype]
    x = torch.randn(rows, length, WIDTH, device=device, dtype=kind, requires_grad=True)
    grad = torch.randn_like(x)
    modules = {name: layer(name, length, kind, device) for name in names}
    rate = gemm_rate(kind, device)
    timings = compare(
        {name: passes(module, x, grad) for name, module in modules.items()},
        runs=runs,
        device=device,
    )
    lines = []
    for name, timing in timings.items():
        mechanism = modules[name].mechanism
        inside = HEADS * mechanism.flops(length, WIDTH // HEADS)
        projections = len(mechanism.traits.inputs) + 1
        flops = 3 * rows * (2 * projections * length * WIDTH**2 + inside)
        line = {
            "length": length,
            "batch": rows,
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
        lines.append(line)
        print(
            f"{dtype:9} T={length:<6} {name:18} {1e3 * timing.median:8.0f} ms  "
            f"{line['full_over_this']:6.2f} x full  floor {1e3 * line['floor_seconds']:6.0f} ms",
            flush=True,
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--mechanisms", nargs="+", default=sorted(MECHANISMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    names = sorted({"full", *args.mechanisms}, key=lambda name: (name != "full", name))
    lines = []
    for dtype in args.dtypes:
        for length in args.lengths:
            runs = args.runs if length < 16384 else max(3, args.runs // 2)
            own = [x for x in lines if x["dtype"] == dtype]
            chosen = [name for name in names if fits(name, length, own)]
            lines += group(length, dtype, chosen, runs, device)
            record = {"environment": environment(device), "width": WIDTH, "heads": HEADS}
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(record | {"rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
