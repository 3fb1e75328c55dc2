"""Error of Performer's random features against their number.

    python benchmarks/feature_error.py --out benchmarks/results/feature-error-cpu.json

As figure 4 of Choromanski et al. 2021 (https://arxiv.org/abs/2009.14794): 4,096 tokens of one head
of 16, rows that are orthogonal in blocks or independent. Queries, keys and values are normal, anew
for each draw, as the rows are. The variance to which the paper normalizes queries and keys is not
at hand, so there are two. Errors are mean squares of the difference from softmax in float64,
divided by the mean square of the exact values: of the output, and of exp(q . k / sqrt D) of 512
queries and all keys, the matrix of attention before its rows are normalized.
"""

import argparse
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import environment, write_record
from torch import Tensor

from longspan.attention import build
from longspan.attention.mechanisms.performer import EXPONENTIAL

LENGTH, WIDTH, DRAWS = 4096, 16, 15
KERNEL_QUERIES = 512  # rows of the matrix whose error is measured
SCALES = (0.5, 1.0)  # standard deviations of the entries of queries and keys
FEATURES = (16, 32, 64, 128, 256, 512, 1024)
MAPS = ("softmax", "hyperbolic", "trigonometric")  # those that estimate the softmax kernel


def draw_inputs(draw: int, length: int, width: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values (1, 1, T, D)."""
    generator = torch.Generator().manual_seed(draw)
    q, k, v = torch.randn((3, 1, 1, length, width), generator=generator, dtype=torch.float64)
    return scale * q, scale * k, v


def softmax_kernel(q: Tensor, k: Tensor) -> Tensor:
    """Compute exp(q . k / sqrt D) of all pairs."""
    return (q @ k.mT / q.shape[-1] ** 0.5).exp()


def estimate_kernel(attention, q: Tensor, k: Tensor) -> Tensor:
    """Estimate exp(q . k / sqrt D) of all pairs by features without their normalization."""
    fq, fk = (attention._phi(x) for x in (q, k))
    is_exponential = attention.feature_map in EXPONENTIAL
    features = attention.features if is_exponential else attention.projection.shape[1]
    return (fq.exp() @ fk.exp().mT if is_exponential else fq @ fk.mT) / features


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """Compute the mean squared error over the mean square of the exact values."""
    return ((estimate - exact).square().mean() / exact.square().mean()).item()


def measure_draw(
    draw: int, length: int, width: int, scale: float, counts: Sequence[int]
) -> list[dict]:
    """Measure the errors of one draw of inputs and rows, for all maps, kinds of rows and counts."""
    q, k, v = draw_inputs(draw, length, width, scale)
    few, kernel = q[:, :, :KERNEL_QUERIES], softmax_kernel(q, k)
    output = kernel @ v / kernel.sum(-1, keepdim=True)
    rows = []
    for name, orthogonal, features in itertools.product(MAPS, (True, False), counts):
        options = {"feature_map": name, "orthogonal": orthogonal, "features": features}
        attention = build("performer", heads=1, head_dim=width, seed=draw, **options).double()
        row = {
            "output": relative_error(attention(q, k, v), output),
            "kernel": relative_error(
                estimate_kernel(attention, few, k), kernel[:, :, :KERNEL_QUERIES]
            ),
        }
        rows.append({"scale": scale, **options, **row})
    return rows


def summarize(draws: list[list[dict]]) -> list[dict]:
    """Return one row for each setting, with the median of its errors and their range."""
    rows = []
    for same in zip(*draws, strict=True):
        row = dict(same[0])
        for error in ("output", "kernel"):
            values = [x[error] for x in same]
            row[error] = {
                "median": statistics.median(values),
                "lowest": min(values),
                "highest": max(values),
            }
        rows.append(row)
    return rows


def measure(
    length: int, width: int, scales: Sequence[float], counts: Sequence[int], draws: int
) -> list[dict]:
    """Measure the errors of all maps, kinds of rows and counts over some draws."""
    rows = []
    for scale in scales:
        measured = []
        for draw in range(draws):
            measured.append(measure_draw(draw, length, width, scale, counts))
            print(f"scale {scale}, draw {draw + 1} of {draws}", flush=True)
        rows += summarize(measured)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--features", type=int, nargs="+", default=list(FEATURES))
    parser.add_argument("--scales", type=float, nargs="+", default=list(SCALES))
    parser.add_argument("--draws", type=int, default=DRAWS)
    args = parser.parse_args()
    if args.draws < 1:
        parser.error(f"--draws must be at least 1, got {args.draws}; default: {DRAWS}")
    if uneven := [x for x in args.features if x < 2 or x % 2]:
        parser.error(f"--features must be even and at least 2 for pairs of features, got {uneven}")
    record = {
        "environment": environment(torch.device("cpu")),
        "length": args.length,
        "width": args.width,
        "draws": args.draws,
        "rows": measure(args.length, args.width, args.scales, args.features, args.draws),
    }
    write_record(record, args.out)


if __name__ == "__main__":
    main()
