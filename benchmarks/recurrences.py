"""Recurrences on a CPU: our torch code and transformers' of the same rule, interleaved.

    python benchmarks/recurrences.py --out benchmarks/results/recurrences-cpu.json

Forward with backward of one causal call, batch size 1, 8 heads of width 64. `over_transformers` is
the time of transformers over ours (Qwen3-Next for `gated_delta`, Kimi Linear for `kimi_delta`, the
latter to 4,096 tokens, beyond which it takes minutes),
`over_linear` ours over that of causal `linear` attention without a gate, by the fastest of the
repeats.
"""

import argparse
import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from linear_kernels import HEADS, call_of
from recurrence_kernels import RULES, bodies_of, inputs_of
from timing import compare, environment, write_record

WIDTH = 64
PEERS = {
    "gated_delta": ("qwen3_next", "torch_chunk_gated_delta_rule"),
    "kimi_delta": ("kimi_linear", "chunk_kimi_delta_attention"),
}

LONGEST = {"kimi_delta": 4096}  # tokens of transformers' code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    device, rows = torch.device("cpu"), []
    record = {"environment": environment(device), "heads": HEADS, "width": WIDTH, "rows": rows}
    torch.manual_seed(0)
    for dtype, name, length in itertools.product(args.dtypes, args.rules, args.lengths):
        case = {"rule": name, "dtype": dtype, "length": length}
        rows.append(case | measure(name, getattr(torch, dtype), length, args.runs))
        print({x: y for x, y in rows[-1].items() if not isinstance(y, dict)}, flush=True)
        if args.out is not None:
            write_record(record, args.out)
    if args.out is None:
        write_record(record, None)


def measure(name: str, dtype: torch.dtype, length: int, runs: int) -> dict[str, Any]:
    """Measure a rule beside `linear`, and beside transformers where it has the rule."""
    device = torch.device("cpu")
    shape = (1, length, HEADS, WIDTH)
    inputs, grad = inputs_of(name, dtype, shape, device), torch.randn(shape).to(dtype)
    calls = {x: call_of(body, inputs, grad, "training") for x, body in sides(name, length)}
    timings = compare(calls, runs=runs, device=device)
    least = {x: timing.minimum for x, timing in timings.items()}
    ratios = {"over_linear": least["ours"] / least["linear"]}
    if "transformers" in least:
        ratios["over_transformers"] = least["transformers"] / least["ours"]
    return ratios | {x: dataclasses.asdict(y) for x, y in timings.items()}


def sides(name: str, length: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of q, k, v, log decays and step sizes, each (B, T, H, ...)."""
    from longspan.attention import build

    linear = build("linear", causal=True)

    def without_gate(q, k, v, g, beta):
        return linear(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    yield "ours", bodies_of(name)["torch"]
    yield "linear", without_gate
    if name in PEERS and length <= LONGEST.get(name, length):
        yield "transformers", functools.partial(run_peer, name)


def run_peer(name: str, q, k, v, g, beta):
    """Return the outputs of transformers' torch code."""
    module, function = PEERS[name]
    peer = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    g = g[..., 0] if RULES[name].decays == "head" else g
    return getattr(peer, function)(q, k, v, g, beta)[0]


if __name__ == "__main__":
    main()
