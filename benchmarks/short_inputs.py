"""Blocks against the dense body of patterns, on short inputs, and `full`.

    python benchmarks/short_inputs.py --out benchmarks/results/short-inputs-cpu.json

Forward and backward of one call, 8 heads of 64, B x T = 2048 tokens, in interleaved runs of one
process. `flop_ratio` are the dense FLOPs over those of the gathered blocks; the kernel `dense`
takes inputs up to a ratio of 1. `speedup` is the time of the blocks over that of the dense body.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from timing import compare, environment, write_record

from longspan.attention import Attention, build
from longspan.attention.kernels.dense import dense, dense_refusals
from longspan.memory import keep_freed_memory

HEADS, WIDTH, TOKENS = 8, 64, 2048
LENGTHS = (64, 128, 256, 384, 512, 768, 1024, 2048)
PATTERNS = {
    "local": [{"window": 16}, {"window": 64}, {"window": 128}],
    "blockwise": [{"block": 64}, {"block": 128}],
    "disjoint": [{"block": 256}],
    "dilated": [{"window": 64}],
    "longformer": [{"window": 256}],
}


def forward_backward(call, inputs: list[torch.Tensor], grad: torch.Tensor):
    def run() -> None:
        for x in inputs:
            x.grad = None
        call(*inputs).backward(grad)

    return run


def run_dense(attention: Attention):
    """Return the dense body with the optional inputs of the mechanism empty."""
    extra = (None,) * attention.traits.global_tokens + attention._optional_inputs(None, None, None)
    return lambda q, k, v: dense(attention, q, k, v, None, *extra)


def measure(name: str, options: dict, length: int, runs: int, device: torch.device) -> dict:
    """Measure both bodies of one pattern at one length."""
    shape = (max(1, TOKENS // length), HEADS, length, WIDTH)
    inputs = [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]
    sizes = {"heads": HEADS, "head_dim": WIDTH, "max_length": length}
    blocks = build(name, backend="torch", **sizes, **options)
    bodies = {"full": build("full"), "blocks": blocks, "dense": run_dense(blocks)}
    grad = torch.randn(shape, device=device)
    calls = {body: forward_backward(call, inputs, grad) for body, call in bodies.items()}
    timings = compare(calls, runs=runs, device=device)
    none = (None,) * (blocks.traits.global_tokens + len(blocks._optional_inputs(None, None, None)))
    row = {
        "mechanism": name,
        "options": options,
        "length": length,
        "batch": shape[0],
        "dtype": "float32",
        "flop_ratio": 4 * length**2 * WIDTH / blocks.run_flops(length, WIDTH),
        "chosen": "blocks" if dense_refusals(blocks, *inputs, None, *none) else "dense",
        "speedup": timings["blocks"].minimum / timings["dense"].minimum,
        "dense_over_full": timings["dense"].minimum / timings["full"].minimum,
        **{body: dataclasses.asdict(timing) for body, timing in timings.items()},
    }
    print(
        f"{name:11} {options!s:16} T={length:<5} ratio {row['flop_ratio']:5.2f}  "
        f"blocks / dense {row['speedup']:5.2f}  dense / full {row['dense_over_full']:5.2f}  "
        f"{row['chosen']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--mechanisms", nargs="+", default=list(PATTERNS), choices=PATTERNS)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    rows = [
        measure(name, options, length, args.runs, device)
        for name in args.mechanisms
        for options in PATTERNS[name]
        for length in args.lengths
    ]
    record = {"environment": environment(device), "heads": HEADS, "width": WIDTH, "rows": rows}
    write_record(record, args.out)


if __name__ == "__main__":
    main()
