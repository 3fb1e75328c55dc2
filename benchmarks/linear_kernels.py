"""Linear attention and Performer: the Triton kernels against the torch body, in turns.

    python benchmarks/linear_kernels.py --device cuda --out linear_kernels.json

Inference, and forward with backward, of one call: `rows` rows of 8 heads. `speedup` is the time of
the torch body over that of the kernels, `memory_ratio` the peak of its memory over theirs.
`deviation` is the largest difference of the kernels' output and gradients from those of the torch
body in float32, over the largest of their numbers. On the CPU the kernels are interpreted: times
there mean nothing.
"""

import argparse
import dataclasses
import itertools
import os
from pathlib import Path

HEADS = 8
WORKS = ("inference", "training")
# Options of each mechanism; the kernels have no causal form of the second one.
MECHANISMS = {
    "linear": {},
    "performer": {"features": 256},
    "performer relu": {"features": 64, "feature_map": "relu"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 131072])
    parser.add_argument("--tokens", type=int, default=131072, help="of all rows together")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--mechanisms", nargs="+", default=list(MECHANISMS), choices=MECHANISMS)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from timing import environment, write_record

    device, rows = torch.device(args.device), []
    torch.manual_seed(0)
    choices = (args.dtypes, args.mechanisms, (False, True), args.widths, args.lengths)
    for dtype, name, causal, width, length in itertools.product(*choices):
        if causal and name == "performer":
            continue
        shape = (max(1, args.tokens // length), HEADS, length, width)
        rows += measure(name, causal, getattr(torch, dtype), shape, args.runs, device)
        # Compilation takes seconds for a form: what is measured outlasts an interrupt.
        record = {"environment": environment(device), "heads": HEADS, "rows": rows}
        if args.out is not None:
            write_record(record, args.out)
    if args.out is None:
        write_record(record, None)


def measure(name, causal, dtype, shape, runs, device) -> list[dict]:
    """Measure both bodies of one shape, in inference and in training."""
    import torch
    from peers import describe
    from timing import compare

    from longspan.attention import build
    from longspan.errors import InputError

    sizes = {"heads": HEADS, "head_dim": shape[3]} if MECHANISMS[name] else {}
    options = {"causal": causal, **sizes, **MECHANISMS[name]}
    kind = name.partition(" ")[0]
    bodies = {x: build(kind, backend=x, **options).to(device) for x in ("torch", "triton")}
    inputs = [torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(3)]
    grad, rows = torch.randn(shape, device=device).to(dtype), []
    row = describe_case(name, causal, dtype, shape)
    try:
        deviation = deviation_of(bodies, inputs, grad)
    except InputError as error:
        return [{**row, "refused": str(error)}]
    except Exception as error:  # whatever Triton raises: the other shapes go on
        print(f"{name} is not measured: {describe(error)}", flush=True)
        return [{**row, "failed": describe(error)}]
    for work in WORKS:
        calls = {x: call_of(body, inputs, grad, work) for x, body in bodies.items()}
        peaks = {x: peak_of(call, device) for x, call in calls.items()}
        timings = compare(calls, runs=runs, device=device)
        rows.append(
            {
                **row,
                "work": work,
                "speedup": timings["torch"].minimum / timings["triton"].minimum,
                "memory_ratio": peaks["torch"] / peaks["triton"] if peaks["triton"] else None,
                "deviation": deviation,
                **{x: {**dataclasses.asdict(t), "peak": peaks[x]} for x, t in timings.items()},
            }
        )
        print({x: y for x, y in rows[-1].items() if not isinstance(y, dict)}, flush=True)
    return rows


def describe_case(name, causal, dtype, shape) -> dict:
    """Return what names the rows of a shape."""
    return {
        "mechanism": name,
        "causal": causal,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": shape[0],
        "length": shape[2],
        "width": shape[3],
    }


def call_of(body, inputs, grad, work):
    """Return the callable of a pass; inputs may be None."""
    import torch

    def train() -> None:
        for x in inputs:
            if x is not None:
                x.grad = None
        body(*inputs).backward(grad)

    return train if work == "training" else torch.inference_mode()(lambda: body(*inputs))


def peak_of(call, device) -> int:
    """Return the peak of the memory of a warm call, beyond what is held before; 0 on the CPU."""
    import torch

    call()
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def deviation_of(bodies, inputs, grad) -> dict[str, float]:
    """Return the relative deviations of output and gradients from the torch body in float32."""
    import torch

    results = []
    for body, dtype in ((bodies["triton"], inputs[0].dtype), (bodies["torch"], torch.float32)):
        own = [x.detach().to(dtype).requires_grad_() for x in inputs]
        out = body(*own)
        results.append([out.detach(), *torch.autograd.grad(out, own, grad.to(dtype))])
    pairs = zip(("output", "q", "k", "v"), *results, strict=True)
    return {name: float((x.float() - y).abs().max() / y.abs().max()) for name, x, y in pairs}


if __name__ == "__main__":
    main()
