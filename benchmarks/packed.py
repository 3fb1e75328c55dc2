"""Attention layers on padded batches and on packed documents.

    python benchmarks/packed.py --out benchmarks/results/packed-cpu.json

Forward and backward of `longspan.nn.MultiheadAttention`, width 512, 8 heads, 8 documents of which
the longest has 2,048 tokens, in turns in one process: once as a padded batch with a mask, once as a
nested tensor, whose documents are packed one after another. `speedup` is the time of the padded
batch over that of the packed one.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from timing import compare, environment, write_record

from longspan.attention import MECHANISMS
from longspan.memory import keep_freed_memory
from longspan.nn import MultiheadAttention

WIDTH, HEADS, DOCUMENTS, LONGEST = 512, 8, 8, 2048
SHARES = (0.0, 0.25, 0.5, 0.75)
PACKED = sorted(name for name, cls in MECHANISMS.items() if cls.traits.packed)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def document_lengths(share: float) -> list[int]:
    """Return the lengths of a batch with so large a share of padding; all but one are equal."""
    others = round(((1 - share) * DOCUMENTS - 1) * LONGEST / (DOCUMENTS - 1))
    return [LONGEST, *[others] * (DOCUMENTS - 1)]


def step(layer: MultiheadAttention, x: torch.Tensor, padding: torch.Tensor | None):
    """Return a call that computes the layer's output and its gradients."""

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        out, _ = layer(x, x, x, key_padding_mask=padding, need_weights=False)
        values = out.values() if out.is_nested else out
        values.backward(torch.ones_like(values))

    return run


def measure(name: str, share: float, dtype: str, runs: int, device: torch.device) -> dict:
    """Measure both forms of a batch."""
    lengths = torch.tensor(document_lengths(share), device=device)
    layer = MultiheadAttention(
        WIDTH, HEADS, batch_first=True, attention=name, device=device, dtype=DTYPES[dtype]
    )
    documents = [
        torch.randn(int(n), WIDTH, device=device, dtype=DTYPES[dtype]).requires_grad_()
        for n in lengths
    ]
    padded = torch.nn.utils.rnn.pad_sequence(
        [x.detach() for x in documents], batch_first=True
    ).requires_grad_()
    nested = torch.nested.nested_tensor(
        [x.detach() for x in documents], layout=torch.jagged, device=device
    ).requires_grad_()
    padding = torch.arange(LONGEST, device=device) >= lengths[:, None]
    calls = {
        "padded": step(layer, padded, padding if share else None),
        "packed": step(layer, nested, None),
    }
    timings = compare(calls, runs=runs, device=device)
    row = {
        "mechanism": name,
        "padding": share,
        "dtype": dtype,
        "speedup": timings["padded"].minimum / timings["packed"].minimum,
        **{key: dataclasses.asdict(timing) for key, timing in timings.items()},
    }
    print(f"{name:11} {dtype:8} padding {share:4.0%}  speedup {row['speedup']:5.2f}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=PACKED, choices=PACKED)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=DTYPES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    rows = [
        measure(name, share, dtype, args.runs, device)
        for name in args.mechanisms
        for dtype in args.dtypes
        for share in SHARES
    ]
    sizes = {"width": WIDTH, "heads": HEADS, "documents": DOCUMENTS, "longest": LONGEST}
    write_record({"environment": environment(device), **sizes, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
