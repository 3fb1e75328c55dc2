"""Time and memory of `LongspanModel` against transformers' class of the same mechanism.

    python benchmarks/models.py --out benchmarks/results/models-cpu.json

Encoders of base size (12 layers, width 768, 12 heads, feed-forward width 3072), post-norm, GELU, no
dropout, random weights. Both attend to equally many keys per query: Longformer's and LED's
`attention_window` counts both sides of a window. Inputs are one row of B x T = 4096 tokens or
several shorter ones, with the mask of ones that tokenizers return; Longformer's first token is
global. A training step is forward and backward; inference is forward without gradients. Calls of
both models alternate in one process, and a ratio is transformers' median over ours. Peak memory is
that of the warm-up call, above the memory of the idle models. The floor is the time that the linear
maps of the layers alone take, which both models share, at the rate of a large matrix product
measured in the same process; the ratio at the floor is what attention without cost would reach.
"""

import argparse
import dataclasses
import gc
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from timing import Timing, compare, environment, matmul_rate, write_record
from torch import Tensor, nn

from longspan.memory import keep_freed_memory
from longspan.models import LongspanConfig, LongspanModel

WIDTH, HEADS, INNER, VOCABULARY, TOKENS = 768, 12, 3072, 30_522, 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WINDOW, BLOCK, RANDOM, LANDMARKS, CHUNK, HASHES = 256, 64, 3, 64, 64, 2
# Names of the sizes and of the dropouts in most of transformers' configurations.
BERT_SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": INNER}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GELU = {"hidden_act": "gelu"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A class of transformers and the same mechanism of ours.

    Attributes:
        goal: least ratio of times that is wanted.
        attention: our mechanism.
        options: our options, given the length.
        build: builder of transformers' model, given the number of layers and the length.
        first_global: whether the first token is global.
    """

    goal: float
    attention: str
    options: Callable[[int], dict[str, Any]]
    build: Callable[[int, int], nn.Module]
    first_global: bool = False


def longformer(layers: int, length: int) -> nn.Module:
    config = transformers.LongformerConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        attention_window=[2 * WINDOW] * layers,
        max_position_embeddings=length + 2,  # positions begin after the padding id
        **BERT_SIZES,
        **NO_DROPOUT,
        **GELU,
    )
    return transformers.LongformerModel(config, add_pooling_layer=False)


def bigbird(layers: int, length: int) -> nn.Module:
    config = transformers.BigBirdConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        attention_type="block_sparse",
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=length,
        **BERT_SIZES,
        **NO_DROPOUT,
        **GELU,
    )
    return transformers.BigBirdModel(config, add_pooling_layer=False)


def nystromformer(layers: int, length: int) -> nn.Module:
    config = transformers.NystromformerConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        num_landmarks=LANDMARKS,
        segment_means_seq_len=length,
        max_position_embeddings=length,
        conv_kernel_size=65,
        **BERT_SIZES,
        **NO_DROPOUT,
        **GELU,
    )
    return transformers.NystromformerModel(config)


def reformer(layers: int, length: int) -> nn.Module:
    config = transformers.ReformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=WIDTH // HEADS,
        feed_forward_size=INNER,
        attn_layers=["lsh"] * layers,
        lsh_attn_chunk_length=CHUNK,
        num_hashes=HASHES,
        num_buckets=2 * length // CHUNK,
        axial_pos_embds=False,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0,
        **GELU,
    )
    return transformers.ReformerModel(config)


def led_encoder(layers: int, length: int) -> nn.Module:
    config = transformers.LEDConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=layers,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER,
        decoder_layers=1,
        decoder_attention_heads=HEADS,
        attention_window=[2 * WINDOW] * layers,
        max_encoder_position_embeddings=length,
        dropout=0.0,
        activation_function="gelu",
    )
    return transformers.LEDModel(config).get_encoder()


def window_options(length: int) -> dict[str, Any]:
    return {"window": WINDOW, "global_projections": True}


PEERS = {
    "LongformerModel": Peer(2.0, "longformer", window_options, longformer, first_global=True),
    "BigBirdModel": Peer(
        2.0, "bigbird", lambda _: {"block": BLOCK, "num_random_blocks": RANDOM}, bigbird
    ),
    "NystromformerModel": Peer(
        1.3, "nystrom", lambda _: {"landmarks": LANDMARKS, "conv_kernel_size": 65}, nystromformer
    ),
    "ReformerModel": Peer(
        1.3,
        "reformer",
        lambda length: {
            "chunk": CHUNK,
            "hashes": HASHES,
            "buckets": 2 * length // CHUNK,
            "scale": "none",
        },
        reformer,
    ),
    "LEDEncoder": Peer(1.3, "longformer", window_options, led_encoder, first_global=True),
}


def build_ours(peer: Peer, layers: int, length: int) -> nn.Module:
    config = LongspanConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        max_position_embeddings=length,
        position="learned",
        norm="post",
        pooling="first",
        attention=peer.attention,
        attention_options=peer.options(length),
        max_global_tokens=1 if peer.first_global else None,
        hidden_dropout_prob=0.0,
        attention_dropout=0.0,
        **BERT_SIZES,
        **GELU,
    )
    return LongspanModel(config)


def make_inputs(peer: Peer, length: int, device: torch.device) -> dict[str, Tensor]:
    """Return ids, the mask of ones, and the global first token."""
    shape = (max(1, TOKENS // length), length)
    mask = torch.ones(shape, dtype=torch.long, device=device)
    # Id 1 is Longformer's padding, which moves its positions.
    inputs = {"input_ids": torch.randint(2, VOCABULARY, shape, device=device)}
    inputs["attention_mask"] = mask
    if peer.first_global:
        inputs["global_attention_mask"] = (torch.arange(length, device=device) < 1).long() * mask
    return inputs


def training_step(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    def call() -> None:
        model.train().zero_grad(set_to_none=True)
        model(**inputs).last_hidden_state.float().pow(2).mean().backward()

    return call


def inference(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    @torch.no_grad()
    def call() -> None:
        model.eval()(**inputs)

    return call


PHASES = {"training": training_step, "inference": inference}


def measure(
    name: str, length: int, dtype: str, layers: int, runs: int, device: torch.device
) -> list[dict]:
    """Measure both phases of one pair of models; one row with a `reason` if theirs cannot run."""
    peer = PEERS[name]
    pair = {"ours": build_ours(peer, layers, length), "theirs": peer.build(layers, length)}
    pair = {key: model.to(device=device, dtype=DTYPES[dtype]) for key, model in pair.items()}
    inputs, rows = make_inputs(peer, length, device), []
    batch = len(inputs["input_ids"])
    try:
        training_step(pair["theirs"], inputs)()
    except RuntimeError as error:
        print(f"{name:18} {dtype:8} T={length:<5} {error}", flush=True)
        return [{"model": name, "length": length, "dtype": dtype, "reason": str(error)}]
    linear_flops = layers * linear_flops_per_token(pair["ours"]) * batch * length
    rates, measured = [matmul_rate(DTYPES[dtype], device)], {}
    for phase, make in PHASES.items():
        calls = {key: make(model, inputs) for key, model in pair.items()}
        measured[phase] = compare(calls, runs=runs, device=device)
        for model in pair.values():
            model.zero_grad(set_to_none=True)
        rates.append(matmul_rate(DTYPES[dtype], device))
    for phase, timings in measured.items():
        rate = max(rates)  # the machine's rate varies
        floor = linear_flops * (3 if phase == "training" else 1) / rate
        row = {"model": name, "attention": peer.attention, "goal": peer.goal, "phase": phase}
        row |= {"layers": layers, "length": length, "batch": batch, "dtype": dtype}
        row |= ratios(timings)
        row |= {"gemm_flops_per_second": rate, "floor_seconds": floor}
        row["ratio_at_floor"] = timings["theirs"].median / floor
        rows.append(row)
        print(
            f"{name:18} {phase:9} {dtype:8} T={length:<5} "
            f"ours {timings['ours'].median:7.3f} s  ratio {row['time_ratio']:5.2f} "
            f"(goal {peer.goal}, at the floor {row['ratio_at_floor']:5.2f})  "
            f"memory {row['memory_ratio'] or 0:5.2f}",
            flush=True,
        )
    return rows


def linear_flops_per_token(model: nn.Module) -> int:
    """Return the FLOPs of one layer's linear maps for one token."""
    layer = cast(LongspanModel, model).layers[0]
    attention, feed_forward = layer.attention, layer.feed_forward
    maps = (attention.query, attention.key, attention.value, attention.output)
    maps = (*maps, feed_forward.input, feed_forward.output)
    return sum(2 * x.weight.numel() for x in maps if x is not None)


def ratios(timings: dict[str, Timing]) -> dict[str, Any]:
    """Return both timings, and transformers' time and peak memory over ours."""
    ours, theirs = timings["ours"], timings["theirs"]
    memory = None
    if ours.peak_memory and theirs.peak_memory:
        memory = theirs.peak_memory / ours.peak_memory
    return {
        "time_ratio": theirs.median / ours.median,
        "memory_ratio": memory,
        **{key: dataclasses.asdict(timing) for key, timing in timings.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--models", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096])
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=list(DTYPES))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    keep_freed_memory()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    device = torch.device(args.device)
    versions = environment(device) | {"transformers": transformers.__version__}
    record: dict[str, Any] = {"environment": versions, "rows": [], "left_out": []}
    for name, length, dtype in itertools.product(args.models, args.lengths, args.dtypes):
        for row in measure(name, length, dtype, args.layers, args.runs, device):
            record["left_out" if "reason" in row else "rows"].append(row)
        gc.collect()
        if args.out is not None:  # what is measured outlasts an interrupt
            write_record(record, args.out)
    if args.out is None:
        write_record(record, None)


if __name__ == "__main__":
    main()
