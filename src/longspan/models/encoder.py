"""The encoder: token ids or numbers in, states and a summary of each input out."""

import math
from typing import cast

import torch
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from longspan.attention import MECHANISMS
from longspan.attention.masking import apply_mask
from longspan.errors import InputError, OptionError
from longspan.models.config import LongspanConfig
from longspan.models.dropout import Dropout
from longspan.models.layers import Layer, SelfAttention
from longspan.models.positions import rotations, sinusoids
from longspan.models.split import Split
from longspan.shapes import Bool, Float, Int


class Embeddings(nn.Module):
    """Words or numbers, positions, and the learned summary that `pooling="cls"` puts first."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        width = config.hidden_size
        self.config = config
        features = config.input_features
        self.words = nn.Embedding(config.vocab_size, width) if features is None else None
        self.values = None if features is None else nn.Linear(features, width)
        self.summary = nn.Embedding(1, width) if config.pooling == "cls" else None
        learned = config.position == "learned"
        self.positions = nn.Embedding(config.max_states, width) if learned else None
        post = config.norm == "post"
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if post else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, inputs: Int[Tensor, "B T"] | Float[Tensor, "B T F"]
    ) -> Float[Tensor, "B N M"]:
        """Embed; N is T, or T + 1 with a summary vector."""
        x = self._looked_up(inputs) if self.values is None else self.values(inputs)
        if self.summary is not None:
            x = torch.cat((self.summary.weight.expand(len(x), 1, -1), x), dim=1)
        return self.dropout(self.norm(self._placed(x)))

    def _looked_up(self, input_ids: Tensor) -> Tensor:
        try:
            return cast(nn.Embedding, self.words)(input_ids)
        except IndexError as error:
            low, high = int(input_ids.min()), int(input_ids.max())
            raise InputError(
                f"token ids must be in 0..{self.config.vocab_size - 1}, got {low}..{high}; "
                "check the tokenizer, or build the model with a larger vocab_size"
            ) from error

    def _placed(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            return x + self.positions.weight[: x.shape[1]]
        if self.config.position != "sinusoidal":
            return x
        table = sinusoids(*x.shape[1:], device=x.device, dtype=x.dtype)
        # Root mean square as that of the initial words, or they would be lost beside it.
        return x + math.sqrt(2) * self.config.initializer_range * table


class LongspanPreTrainedModel(PreTrainedModel):
    """What all models of the family share: configuration, initialisation, checkpointing."""

    config_class = LongspanConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer"]

    def __init__(self, config: LongspanConfig):
        config.check()
        super().__init__(config)

    def initialize_weights(self) -> None:
        """Draw linear maps and embeddings; mechanisms initialise themselves.

        Weights are normal with deviation `initializer_range`, biases zero, norms the identity.
        """
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.restore_mechanism()


class LongspanModel(LongspanPreTrainedModel):
    """The encoder without a head."""

    split: Split | None = None  # over which processes a sequence is spread

    def __init__(self, config: LongspanConfig):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        layers = [Layer(config, i) for i in range(config.num_hidden_layers)]
        for layer in layers[1:]:
            layer.attention.mechanism.share(layers[0].attention.mechanism)
        self.layers = nn.ModuleList(layers)
        pre = config.norm == "pre"
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps=eps) if pre else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of words, or the map that takes continuous inputs."""
        return cast(nn.Module, self.embeddings.words or self.embeddings.values)

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table of words."""
        self.embeddings.words = cast(nn.Embedding, value)

    def split_over(self, group: distributed.ProcessGroup | None) -> None:
        """From now on spread every sequence over the processes of a group (None: all of them).

        All of them call `forward` with the same inputs and get the same outputs.

        Raises:
            OptionError: the mechanism does not let its queries be shared out, and why.
        """
        layers = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for layer in layers:
            if reasons := layer.mechanism.split_refusals():
                name = self.config.attention
                raise OptionError(
                    f"{name} cannot share positions out among processes: {'; '.join(reasons)}; "
                    "use --parallel ddp or fsdp"
                )
        self.split = Split(group)
        for layer in layers:
            layer.split = self.split

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        global_attention_mask: Bool[Tensor, "B T"] | Int[Tensor, "B T"] | None = None,
        input_values: Float[Tensor, "B T F"] | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode.

        Args:
            input_ids: token ids.
            attention_mask: True or 1 at real tokens; None: all are real. What stands at the
                other positions has no influence on the result.
            global_attention_mask: True or 1 at tokens that attend to all and are attended by
                all, for mechanisms that have global tokens.
            input_values: the continuous inputs of a model with `input_features`, in place of
                `input_ids`.

        Returns:
            `last_hidden_state` (B, T, M), zero at padded positions, and `pooler_output` (B, M),
            the summary that the configuration's `pooling` asks for. Both are finite (and free
            of gradients with regard to the tokens) for a row without any real token.

        Raises:
            InputError: more tokens than `max_position_embeddings`, an id outside the vocabulary,
                a malformed mask, inputs of the other kind, or what the mechanism refuses.
        """
        inputs = self._inputs(input_ids, input_values)
        states = self.config.states(inputs.shape[1])
        real = as_mask("attention_mask", attention_mask, inputs)
        spread = as_mask("global_attention_mask", global_attention_mask, inputs)
        x = self.embeddings(inputs)
        key_mask, global_mask, turns = real, spread, None
        if states > inputs.shape[1]:
            key_mask = None if real is None else _prepended(real, True)
            global_mask = self._with_summary(spread, inputs)
        if self.config.position == "rotary":
            turns = rotations(states, self.config.head_dim, device=x.device, dtype=x.dtype)
        x = self.norm(self._mixed(x, key_mask, global_mask, turns))
        if key_mask is not None:
            x = apply_mask(x, key_mask[..., None])
        tokens = x[:, states - inputs.shape[1] :]
        return BaseModelOutputWithPooling(
            last_hidden_state=tokens, pooler_output=self._pooled(x, key_mask)
        )

    def _mixed(
        self, x: Tensor, key_mask: Tensor | None, global_mask: Tensor | None, turns: Tensor | None
    ) -> Tensor:
        """Through all layers; a split sequence is whole again behind them."""
        split, positions = self.split, x.shape[1]
        if split is not None:
            if key_mask is None:
                key_mask = x.new_ones(x.shape[:2], dtype=torch.bool)
            x, turns = split.own(x), split.own(turns)
        for layer in self.layers:
            x = layer(x, key_mask, global_mask, turns)
        return x if split is None else split.whole(x, 1)[:, :positions]

    def _inputs(self, input_ids: Tensor | None, input_values: Tensor | None) -> Tensor:
        """The one kind of input that this model takes."""
        features = self.config.input_features
        taken = input_ids if features is None else input_values
        name = "input_ids" if features is None else "input_values"
        if taken is None or (input_ids is not None and input_values is not None):
            raise InputError(f"this model takes {name} alone (input_features={features})")
        if features is not None and (taken.ndim != 3 or taken.shape[2] != features):
            raise InputError(
                f"input_values must be (B, T, {features}) numbers, got {tuple(taken.shape)}"
            )
        return taken

    def _with_summary(self, spread: Tensor | None, inputs: Tensor) -> Tensor | None:
        """The global mask when a summary stands first: itself global, where there are globals."""
        if not MECHANISMS[self.config.attention].traits.global_tokens:
            # A mask from the caller goes to the mechanism, which says why it refuses it.
            return None if spread is None else _prepended(spread, False)
        if spread is None:
            spread = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
        return _prepended(spread, True)

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.config.pooling != "mean":
            return x[:, 0]
        if key_mask is None:
            return x.mean(1)
        # The states of padded positions are zero already.
        return x.sum(1) / key_mask.sum(1, keepdim=True).clamp(min=1)


def as_mask(what: str, mask: Tensor | None, inputs: Tensor) -> Tensor | None:
    """A caller's mask as booleans (B, T).

    Raises:
        InputError: it is neither boolean nor integer, or shaped unlike the tokens.
    """
    if mask is None:
        return None
    if mask.is_floating_point() or mask.is_complex():
        raise InputError(f"{what} must be boolean or 0/1 integers (1 = real), got {mask.dtype}")
    if mask.shape != inputs.shape[:2]:
        raise InputError(
            f"{what} must have the shape of the inputs, {tuple(inputs.shape[:2])}, "
            f"got {tuple(mask.shape)}"
        )
    return mask.bool()


def _prepended(mask: Tensor, value: bool) -> Tensor:
    return torch.cat((torch.full_like(mask[:, :1], value), mask), dim=1)
