"""Peers of the benchmark, by name."""

from typing import Any

import peer_layers as layers
from peer_layers import Peer, Sizes


def window_keys(sizes: Sizes, length: int) -> int:
    return 2 * sizes.window + 1


def window_and_global_keys(sizes: Sizes, length: int) -> int:
    return 2 * sizes.window + 2


def landmarks(sizes: Sizes, length: int) -> int:
    return sizes.landmarks


def chunk_keys(sizes: Sizes, length: int) -> int:
    return 2 * sizes.chunk * sizes.hashes


def all_keys(sizes: Sizes, length: int) -> int:
    return length


def window(sizes: Sizes, length: int) -> dict[str, Any]:
    return {"window": sizes.window}


def window_and_global(sizes: Sizes, length: int) -> dict[str, Any]:
    return {"window": sizes.window, "global_projections": True}


def nystrom(sizes: Sizes, length: int) -> dict[str, Any]:
    return {"landmarks": sizes.landmarks, "conv_kernel_size": sizes.kernel_size}


def chunks(sizes: Sizes, buckets: int) -> dict[str, Any]:
    return {"chunk": sizes.chunk, "hashes": sizes.hashes, "buckets": buckets, "wrap": True}


LONGFORMER: dict[str, Any] = {
    "package": "transformers",
    "mechanism": "longformer",
    "options": window_and_global,
    "keys": window_and_global_keys,
    "first_global": True,
}
WINDOW: dict[str, Any] = {"mechanism": "local", "options": window, "keys": window_keys}
PEERS = {
    "transformers-longformer": Peer(
        module="transformers",
        what="LongformerSelfAttention",
        build=layers.longformer,
        **LONGFORMER,
    ),
    "transformers-led": Peer(
        module="transformers", what="LEDEncoderAttention", build=layers.led, **LONGFORMER
    ),
    "transformers-bigbird": Peer(
        package="transformers",
        module="transformers",
        what="BigBirdBlockSparseAttention",
        build=layers.bigbird,
        mechanism="bigbird",
        options=lambda sizes, _: {
            "block": sizes.block,
            "num_random_blocks": sizes.random_blocks,
        },
        keys=lambda sizes, _: (5 + sizes.random_blocks) * sizes.block,
        note="draws its random blocks anew in each pass, and they may repeat other blocks",
    ),
    "transformers-nystromformer": Peer(
        package="transformers",
        module="transformers",
        what="NystromformerSelfAttention",
        build=layers.nystromformer,
        mechanism="nystrom",
        options=nystrom,
        keys=landmarks,
        note="scales the inverse by the maximum over rows and heads",
    ),
    "transformers-reformer": Peer(
        package="transformers",
        module="transformers",
        what="LSHSelfAttention",
        build=layers.reformer,
        bias=False,
        mechanism="reformer",
        options=lambda sizes, length: chunks(sizes, 2 * length // sizes.chunk) | {"scale": "none"},
        keys=chunk_keys,
        note="hides the own token by a penalty, and its hashes are drawn anew in each pass",
    ),
    "local-attention": Peer(
        package="local-attention",
        module="local_attention",
        what="LocalAttention, exact_windowsize=True",
        build=layers.local_window,
        **WINDOW,
    ),
    "local-attention-blocks": Peer(
        package="local-attention",
        module="local_attention",
        what="LocalAttention",
        build=layers.local_blocks,
        mechanism="blockwise",
        options=lambda sizes, _: {"block": sizes.window, "neighbors": [1, 1], "circle": False},
        keys=lambda sizes, _: 3 * sizes.window,
    ),
    "linformer": Peer(
        package="linformer",
        module="linformer",
        what="LinformerSelfAttention",
        build=layers.linformer,
        bias=False,
        mechanism="linformer",
        options=lambda sizes, _: {"rank": sizes.rank},
        keys=lambda sizes, _: sizes.rank,
    ),
    "nystrom-attention": Peer(
        package="nystrom-attention",
        module="nystrom_attention",
        what="NystromAttention",
        build=layers.nystrom,
        bias=False,
        mechanism="nystrom",
        options=nystrom,
        keys=landmarks,
        note="scales the inverse by the maximum over rows and heads",
    ),
    "performer-pytorch": Peer(
        package="performer-pytorch",
        module="performer_pytorch",
        what="FastAttention",
        build=layers.performer,
        mechanism="performer",
        options=lambda sizes, _: {"features": sizes.features},
        keys=all_keys,
        note="adds 1e-4 to its features, and all heads share one projection",
    ),
    "reformer-pytorch": Peer(
        package="reformer-pytorch",
        module="reformer_pytorch",
        what="LSHAttention",
        build=layers.lsh,
        mechanism="reformer",
        options=lambda sizes, length: chunks(sizes, length // sizes.chunk),
        keys=chunk_keys,
        note="hides the own token by a penalty, and its hashes are drawn anew in each pass",
    ),
    "sinkhorn-transformer": Peer(
        package="sinkhorn-transformer",
        module="sinkhorn_transformer",
        what="SinkhornAttention, non_permutative=False",
        build=layers.sinkhorn,
        mechanism="sinkhorn",
        options=lambda sizes, _: {"block": sizes.sorted_block, "temperature": 0.75},
        keys=lambda sizes, _: 2 * sizes.sorted_block,
        note="reads sorted keys in place of sorted values",
    ),
    "linear-attention-transformer": Peer(
        package="linear-attention-transformer",
        module="linear_attention_transformer",
        what="linear_attn",
        build=layers.linear,
        mechanism="linear",
        options=lambda *_: {},
        keys=all_keys,
        note="softmax of queries over the width and of keys over the tokens, not elu + 1",
    ),
    "flash-linear-attention": Peer(
        package="flash-linear-attention",
        module="fla",
        what="chunk_linear_attn",
        build=layers.flash_linear,
        mechanism="linear",
        options=lambda *_: {},
        keys=all_keys,
        causal=True,
        cuda=True,
        note="adds 1e-10 to its denominators",
    ),
    "flash-attn": Peer(
        package="flash-attn",
        module="flash_attn",
        what="flash_attn_func",
        build=layers.flash,
        cuda=True,
        **WINDOW,
    ),
    "varlen-attn": Peer(
        package="torch",
        module="torch.nn.attention.varlen",
        what="varlen_attn",
        build=layers.varlen,
        cuda=True,
        **WINDOW,
    ),
    "flex-attention": Peer(
        package="torch",
        module="torch.nn.attention.flex_attention",
        what="flex_attention, compiled",
        build=layers.flex,
        cuda=True,
        **WINDOW,
    ),
    "natten": Peer(
        package="natten",
        module="natten",
        what="na1d",
        build=layers.neighborhood,
        cuda=True,
        note="windows at the ends of a row are moved inside, not cut",
        **WINDOW,
    ),
}
