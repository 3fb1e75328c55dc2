"""Time and memory of attention layers of other libraries against ours, in one process.

    pip install -e '.[dev,peers]'
    python benchmarks/peers.py --out benchmarks/results/peers-cpu.json

Each layer maps (1, T, 512) to (1, T, 512), projections included, forward and backward. Both have
equally many biases and attend to equally many keys per query; `peer_list.py` has the libraries, our
mechanisms and their options. Calls of both alternate: ours, theirs, ours, theirs, at least `--runs`
times and for a second. Each turn gives a ratio, their time over ours; the median of the ratios is
reported with the lowest and the highest. Below 1 theirs is faster. Before turns are timed, each
layer has warmed up. On a CPU the peak memory of each is measured in another process, which maps
large blocks on their own.
The allocator is the same for both and named in the record: by default glibc keeps freed memory in
the process (`longspan.memory.keep_freed_memory`) while time is measured; `--allocator default`
leaves it as it is.

A library that is not installed, needs a GPU, or cannot run at a length or in a dtype is left out
with the reason.
"""

import argparse
import dataclasses
import functools
import gc
import importlib.util
import itertools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from peer_layers import OwnLayer, Peer, Sizes
from peer_list import PEERS
from timing import environment, package_version, time_call, write_record
from torch import Tensor, nn

from longspan.bench.peaks import PeakMeter
from longspan.bench.timing import timing_of
from longspan.memory import keep_freed_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Errors by which libraries say that they cannot do something.
REFUSALS = (RuntimeError, TypeError, ValueError, AssertionError, ImportError, AttributeError)
LEAST_SECONDS = 1.0  # of all turns of a case; short passes vary more
KEPT, DEFAULT = "freed memory is kept", "default"


def refusal(peer: Peer, device: torch.device) -> str | None:
    """Return why a peer cannot be measured here at any length, or None."""
    if peer.cuda and device.type != "cuda":
        return "needs a GPU"
    try:
        found = importlib.util.find_spec(peer.module)
    except ImportError:
        found = None
    return None if found else "is not installed"


def forward_backward(layer: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], None]:
    """Return the callable of a pass, which leaves no gradients behind."""

    def call() -> None:
        layer(x).backward(grad)
        x.grad = None
        layer.zero_grad(set_to_none=True)

    return call


def describe(error: Exception) -> str:
    """Return the first line of an error with its class."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        peer: name of the peer.
        is_ours: whether it is our layer.
        sizes: sizes of the layers.
        length: tokens.
        dtype: name of the dtype.
        device: device that computes.
    """

    peer: str
    is_ours: bool
    sizes: Sizes
    length: int
    dtype: str
    device: torch.device

    def layer(self) -> nn.Module:
        """Build the layer."""
        peer = PEERS[self.peer]
        build = functools.partial(OwnLayer, peer) if self.is_ours else peer.build
        return build(self.sizes, self.length).to(device=self.device, dtype=DTYPES[self.dtype])

    def call(self, layer: nn.Module) -> Callable[[], None]:
        """Return the callable of a pass of the layer with random inputs."""
        shape, dtype = (1, self.length, self.sizes.width), DTYPES[self.dtype]
        x = torch.randn(shape, device=self.device, dtype=dtype, requires_grad=True)
        return forward_backward(layer, x, torch.randn_like(x))

    def make(self) -> Callable[[], None]:
        """Return the callable of a pass of a new layer."""
        return self.call(self.layer())


def measure(
    name: str,
    sizes: Sizes,
    length: int,
    dtype: str,
    runs: int,
    device: torch.device,
    meter: PeakMeter,
) -> dict[str, Any]:
    """Return the times, peaks and ratios of both layers; of a peer that fails, the reason."""
    sides = {x: Side(name, x == "ours", sizes, length, dtype, device) for x in ("ours", "theirs")}
    own = cast(OwnLayer, sides["ours"].layer())
    calls = {"ours": sides["ours"].call(own)}
    try:
        calls["theirs"] = sides["theirs"].make()
        calls["theirs"]()
    except REFUSALS as error:
        return {"reason": describe(error)}
    peaks = {x: meter.measure(side.make) for x, side in sides.items()}
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {key: [] for key in calls}
    while len(seconds["theirs"]) < runs or sum(map(sum, seconds.values())) < LEAST_SECONDS:
        for key, call in calls.items():
            seconds[key].append(time_call(call, device))
    timings = {key: timing_of(times, peaks[key]) for key, times in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {
        "backend": own.layer.mechanism.backend_used,
        "time_ratio": statistics.median(ratios),
        "lowest_time_ratio": min(ratios),
        "highest_time_ratio": max(ratios),
        "memory_ratio": ratio(peaks["theirs"], peaks["ours"]),
        **{key: dataclasses.asdict(timing) for key, timing in timings.items()},
    }


def ratio(theirs: int | None, ours: int | None) -> float | None:
    """Return a ratio of bytes; None if they are not counted here."""
    return theirs / ours if theirs and ours else None


def measure_all(
    names: list[str],
    sizes: Sizes,
    lengths: list[int],
    dtypes: list[str],
    runs: int,
    device: torch.device,
) -> Iterator[dict]:
    """Measure peers; yield the rows, and what is left out with its `reason`."""
    possible = []
    for name in names:
        if reason := refusal(PEERS[name], device):
            print(f"{name:28} {reason}", flush=True)
            yield {"peer": name, "reason": reason}
        else:
            possible.append(name)
    with PeakMeter(device) as meter:
        for name, dtype, length in itertools.product(possible, dtypes, lengths):
            found = measure(name, sizes, length, dtype, runs, device, meter)
            row = {"peer": name, "length": length, "dtype": dtype} | found
            print(line(row), flush=True)
            yield row
            gc.collect()


def line(row: dict) -> str:
    """Return a measured case, or the reason why it is left out, in one line."""
    case = f"{row['peer']:28} {row['dtype']:8} T={row['length']:<6}"
    if "reason" in row:
        return f"{case} {row['reason']}"
    return (
        f"{case} ours {1e3 * row['ours']['median']:8.1f} ms  theirs "
        f"{1e3 * row['theirs']['median']:8.1f} ms  ratio {row['time_ratio']:5.2f} "
        f"({row['lowest_time_ratio']:.2f} to {row['highest_time_ratio']:.2f})  "
        f"memory {row['memory_ratio'] or 0:5.2f}"
    )


def describe_peers(rows: list[dict], sizes: Sizes) -> dict[str, dict]:
    """Return library, version, our mechanism and keys per query of the measured peers."""
    found: dict[str, dict] = {}
    for name in dict.fromkeys(row["peer"] for row in rows):
        peer, lengths = PEERS[name], {x["length"] for x in rows if x["peer"] == name}
        sees_all = all(peer.keys(sizes, length) == length for length in lengths)
        found[name] = {
            "package": peer.package,
            "version": package_version(peer.package),
            "what": peer.what,
            "mechanism": peer.mechanism,
            "options": peer.options(sizes, max(lengths)),
            "causal": peer.causal,
            "keys": "all" if sees_all else peer.keys(sizes, max(lengths)),
            "note": peer.note,
        }
    return found


def make_records(args: argparse.Namespace, sizes: Sizes, allocator: str) -> Iterator[dict]:
    """Measure; yield the record after every case, so that an interrupt loses only the last."""
    torch.manual_seed(0)
    device = torch.device(args.device)
    rows: list[dict] = []
    left_out: list[dict] = []
    for row in measure_all(args.peers, sizes, args.lengths, args.dtypes, args.runs, device):
        (left_out if "reason" in row else rows).append(row)
        yield {
            "environment": environment(device) | {"allocator": allocator},
            "sizes": dataclasses.asdict(sizes),
            "runs": args.runs,
            "peers": describe_peers(rows, sizes),
            "rows": rows,
            "left_out": left_out,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--runs", type=int, default=7, help="turns at least")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--allocator", choices=["kept", "default"], default="kept")
    args = parser.parse_args()
    # torch allocates on a GPU by itself.
    keeps = args.device == "cpu" and args.allocator == "kept" and keep_freed_memory()
    record = {}
    for record in make_records(args, Sizes(), KEPT if keeps else DEFAULT):
        if args.out is not None:
            write_record(record, args.out)
    if args.out is None:
        write_record(record, None)


if __name__ == "__main__":
    main()
