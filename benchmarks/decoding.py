"""Time per token and size of the state in decoding, after prefixes of several lengths.

    python benchmarks/decoding.py --out benchmarks/results/decoding-cpu.json

A causal language model with random weights reads a prefix in pieces, then decodes tokens one by
one with its state (`use_cache=True`, one row, the most likely next token). All prefixes of one
mechanism and the same prefixes of `full` are decoded in turns, a few tokens each, so that drift of
the machine affects all equally, and ratios are those of one run. Times are medians over the decoded
tokens; the growth is that of the time per token from the shortest to the longest prefix. The state
counts the bytes of all tensors that it keeps in memory, at its largest. Windows see 512 keys back,
and the query's own.

A prefix whose reading takes longer than the limit, or needs too much memory, is left out with the
reason, and so are longer ones. Where tokens are slow, fewer of them are decoded. `--total-seconds`
derives the limits from the time of the whole run, so that slow mechanisms cannot take that of
others. The record is written after each mechanism.
"""

import argparse
import gc
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from timing import environment, time_call, write_record

from longspan.attention import MECHANISMS
from longspan.memory import keep_freed_memory
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.results import BASELINE
from longspan.space import is_out_of_memory

VOCABULARY, WINDOW, TURN = 1000, 512, 10
FULL_TURN = 2  # tokens of `full` in a turn of another mechanism
LEAST_TOKENS = 3  # of a median
FULL_SHARE = 0.4  # of the time of a run, for the prefixes of `full`, whose reading is quadratic
READING = 0.6  # of the time of a mechanism; the rest is for decoding
CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)
# The window of 512 keys where a mechanism has that option, else about as many keys.
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": WINDOW},
    "longformer": {"window": WINDOW, "first_global": 4},
    "long_short": {"window": WINDOW},
    "dilated": {"window": WINDOW},
    "blockwise": {"block": WINDOW},
    "disjoint": {"block": WINDOW},
}


def build_model(name: str, layers: int, width: int, length: int) -> LongspanForCausalLM:
    config = LongspanConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        position="auto" if MECHANISMS[name].traits.carries_positions else "rotary",
        attention=name,
        attention_options=OPTIONS.get(name, {}),
        is_decoder=True,
    )
    return LongspanForCausalLM(config).eval()


class TooSlowError(Exception):
    """Reading of a prefix that takes longer than the limit."""


class Decoder:
    """One row that is decoded token by token.

    Attributes:
        seconds: time of each token so far.
        bytes: size of the largest state so far.
    """

    def __init__(self, model: LongspanForCausalLM, output: Any, device: torch.device):
        """Begin at the output of a prefix, whose state is not modified."""
        self.model, self.device, self.output = model, device, output
        self.seconds: list[float] = []
        self.bytes = output.past_key_values.num_bytes

    def decode(self, tokens: int) -> None:
        """Decode some tokens."""
        for _ in range(tokens):
            self.seconds.append(time_call(self._step, self.device))
            self.bytes = max(self.bytes, self.output.past_key_values.num_bytes)

    def warm_up(self, seconds: float) -> float:
        """Decode untimed tokens, fewer than a turn where they are slow; return the fastest time."""
        while len(self.seconds) < TURN and sum(self.seconds) < seconds / TURN:
            self.decode(1)
        fastest = min(self.seconds)
        self.seconds.clear()
        return fastest

    def _step(self) -> None:
        best = self.output.logits[:, -1:].argmax(-1)
        self.output = self.model(best, past_key_values=self.output.past_key_values)


class Prefixes:
    """Prefixes of one text, read by a model.

    Attributes:
        outputs: output of the model after each of them.
        left_out: reason for each prefix that was not read.
    """

    def __init__(self, model: LongspanForCausalLM, args: argparse.Namespace, device: torch.device):
        self.model, self.args, self.device = model, args, device
        self.outputs: dict[int, Any] = {}
        self.left_out: dict[int, str] = {}
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1, VOCABULARY, (1, max(args.prefixes)), generator=generator)
        self._ids, self._read, self._output, self._seconds = ids.to(device), 0, None, 0.0
        for prefix in args.prefixes:
            reason = next(iter(self.left_out.values()), None) or self._read_to(prefix)
            if reason is None:
                self.outputs[prefix] = self._output
            else:
                self.left_out[prefix] = reason

    def _read_to(self, prefix: int) -> str | None:
        """Read up to a length, from the state of the prefix before; return why that failed."""
        try:
            while self._read < prefix:
                started = time.perf_counter()
                self._read_piece(min(self._read + self.args.chunk, prefix))
                self._seconds += time.perf_counter() - started
                if self._seconds > self.args.read_seconds:
                    raise TooSlowError
        except TooSlowError:
            return f"reading {self._read:,} tokens took more than {self.args.read_seconds:g} s"
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return f"reading more than {self._read:,} tokens needs more memory than there is"
        return None

    def _read_piece(self, end: int) -> None:
        state = None if self._output is None else self._output.past_key_values
        ids = self._ids[:, self._read : end]
        self._output = self.model(ids, past_key_values=state, use_cache=True, logits_to_keep=1)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._read = end

    def decoders(self) -> dict[int, Decoder]:
        """Return a row at the end of each prefix."""
        return {n: Decoder(self.model, x, self.device) for n, x in self.outputs.items()}


def turns(tokens: int) -> Iterator[int]:
    """Yield the number of tokens of each turn."""
    for start in range(0, tokens, TURN):
        yield min(TURN, tokens - start)


@torch.no_grad()
def read_prefixes(name: str, args: argparse.Namespace, device: torch.device) -> Prefixes:
    """Build the model of a mechanism, and read the prefixes."""
    longest = max(args.prefixes) + args.tokens + TURN
    model = build_model(name, args.layers, args.width, longest)
    return Prefixes(model.to(device), args, device)


@torch.no_grad()
def decode_in_turns(
    own: dict[int, Decoder], full: dict[int, Decoder], args: argparse.Namespace
) -> None:
    """Decode all rows of a mechanism in turns, each followed by fewer tokens of `full`."""
    steps: dict[int, Iterator[int]] = {}
    for prefix, row in own.items():
        slowest = row.warm_up(args.decode_seconds)
        if prefix in full:
            slowest += full[prefix].warm_up(args.decode_seconds) * FULL_TURN / TURN
        tokens = min(args.tokens, int(args.decode_seconds / slowest))
        steps[prefix] = turns(max(LEAST_TOKENS, tokens))
    while steps:
        for prefix in list(steps):
            if (count := next(steps[prefix], None)) is None:
                del steps[prefix]
                continue
            own[prefix].decode(count)
            if prefix in full:
                full[prefix].decode(FULL_TURN)


def measure(name: str, full: Prefixes, args: argparse.Namespace, device: torch.device) -> dict:
    """Decode after each prefix, in turns with `full`."""
    prefixes = full if name == BASELINE else read_prefixes(name, args, device)
    own, others = prefixes.decoders(), {} if name == BASELINE else full.decoders()
    decode_in_turns(own, others, args)
    rows = []
    for prefix, decoder in own.items():
        row = {"prefix": prefix, "tokens": len(decoder.seconds)}
        row["seconds_per_token"] = statistics.median(decoder.seconds)
        row["state_bytes"] = decoder.bytes
        if prefix in others:
            row["full_seconds_per_token"] = statistics.median(others[prefix].seconds)
        rows.append(row)
    growth = None
    if len(rows) > 1:
        growth = rows[-1]["seconds_per_token"] / rows[0]["seconds_per_token"] - 1
    found = {"mechanism": name, "options": OPTIONS.get(name, {}), "growth": growth}
    found |= {"prefixes": rows, "left_out": prefixes.left_out}
    print(describe(found), flush=True)
    return found


def limited(args: argparse.Namespace, seconds: float) -> argparse.Namespace:
    """Return arguments under which a mechanism takes at most some seconds."""
    limits = {
        "read_seconds": min(args.read_seconds, READING * seconds),
        "decode_seconds": min(args.decode_seconds, (1 - READING) * seconds / len(args.prefixes)),
    }
    return argparse.Namespace(**vars(args) | limits)


def measure_all(args: argparse.Namespace, device: torch.device) -> Iterator[list[dict]]:
    """Measure the mechanisms; yield the rows so far after each."""
    ends = time.perf_counter() + args.total_seconds
    first = {"read_seconds": min(args.read_seconds, FULL_SHARE * args.total_seconds)}
    full = read_prefixes(BASELINE, argparse.Namespace(**vars(args) | first), device)
    rows: list[dict] = []
    for number, name in enumerate(args.mechanisms):
        left = max(0.0, ends - time.perf_counter()) / (len(args.mechanisms) - number)
        rows.append(measure(name, full, limited(args, left), device))
        gc.collect()
        yield rows


def describe(row: dict) -> str:
    """Return the figures of a mechanism as one line."""
    cells = [
        f"{one['prefix']:>7,}: {1e3 * one['seconds_per_token']:8.2f} ms "
        f"{one['state_bytes'] / 2**20:7.1f} MiB"
        for one in row["prefixes"]
    ]
    cells += [f"{prefix:>7,}: {reason}" for prefix, reason in row["left_out"].items()]
    growth = "" if row["growth"] is None else f"  growth {100 * row['growth']:+.1f} %"
    return f"{row['mechanism']:18} {'  '.join(cells)}{growth}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=CAUSAL, choices=CAUSAL)
    parser.add_argument("--prefixes", type=int, nargs="+", default=[1024, 4096, 16384, 100_000])
    # More than a window, so that the state is seen at its largest.
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--chunk", type=int, default=1024, help="tokens of a prefix in one call")
    parser.add_argument(
        "--read-seconds", type=float, default=1800, help="limit of reading the prefixes"
    )
    parser.add_argument(
        "--decode-seconds", type=float, default=60, help="limit of decoding after a prefix"
    )
    parser.add_argument(
        "--total-seconds",
        type=float,
        default=math.inf,
        help="time of the whole run: a part for reading with `full`, the rest in equal shares",
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.prefixes.sort()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    found = {"environment": environment(device), "tokens": args.tokens, "layers": args.layers}
    found |= {"width": args.width, "chunk": args.chunk}
    for rows in measure_all(args, device):
        if args.out is not None or len(rows) == len(args.mechanisms):
            write_record(found | {"rows": rows}, args.out)


if __name__ == "__main__":
    main()
