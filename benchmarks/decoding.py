"""Time per token and size of the state in decoding, after prefixes of several lengths.

    python benchmarks/decoding.py --out benchmarks/results/decoding-cpu.json

A causal language model with random weights reads a prefix in one call, then decodes tokens one by
one with its state (`use_cache=True`, one row, the most likely next token). All prefixes of one
mechanism are decoded in turns, a few tokens each, so that drift of the machine affects all equally.
Times are medians over the decoded tokens; the growth is that of the time per token from the
shortest to the longest prefix. The state counts the bytes of all tensors that it keeps in memory,
at its largest. Windows see 512 keys back, and the query's own.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from timing import environment, time_call, write_record

from longspan.attention import MECHANISMS
from longspan.memory import keep_freed_memory
from longspan.models import LongspanConfig, LongspanForCausalLM

VOCABULARY, WINDOW, TURN = 1000, 512, 10
CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)
# The window of 512 keys where a mechanism has that option, else about as many keys.
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": WINDOW},
    "longformer": {"window": WINDOW, "first_global": 4},
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


def state_bytes(state: Any) -> int:
    """Return the bytes of the storages that a state holds, each counted once."""
    tensors = [x for layer in state.layers for x in layer.state.state.values()]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


class Decoder:
    """One row that is decoded token by token.

    Attributes:
        seconds: time of each token so far.
        bytes: size of the largest state so far.
    """

    def __init__(self, model: LongspanForCausalLM, prefix: int, device: torch.device):
        self.model, self.device = model, device
        ids = torch.randint(1, VOCABULARY, (1, prefix), device=device)
        self.output = model(ids, use_cache=True, logits_to_keep=1)
        self.seconds: list[float] = []
        self.bytes = state_bytes(self.output.past_key_values)

    def decode(self, tokens: int) -> None:
        """Decode some tokens."""
        for _ in range(tokens):
            self.seconds.append(time_call(self._step, self.device))
            self.bytes = max(self.bytes, state_bytes(self.output.past_key_values))

    def _step(self) -> None:
        best = self.output.logits[:, -1:].argmax(-1)
        self.output = self.model(best, past_key_values=self.output.past_key_values)


def turns(tokens: int) -> Iterator[int]:
    """Yield the number of tokens of each turn."""
    for start in range(0, tokens, TURN):
        yield min(TURN, tokens - start)


@torch.no_grad()
def measure(name: str, args: argparse.Namespace, device: torch.device) -> dict:
    """Decode after each prefix; the first turn of each is not timed."""
    longest = max(args.prefixes) + args.tokens + TURN
    model = build_model(name, args.layers, args.width, longest).to(device)
    decoders = {prefix: Decoder(model, prefix, device) for prefix in args.prefixes}
    for decoder in decoders.values():
        decoder.decode(TURN)
        decoder.seconds.clear()
    for count in turns(args.tokens):
        for decoder in decoders.values():
            decoder.decode(count)
    rows = [
        {
            "prefix": prefix,
            "seconds_per_token": statistics.median(decoder.seconds),
            "state_bytes": decoder.bytes,
        }
        for prefix, decoder in decoders.items()
    ]
    growth = rows[-1]["seconds_per_token"] / rows[0]["seconds_per_token"] - 1
    print(
        f"{name:18} "
        + "  ".join(
            f"{row['prefix']:>6}: {1e3 * row['seconds_per_token']:7.2f} ms "
            f"{row['state_bytes'] / 2**20:7.1f} MiB"
            for row in rows
        )
        + f"  growth {100 * growth:+.1f} %",
        flush=True,
    )
    return {"mechanism": name, "options": OPTIONS.get(name, {}), "growth": growth, "prefixes": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--mechanisms", nargs="+", default=CAUSAL, choices=CAUSAL)
    parser.add_argument("--prefixes", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.prefixes.sort()
    keep_freed_memory()
    torch.manual_seed(0)
    device = torch.device(args.device)
    rows = [measure(name, args, device) for name in args.mechanisms]
    record = {"environment": environment(device), "tokens": args.tokens, "layers": args.layers}
    write_record(record | {"width": args.width, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
