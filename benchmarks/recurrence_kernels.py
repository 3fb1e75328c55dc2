"""Recurrences on a GPU: our Triton kernels, the torch body and flash-linear-attention, in turns.

    python benchmarks/recurrence_kernels.py --out recurrence_kernels.json

Inference, and forward with backward, of one causal call: `rows` rows of 8 heads. All three read the
same tensors, which lie in memory as a layer's projections do, (B, T, H, D). `over_torch` and
`over_fla` are their times over that of our kernels, by the fastest of the turns; `deviation` is the
largest difference of output and gradients from the torch body in float64, at 1,024 tokens, over the
largest of their numbers. On the CPU the kernels are interpreted: times there mean nothing.
"""

import argparse
import dataclasses
import functools
import importlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from linear_kernels import HEADS, WORKS, call_of, peak_of

CHECKED = 1024  # tokens at which numbers are compared


class Rule(NamedTuple):
    """A recurrence.

    Attributes:
        delta: whether it has the delta rule.
        decays: "none", "head" or "channel".
        fla: module and function of flash-linear-attention, whose decays of heads have no last axis.
    """

    delta: bool
    decays: str
    fla: tuple[str, str]


RULES = {
    "ssd": Rule(False, "head", ("simple_gla", "chunk_simple_gla")),
    "gated_linear": Rule(False, "channel", ("gla", "chunk_gla")),
    "delta": Rule(True, "none", ("delta_rule", "chunk_delta_rule")),
    "gated_delta": Rule(True, "head", ("gated_delta_rule", "chunk_gated_delta_rule")),
    "kimi_delta": Rule(True, "channel", ("kda", "chunk_kda")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--tokens", type=int, default=65536, help="of all rows together")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from timing import environment, package_version, write_record

    device, rows = torch.device(args.device), []
    record = {
        "environment": environment(device)
        | {x: package_version(x) for x in ("triton", "flash-linear-attention")},
        "heads": HEADS,
        "rows": rows,
    }
    torch.manual_seed(0)
    for dtype, name, width in itertools.product(args.dtypes, args.rules, args.widths):
        kind = getattr(torch, dtype)
        deviation = deviations(name, kind, (1, CHECKED, HEADS, width), device)
        for length in args.lengths:
            shape = (max(1, args.tokens // length), length, HEADS, width)
            case = {"rule": name, "dtype": dtype, "rows": shape[0], "length": length}
            case |= {"width": width, "deviation": deviation}
            for row in measure(name, kind, shape, args.runs, device):
                rows.append(case | row)
                print({x: y for x, y in rows[-1].items() if not isinstance(y, dict)}, flush=True)
            # Compilation takes seconds for a form: what is measured outlasts an interrupt.
            if args.out is not None:
                write_record(record, args.out)
    if args.out is None:
        write_record(record, None)


@functools.cache
def bodies_of(name: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of q, k, v, log decays and step sizes, each (B, T, H, ...)."""
    from longspan.attention.kernels.recurrence import mix_in_kernels
    from longspan.attention.ops.precision import at_least_float32
    from longspan.attention.ops.recurrence import mix

    rule = RULES[name]

    def ours(run, q, k, v, g, beta):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        g = None if g is None else g.transpose(1, 2)
        beta = None if beta is None else beta.transpose(1, 2)
        return run(q, k, v, g, beta, delta=rule.delta).transpose(1, 2)

    def engine(q, k, v, g, beta, *, delta):
        rows = [at_least_float32(x) for x in (q, k, v)]
        return mix(*rows, g, beta, delta=delta)[0].to(v.dtype)

    bodies = {
        "torch": functools.partial(ours, engine),
        "triton": functools.partial(ours, mix_in_kernels),
    }
    try:
        function = getattr(importlib.import_module(f"fla.ops.{rule.fla[0]}"), rule.fla[1])
    except ImportError as error:
        print(f"flash-linear-attention is left out: {error}", flush=True)
        return bodies

    def fla(q, k, v, g, beta):
        gates = {"g": g[..., 0] if rule.decays == "head" else g, "beta": beta}
        gates = {x: y for x, y in gates.items() if y is not None}
        return function(q, k, v, scale=1.0, **gates)[0]

    return {**bodies, "fla": fla}


def inputs_of(name: str, dtype, shape: tuple[int, ...], device) -> list:
    """Return q, k of length one, v, and gates in float32; None for a gate that the rule lacks."""
    import torch
    import torch.nn.functional as F

    rule = RULES[name]
    q, k, v = (torch.randn(shape, device=device) for _ in range(3))
    q, k = (F.normalize(x, dim=-1) for x in (q, k))
    g = {
        "none": lambda: None,
        "head": lambda: F.logsigmoid(torch.randn((*shape[:3], 1), device=device) + 2),
        "channel": lambda: F.logsigmoid(torch.randn(shape, device=device)) / 16,
    }[rule.decays]()
    beta = torch.rand(shape[:3], device=device) if rule.delta else None
    tensors = [*(x.to(dtype) for x in (q, k, v)), g, beta]
    return [x if x is None else x.requires_grad_() for x in tensors]


def measure(name: str, dtype, shape, runs: int, device) -> list[dict]:
    """Measure all bodies of one shape, in inference and in training."""
    import torch
    from peers import describe
    from timing import compare

    inputs = inputs_of(name, dtype, shape, device)
    grad, rows = torch.randn(shape, device=device).to(dtype), []
    for work in WORKS:
        calls, peaks, failures = {}, {}, {}
        for x, body in bodies_of(name).items():
            call = call_of(body, inputs, grad, work)
            try:
                peaks[x], calls[x] = peak_of(call, device), call
            except Exception as error:  # whatever a library raises: the others go on
                failures[x] = describe(error)
        timings = compare(calls, runs=runs, device=device)
        least = {x: timing.minimum for x, timing in timings.items()}
        ours = least.pop("triton", None)
        ratios = {f"over_{x}": y / ours for x, y in least.items() if ours}
        sides = {x: {**dataclasses.asdict(y), "peak": peaks[x]} for x, y in timings.items()}
        rows.append({"work": work, **ratios, **sides, **failures})
    return rows


def deviations(name: str, dtype, shape, device) -> dict[str, float]:
    """Return the largest relative deviation of kernels and library from the torch body."""
    import torch

    inputs, results = inputs_of(name, dtype, shape, device), {}
    grad = torch.randn(shape, device=device).to(dtype)
    for x, body in bodies_of(name).items():
        own = [y if y is None else y.detach().requires_grad_() for y in inputs]
        if x == "torch":
            own = [y if y is None else y.detach().double().requires_grad_() for y in inputs]
        leaves = [y for y in own if y is not None]
        try:
            out = body(*own)
            results[x] = [out, *torch.autograd.grad(out, leaves, grad.to(out.dtype))]
        except Exception as error:  # whatever a library raises
            print(f"{x} of {name} is not compared: {error}", flush=True)
    exact = results.pop("torch")
    return {
        x: max(
            float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())
            for a, b in zip(y, exact, strict=True)
        )
        for x, y in results.items()
    }


if __name__ == "__main__":
    main()
