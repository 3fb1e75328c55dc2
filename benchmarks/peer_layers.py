"""Attention layers of other libraries, and ours.

A layer maps (B, T, M) to (B, T, M): projections of queries, keys and values, attention, and an
output projection. Attention of a library that takes q, k and v, or has no output projection, gets
linear maps around it, so that both sides have equally many. There is no dropout or padding.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.models import LongspanConfig
from longspan.models.attention_layer import LayerContext, SelfAttention

GLOBAL_TOKEN = 1e4  # transformers' mark of global tokens in additive masks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the layers of both sides.

    Attributes:
        width: width of the layer, M.
        heads: number of heads.
        window: keys on each side of a query.
        block: tokens of a block of BigBird.
        random_blocks: random blocks of BigBird.
        landmarks: landmarks of Nystromformer.
        kernel_size: width of Nystromformer's convolution.
        chunk: tokens of a chunk of Reformer.
        hashes: hash rounds of Reformer.
        rank: projected keys of Linformer.
        features: random features of Performer.
        sorted_block: tokens of a block of Sinkhorn attention.
    """

    width: int = 512
    heads: int = 8
    window: int = 256
    block: int = 64
    random_blocks: int = 3
    landmarks: int = 64
    kernel_size: int = 33
    chunk: int = 64
    hashes: int = 2
    rank: int = 256
    features: int = 256
    sorted_block: int = 128

    @property
    def head_dim(self) -> int:
        """Head dimension, D."""
        return self.width // self.heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Layer of another library, and ours.

    Attributes:
        package: name of the library in package indexes.
        module: module to import.
        what: class or function that computes attention.
        build: builder of its layer, given sizes and length.
        mechanism: our mechanism.
        options: our options, given sizes and length.
        keys: keys in the softmax of a query (landmarks, features or all tokens if there is none).
        causal: whether keys after the query are excluded.
        first_global: whether the first token is global.
        cuda: whether it needs a GPU.
        bias: whether its maps to queries, keys and values have biases; ours have as many.
        note: how its function differs from ours.
    """

    package: str
    module: str
    what: str
    build: Callable[[Sizes, int], nn.Module]
    mechanism: str
    options: Callable[[Sizes, int], dict[str, Any]]
    keys: Callable[[Sizes, int], int]
    causal: bool = False
    first_global: bool = False
    cuda: bool = False
    bias: bool = True
    note: str = ""


class OwnLayer(nn.Module):
    """Our attention layer of a model."""

    first: Tensor | None

    def __init__(self, peer: Peer, sizes: Sizes, length: int):
        super().__init__()
        config = LongspanConfig(
            hidden_size=sizes.width,
            num_attention_heads=sizes.heads,
            max_position_embeddings=length,
            attention=peer.mechanism,
            qkv_bias=peer.bias,
            attention_options=peer.options(sizes, length),
            max_global_tokens=1 if peer.first_global else None,
            is_decoder=peer.causal,
            hidden_dropout_prob=0.0,
            attention_dropout=0.0,
        )
        self.layer = SelfAttention(config, 0)
        first = torch.arange(length)[None] < 1 if peer.first_global else None
        self.register_buffer("first", first)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the tokens of `x`."""
        return self.layer(x, LayerContext(global_mask=self.first)).states


class Projected(nn.Module):
    """Attention of a library on queries, keys and values, between linear maps.

    Args:
        sizes: sizes of the layer.
        attend: attention, or a module of it.
        inputs: "qkv", or "qv" if keys are queries.
        time_first: whether it takes (B, T, H, D), not (B, H, T, D).
    """

    def __init__(
        self,
        sizes: Sizes,
        attend: Callable[..., Tensor],
        inputs: str = "qkv",
        time_first: bool = False,
    ):
        super().__init__()
        maps = {"q": "query", "k": "key", "v": "value"}
        for name in [*(maps[x] for x in inputs), "output"]:
            self.add_module(name, nn.Linear(sizes.width, sizes.width))
        self.maps = [maps[x] for x in inputs]
        self.attend, self.heads, self.time_first = attend, sizes.heads, time_first

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the tokens of `x`."""
        parts = [self.get_submodule(name)(x).unflatten(-1, (self.heads, -1)) for name in self.maps]
        if not self.time_first:
            parts = [part.transpose(1, 2) for part in parts]
        out = self.attend(*parts)
        out = out if self.time_first else out.transpose(1, 2)
        return self.get_submodule("output")(out.flatten(2))


class Called(nn.Module):
    """Layer of a library with its own arguments, and an output projection if it has none.

    Args:
        inner: its module.
        call: function of the module, `x` and the tensors that returns the states.
        output: width of the missing output projection.
        tensors: tensors that the call needs, such as masks.
    """

    def __init__(
        self,
        inner: nn.Module,
        call: Callable[..., Tensor],
        output: int | None = None,
        tensors: tuple[Tensor, ...] = (),
    ):
        super().__init__()
        self.inner, self.call, self.count = inner, call, len(tensors)
        self.output = nn.Identity() if output is None else nn.Linear(output, output)
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"tensor{i}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the tokens of `x`."""
        tensors = (self.get_buffer(f"tensor{i}") for i in range(self.count))
        return self.output(self.call(self.inner, x, *tensors))


def _call_longformer(inner: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    first = mask > 0
    return inner(
        x,
        attention_mask=mask,
        is_index_masked=mask < 0,
        is_index_global_attn=first,
        is_global_attn=True,
    )[0]


def _first_is_global(length: int) -> Tensor:
    return GLOBAL_TOKEN * (torch.arange(length)[None] < 1)


def longformer(sizes: Sizes, length: int) -> nn.Module:
    from transformers.models.longformer import modeling_longformer as library

    config = library.LongformerConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        num_hidden_layers=1,
        attention_window=[2 * sizes.window],
        attention_probs_dropout_prob=0.0,
    )
    inner = library.LongformerSelfAttention(config, 0)
    return Called(inner, _call_longformer, sizes.width, (_first_is_global(length),))


def led(sizes: Sizes, length: int) -> nn.Module:
    from transformers.models.led import modeling_led as library

    config = library.LEDConfig(
        d_model=sizes.width,
        encoder_layers=1,
        encoder_attention_heads=sizes.heads,
        attention_window=[2 * sizes.window],
        attention_dropout=0.0,
    )
    inner = library.LEDEncoderAttention(config, 0)
    return Called(inner, _call_longformer, None, (_first_is_global(length),))


def bigbird(sizes: Sizes, length: int) -> nn.Module:
    from transformers.models.big_bird import modeling_big_bird as library

    config = library.BigBirdConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        block_size=sizes.block,
        num_random_blocks=sizes.random_blocks,
        max_position_embeddings=length,
    )

    def call(inner: nn.Module, x: Tensor, *masks: Tensor) -> Tensor:
        blocks, band, rows, columns = masks
        return inner(
            x,
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocks,
            to_blocked_mask=blocks,
        )[0]

    masks = library.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, length), sizes.block
    )
    inner = library.BigBirdBlockSparseAttention(config, seed=0)
    return Called(inner, call, sizes.width, tuple(masks))


def nystromformer(sizes: Sizes, length: int) -> nn.Module:
    from transformers.models.nystromformer import modeling_nystromformer as library

    config = library.NystromformerConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        num_landmarks=sizes.landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=sizes.kernel_size,
        attention_probs_dropout_prob=0.0,
    )
    inner = library.NystromformerSelfAttention(config)
    return Called(inner, lambda inner, x: inner(x)[0], sizes.width)


def reformer(sizes: Sizes, length: int) -> nn.Module:
    from transformers.models.reformer import modeling_reformer as library

    config = library.ReformerConfig(
        hidden_size=sizes.width,
        num_attention_heads=sizes.heads,
        attention_head_size=sizes.head_dim,
        attn_layers=["lsh"],
        lsh_attn_chunk_length=sizes.chunk,
        num_hashes=sizes.hashes,
        num_buckets=2 * length // sizes.chunk,
        axial_pos_embds=False,
        max_position_embeddings=length,
        lsh_attention_probs_dropout_prob=0.0,
    )
    inner = library.LSHSelfAttention(config, 0)
    return Called(inner, lambda inner, x: inner(x).hidden_states, sizes.width)


def local_window(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("local_attention")
    return Projected(sizes, library.LocalAttention(sizes.window, exact_windowsize=True))


def local_blocks(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("local_attention")
    return Projected(sizes, library.LocalAttention(sizes.window))


def linformer(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("linformer")
    return library.LinformerSelfAttention(sizes.width, length, k=sizes.rank, heads=sizes.heads)


def nystrom(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("nystrom_attention")
    return library.NystromAttention(
        sizes.width,
        dim_head=sizes.head_dim,
        heads=sizes.heads,
        num_landmarks=sizes.landmarks,
        residual_conv_kernel=sizes.kernel_size,
    )


def performer(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("performer_pytorch")
    return Projected(sizes, library.FastAttention(sizes.head_dim, nb_features=sizes.features))


def lsh(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("reformer_pytorch")
    inner = library.LSHAttention(bucket_size=sizes.chunk, n_hashes=sizes.hashes)
    layer = Projected(
        sizes, lambda q, v: inner(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(q), "qv"
    )
    layer.inner = inner
    return layer


def sinkhorn(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("sinkhorn_transformer.sinkhorn_transformer")
    inner = library.SinkhornAttention(
        sizes.sorted_block,
        sizes.width,
        sizes.head_dim,
        sizes.heads,
        length,
        non_permutative=False,
    )
    return Projected(sizes, inner)


def linear(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
    return Projected(sizes, library.linear_attn)


def flash_linear(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("fla.ops.linear_attn")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return library.chunk_linear_attn(F.elu(q) + 1, F.elu(k) + 1, v, scale=1.0)[0]

    return Projected(sizes, attend, time_first=True)


def flash(sizes: Sizes, length: int) -> nn.Module:
    library, window = importlib.import_module("flash_attn"), (sizes.window, sizes.window)
    attend = functools.partial(library.flash_attn_func, window_size=window)
    return Projected(sizes, attend, time_first=True)


def varlen(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("torch.nn.attention.varlen")
    window = (sizes.window, sizes.window)

    @functools.cache
    def ends(device: torch.device) -> Tensor:
        return torch.tensor([0, length], dtype=torch.int32, device=device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        rows = ends(q.device)
        out = library.varlen_attn(q, k, v, rows, rows, length, length, window_size=window)
        return out[None]

    return Projected(sizes, attend, time_first=True)


def flex(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("torch.nn.attention.flex_attention")
    compiled = torch.compile(library.flex_attention, dynamic=False)

    def in_window(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= sizes.window

    @functools.cache
    def mask(device: torch.device) -> Any:
        return library.create_block_mask(in_window, None, None, length, length, device=device)

    return Projected(sizes, lambda q, k, v: compiled(q, k, v, block_mask=mask(q.device)))


def neighborhood(sizes: Sizes, length: int) -> nn.Module:
    library = importlib.import_module("natten.functional")
    attend = functools.partial(library.na1d, kernel_size=2 * sizes.window + 1)
    return Projected(sizes, attend, time_first=True)
