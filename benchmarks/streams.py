"""Training speed of causal language models on streams, with every mechanism of the registry.

    python benchmarks/streams.py --out benchmarks/results/streams-cpu.json

A step is forward with the state of the segment before, loss, backward and AdamW, on 8,192 bytes in
rows of 4,096; `full` is measured on rows of 512 as well. Models have four layers of width 256, byte
vocabulary, no dropout, random weights. Each mechanism alternates with `full` in one process, and
ratios are of medians. For transformer_xl and compressive, `over_windows` is their time over that of
`local`, whose window has as many keys; `over_same_shape` is their time over that of the same model
without relative terms, with equal segments, memory and compression, in turns.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import compare, environment, write_record

from longspan.attention import MECHANISMS
from longspan.attention.ops.relative_positions import RelativeAttention
from longspan.attention.ops.segments import segment_mask
from longspan.attention.ops.softmax import softmax_attention
from longspan.memory import keep_freed_memory
from longspan.models import LongspanCache, LongspanConfig, LongspanForCausalLM

VOCABULARY, SEGMENT, LENGTH, TOKENS = 257, 512, 4096, 8192
CAUSAL = sorted(name for name, cls in MECHANISMS.items() if cls.traits.causal)
RELATIVE = "transformer_xl", "compressive"
RECURRENT = {"segment": SEGMENT, "memory": SEGMENT}
# As many keys for a query as a segment and its memory have on average, 3/2 segments.
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": 3 * SEGMENT // 2},
    "longformer": {"window": 3 * SEGMENT // 2},
    "transformer_xl": RECURRENT,
    "position_infused": RECURRENT,
    "compressive": {
        "segment": SEGMENT,
        "memory": SEGMENT // 2,
        "compressed_memory": SEGMENT // 2,
        "compression": "conv",
    },
}


@dataclasses.dataclass
class Stream:
    """A model that reads segment after segment of random tokens.

    Attributes:
        model: model.
        optimizer: its optimizer.
        tokens: inputs and targets of a step.
        keeps: whether the state passes from a step to the next.
        state: state after the last step.
    """

    model: LongspanForCausalLM
    optimizer: torch.optim.Optimizer
    tokens: tuple[torch.Tensor, torch.Tensor]
    keeps: bool
    state: LongspanCache | None = None

    def step(self) -> None:
        inputs, targets = self.tokens
        output = self.model(
            inputs,
            shift_labels=targets,
            cache=self.state,
            use_cache=self.keeps,
        )
        output.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.state = output.cache.detach() if self.keeps else None


def make_stream(name: str, length: int, tokens: int, width: int, device: torch.device) -> Stream:
    traits = MECHANISMS[name].traits
    config = LongspanConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        max_position_embeddings=length,
        position="none" if traits.carries_positions else "rotary",
        hidden_dropout_prob=0.0,
        attention_dropout=0.0,
        attention=name,
        attention_options=OPTIONS.get(name, {}),
        is_decoder=True,
    )
    torch.manual_seed(0)
    model = LongspanForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    shape = (max(1, tokens // length), length)
    drawn = [torch.randint(VOCABULARY, shape, device=device) for _ in range(2)]
    return Stream(model, optimizer, (drawn[0], drawn[1]), traits.family == "recurrence")


class PlainTerms:
    """Attention of a segment by content alone, in place of the methods of `RelativeAttention`."""

    def __init__(self, causal: bool):
        self.causal = causal

    def position_terms(self, q, longest):
        """Compute nothing."""

    def attend_segment(self, q, keys, places):
        """Attend to the memory and the segment."""
        mask = segment_mask(q.shape[2], keys, self.causal)
        return softmax_attention(q, keys.k, keys.v, mask)


def remove_relative_terms(stream: Stream) -> None:
    """Remove the relative terms from the layers of a model."""
    for layer in stream.model.modules():
        if isinstance(layer, RelativeAttention):
            plain = PlainTerms(layer.causal)
            layer.position_terms, layer.attend_segment = plain.position_terms, plain.attend_segment


def compare_same_shape(
    name: str, length: int, tokens: int, width: int, runs: int, device: torch.device
) -> float:
    """Return the time of a mechanism over its time without relative terms."""
    streams = [make_stream(name, length, tokens, width, device) for _ in range(2)]
    remove_relative_terms(streams[1])
    steps = {"relative": streams[0].step, "plain": streams[1].step}
    timings = compare(steps, runs=runs, device=device)
    return timings["relative"].median / timings["plain"].median


def measure(
    length: int, names: list[str], tokens: int, width: int, runs: int, device: torch.device
) -> list[dict[str, Any]]:
    streams = {name: make_stream(name, length, tokens, width, device) for name in names}
    steps: dict[str, Callable[[], None]] = {
        name: functools.partial(Stream.step, stream) for name, stream in streams.items()
    }
    timings = compare(steps, runs=runs, device=device)
    full = timings["full"]
    rows = []
    for name, timing in timings.items():
        inputs = streams[name].tokens[0]
        rows.append(
            {
                "mechanism": name,
                "options": OPTIONS.get(name, {}),
                "length": length,
                "batch": len(inputs),
                "seconds": dataclasses.asdict(timing),
                "tokens_per_second": inputs.numel() / timing.median,
                "times_full": full.median / timing.median,
                "memory_over_full": (timing.peak_memory or 0) / (full.peak_memory or 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mechanisms", nargs="+", default=CAUSAL)
    given = parser.parse_args()
    device = torch.device(given.device)
    keep_freed_memory()
    names = list(dict.fromkeys(["full", *given.mechanisms]))
    short = min(SEGMENT, given.length)
    rows = measure(short, ["full"], given.tokens, given.width, given.runs, device)
    for name in names:
        pair = list(dict.fromkeys(["full", name]))
        found = measure(given.length, pair, given.tokens, given.width, given.runs, device)
        rows += found[-1:]
        print(f"{name}: {found[-1]['times_full']:.2f} times the speed of full", flush=True)
    over_windows = {
        name: _seconds(rows, name, given.length) / _seconds(rows, "local", given.length)
        for name in RELATIVE
        if {name, "local"} <= set(names)
    }
    sizes = given.length, given.tokens, given.width, given.runs
    over_same_shape = {
        name: compare_same_shape(name, *sizes, device) for name in RELATIVE if name in names
    }
    record = {
        "environment": environment(device),
        "tokens": given.tokens,
        "width": given.width,
        "rows": rows,
        "over_windows": over_windows,
        "over_same_shape": over_same_shape,
    }
    write_record(record, given.out)


def _seconds(rows: list[dict[str, Any]], name: str, length: int) -> float:
    return next(
        row["seconds"]["median"]
        for row in rows
        if row["mechanism"] == name and row["length"] == length
    )


if __name__ == "__main__":
    main()
