"""`torch.nn.MultiheadAttention` with any mechanism."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attention import Inputs, LayerInput, build
from longspan.attention.dispatch import without_autocast
from longspan.errors import InputError, OptionError
from longspan.nn.masks import padding_mask, pair_bias
from longspan.nn.nested import PackedTokens
from longspan.nn.weights import compute_weights

OWN = "mechanism."  # prefix of the mechanism's tensors in a state dict


class MultiheadAttention(nn.MultiheadAttention):
    """Drop-in replacement of `torch.nn.MultiheadAttention` with any mechanism.

    Constructor, call and names in the state dict are torch's. `attention="full"` returns torch's
    outputs, weights and gradients. Its state dict loads into the other mechanisms without a missing
    key: parameters of the mechanism itself, which torch's checkpoints do not contain, keep their
    initial values, and projections of its own start as copies of those loaded.

    Differences from torch: a row without any key is the output bias instead of NaN; weights are
    those without dropout; nested tensors work in training as well; the fused inference path of
    `torch.nn.TransformerEncoderLayer`, which bypasses the module, is never taken.

    Attributes:
        mechanism: the mechanism; its `backend_used` names the body of the last call.
        auxiliary_loss: loss of the last call in training, which the caller adds to that of the
            task, as models of longspan do: parameters of `indexed`, of a distilled `linear` and of
            a learned compression learn from it alone. None of other mechanisms, and in evaluation.
    """

    auxiliary_loss: Tensor | None = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "full",
        attention_options: dict[str, Any] | None = None,
    ):
        """Create the projections with torch's initial values, and the mechanism.

        Args:
            embed_dim: width of queries and outputs.
            num_heads: number of heads.
            dropout: probability with which a weight is dropped in training.
            bias: whether the projections have a bias.
            add_bias_kv: must be False: a learned key at the end has no place among positions.
            add_zero_attn: must be False, for the same reason.
            kdim: width of the keys; None: `embed_dim`.
            vdim: width of the values; None: `embed_dim`.
            batch_first: whether inputs are (B, T, width) instead of (T, B, width).
            device: device of all tensors; None: the default device.
            dtype: dtype of all tensors; None: the default dtype.
            attention: name of the mechanism.
            attention_options: its options, and the arguments of `build` other than `heads`,
                `head_dim` and `weight_dropout`: `causal`, `max_length`, `layer`, `backend`,
                `max_global_tokens`.

        Raises:
            UnknownNameError: there is no such mechanism or option.
            OptionError: an argument is not supported, or a size is missing or invalid.
        """
        options = dict(attention_options or {})
        _check_arguments(embed_dim, num_heads, add_bias_kv or add_zero_attn, options)
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        # The fused path of TransformerEncoderLayer reads this flag, and would bypass `forward`.
        self._qkv_same_embed_dim = False
        options |= {"heads": num_heads, "head_dim": self.head_dim}
        # Seeded draws need values, which the meta device does not have.
        with torch.device("cpu"):
            mechanism = build(attention, weight_dropout=dropout, **options)
        weight = self.out_proj.weight
        self.mechanism = mechanism.to(device=weight.device, dtype=weight.dtype)
        self._copy_projections()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        global_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention.

        Args:
            query: (B, T, embed_dim) if `batch_first`, else (T, B, embed_dim); (T, embed_dim)
                without a batch; or a nested tensor (B, *, embed_dim) of either layout.
            key: the same with S tokens and width kdim. Mechanisms that read the layer's input
                (`traits.needs_layer_input`) read this tensor, for queries and values as well.
            value: the same with S tokens and width vdim.
            key_padding_mask: True at padding (B, S), as in torch and opposite to the masks of
                mechanisms; or float, added to the scores: 0 and -inf, or, with `traits.bias`, any
                numbers.
            need_weights: whether to return the weights, which form a T x S matrix: True, as in
                torch, for short inputs only.
            attn_mask: (T, S) or (B * num_heads, T, S); boolean, True at hidden pairs, or float,
                added to the scores. The causal mask of a causal mechanism, or, with `traits.bias`,
                any mask.
            average_attn_weights: whether to average the weights over heads.
            is_causal: hint that `attn_mask`, which may then be None, is the causal mask.
            global_mask: True at global tokens (B, S); of nested tensors: all tokens in one row.

        Returns:
            Outputs in the layout of the query, and weights (B, T, S), or (B, num_heads, T, S) if
            they are not averaged, or None.

        Raises:
            InputError: the inputs are not supported; the message says why.
            NoWeightsError: the mechanism has no weights.
        """
        inputs = (query, key, value)
        if any(x.is_nested for x in inputs):
            flags = {
                "key_padding_mask": key_padding_mask is not None,
                "attn_mask": attn_mask is not None,
                "is_causal": is_causal and not self.mechanism.causal,
                "need_weights": need_weights,
            }
            return self._forward_nested(inputs, flags, global_mask), None
        _check_shapes(inputs, (self.embed_dim, self.kdim, self.vdim))
        single = query.dim() == 2
        layer_input = self._layer_input(self._batch(key))
        q, k, v = (self._heads(x) for x in self._project([self._batch(x) for x in inputs]))
        if single:
            key_padding_mask, global_mask = _first(key_padding_mask), _first(global_mask)
        key_mask, added = padding_mask(key_padding_mask, (len(k), k.shape[2]), self.mechanism)
        bias = _sum(added, pair_bias(attn_mask, is_causal, q, k.shape[2], self.mechanism), q)
        arguments: dict[str, Any] = {"key_mask": key_mask, "global_mask": global_mask}
        arguments |= {"bias": bias, "layer_input": layer_input}
        out = self.out_proj(self.mechanism(q, k, v, **arguments).transpose(1, 2).flatten(2))
        self.auxiliary_loss = self._loss(q, k, v, key_mask, layer_input)
        weights = compute_weights(self.mechanism, q, k, v, arguments) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return out[0], weights if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _forward_nested(
        self, inputs: tuple[Tensor, ...], flags: dict[str, bool], global_mask: Tensor | None
    ) -> Tensor:
        """Attend within each document of nested tensors, without padding."""
        names = [name for name, is_given in flags.items() if is_given]
        if names:
            raise InputError(f"nested tensors exclude {', '.join(names)}")
        packed = PackedTokens.of(inputs)
        layer_input = self._layer_input(packed.tokens[1][None])
        rows = self._project(list(packed.tokens))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in rows)
        out = self.mechanism.packed(
            q, k, v, packed.cu_seqlens, global_mask=global_mask, layer_input=layer_input
        )
        self.auxiliary_loss = None
        if self._has_loss:  # it reads whole documents, side by side
            q, k, v = (self._heads(packed.pad(x)) for x in rows)
            states = self._layer_input(packed.pad(packed.tokens[1]))
            self.auxiliary_loss = self._loss(q, k, v, packed.real, states)
        return packed.nest(self.out_proj(out.flatten(1)))

    @property
    def _has_loss(self) -> bool:
        return self.training and self.mechanism.has_auxiliary_loss

    def _loss(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layer_input: LayerInput | None
    ) -> Tensor | None:
        """Return `auxiliary_loss`; tokens that the mask hides have no part in it.

        Raises:
            InputError: there are other numbers of queries and keys.
        """
        if not self._has_loss:
            return None
        if q.shape[2] != k.shape[2]:
            raise InputError(
                f"the auxiliary loss of {self.mechanism.name} is that of self-attention, got "
                f"{q.shape[2]} queries and {k.shape[2]} keys; for cross-attention leave out the "
                "options that ask for it"
            )
        with without_autocast(q.device):
            return self.mechanism.auxiliary_loss(
                Inputs(q, k, v, layer_input=layer_input, mask=mask)
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: all but the graph of the last call."""
        return {**self.__dict__, "auxiliary_loss": None}

    def _batch(self, x: Tensor) -> Tensor:
        """Return an input as (B, T, width)."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, inputs: list[Tensor]) -> list[Tensor]:
        """Project query, key and value (..., width); what the mechanism ignores is not computed."""
        query, key, value = inputs
        (wq, bq), (wk, bk), (wv, bv) = self._projections()
        reads, v = self.mechanism.traits.inputs, F.linear(value, wv, bv)
        is_stand_in = query.shape[:-1] == v.shape[:-1] and "q" not in reads
        q = v if is_stand_in else F.linear(query, wq, bq)
        return [q, F.linear(key, wk, bk) if "k" in reads else v, v]

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of the projections of query, key and value."""
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = list(self.in_proj_weight.chunk(3))
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return list(zip(weights, biases, strict=True))

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (..., T, embed_dim) to (..., heads, T, head_dim)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def _layer_input(self, states: Tensor) -> LayerInput | None:
        """Return the input of the keys and its projections, if the mechanism needs them."""
        if not self.mechanism.traits.needs_layer_input or self.in_proj_weight is None:
            return None
        (query, _), (key, _), _ = self._projections()
        return LayerInput(
            states=states,
            query=lambda p: self._heads(F.linear(p.to(query.dtype), query)),
            key=lambda p: self._heads(F.linear(p.to(key.dtype), key)),
        )

    def _copy_projections(self) -> None:
        """Start projections of the mechanism's own as copies of the layer's."""
        if self.in_proj_weight is None or self.mechanism.traits.inputs != "qkv":
            return
        copies = []
        for weight, bias in self._projections():
            rows, columns = weight.shape
            linear = nn.Linear(columns, rows, bias is not None, device="meta")
            linear.weight = nn.Parameter(weight.detach())
            if bias is not None:
                linear.bias = nn.Parameter(bias.detach())
            copies.append(linear)
        self.mechanism.copy_projections(*copies)

    def _reset_parameters(self) -> None:
        """Initialize the projections as torch does."""
        same = self._qkv_same_embed_dim
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = same

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Complete a checkpoint of torch with the current tensors of the mechanism.

        Others, such as that of a head loaded with `strict=False`, leave the mechanism as it is.
        """
        super()._load_from_state_dict(state_dict, prefix, *args)
        has_own = any(name.startswith(prefix + OWN) for name in state_dict)
        query = "q_proj_weight" if self.in_proj_weight is None else "in_proj_weight"
        if prefix + query in state_dict and not has_own:
            self._copy_projections()
            tensors = self.mechanism.state_dict(prefix=prefix + OWN)
            state_dict.update(tensors)


def _check_arguments(embed_dim, num_heads, extra_key: bool, options: dict[str, Any]) -> None:
    """Raise OptionError with every reason why these are not the arguments of a layer."""
    reasons = []
    sizes = all(type(x) is int and x > 0 for x in (embed_dim, num_heads))
    if not sizes or embed_dim % num_heads:
        got = f"embed_dim={embed_dim!r:.40} and num_heads={num_heads!r:.40}"
        reasons.append(f"embed_dim must be a multiple of num_heads, got {got}")
    if extra_key:
        expected = "add_bias_kv and add_zero_attn must be False"
        reasons.append(f"{expected}: a key without a position is in no pattern")
    if reserved := sorted({"heads", "head_dim", "weight_dropout"} & set(options)):
        remedy = "they follow from embed_dim, num_heads and dropout"
        reasons.append(f"attention_options must not contain {', '.join(reserved)}: {remedy}")
    if reasons:
        raise OptionError(f"MultiheadAttention cannot be built: {'; '.join(reasons)}")


def _first(mask: Tensor | None) -> Tensor | None:
    """Return a mask without a batch as the only one of a batch."""
    return None if mask is None else mask[None]


def _sum(added: Tensor | None, bias: Tensor | None, q: Tensor) -> Tensor | None:
    """Add the numbers of keys (B, S) to a bias of pairs."""
    if added is None:
        return bias
    added = added.to(q.dtype)[:, None, None].expand(-1, -1, q.shape[2], -1)
    return added if bias is None else bias + added


def _check_shapes(inputs: tuple[Tensor, ...], widths: tuple[int, ...]) -> None:
    """Raise InputError unless these are query, key and value of these widths."""
    _, key, value = inputs
    right = {x.dim() for x in inputs} in ({2}, {3}) and key.shape[:-1] == value.shape[:-1]
    if not right or tuple(x.shape[-1] for x in inputs) != widths:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        form = f"of widths {widths}, all with or all without a batch, key and value equally long"
        raise InputError(f"query, key and value must be {form}; got shapes {shapes}")
