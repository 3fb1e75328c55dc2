"""Base class of all models, and the output of the Transformer without a head."""

import dataclasses
from inspect import signature
from typing import Any, TypedDict, TypeVar, cast

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from longspan.models.adaptive import Projection
from longspan.models.attention_layer import ProjectedAttention
from longspan.models.cache import LongspanCache, OutputWithCache
from longspan.models.config import LongspanConfig
from longspan.models.embeddings import Embeddings
from longspan.models.relative import RelativePositions
from longspan.models.short_convolution import ShortConvolution
from longspan.shapes import Float

Output = TypeVar("Output", bound=ModelOutput)


class Requests(TypedDict, total=False):
    """Arguments of every model for what a call returns; None: as the configuration says.

    Attributes:
        output_attentions: whether to return the weights of each layer.
        output_hidden_states: whether to return the states after each layer.
        return_dict: False: return a tuple.
    """

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None


class LongspanPreTrainedModel(PreTrainedModel):
    """Base of all models: configuration, initialization, activation checkpointing."""

    config: LongspanConfig
    config_class = LongspanConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Layer", "ReversibleLayer"]
    # Whether a training loop passes the number of labels of a whole batch to `forward`.
    accepts_loss_kwargs = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "accepts_loss_kwargs" not in vars(cls):
            cls.accepts_loss_kwargs = "num_items_in_batch" in signature(cls.forward).parameters

    def __init__(self, config: LongspanConfig):
        config.check()
        super().__init__(config)
        if config.input_features is not None and self.main_input_name == "input_ids":
            self.main_input_name = "input_values"

    def initialize_weights(self) -> None:
        """Initialize all weights except those of the mechanisms, which initialize themselves.

        Linear maps and embeddings are normal with standard deviation `initializer_range`, biases
        are zero, norms the identity. A mechanism with projections of its own (Longformer's global
        ones) starts with copies of the layer's.
        """
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, ProjectedAttention):
                module.initialize_mechanism()
            if isinstance(module, LongspanPreTrainedModel):
                module.initialize_shared_parameter()
        _apply_freeze(self)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a module; some have parameters of their own."""
        super()._init_weights(module)
        if isinstance(module, RelativePositions):
            module.initialize(self.config.initializer_range)
        if isinstance(module, Projection | ShortConvolution):
            module.initialize()

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Change the vocabulary of all parts; see transformers' method of this name."""
        arguments = (new_num_tokens, pad_to_multiple_of, mean_resizing)
        resized = super().resize_token_embeddings(*arguments)
        for part in self.modules():
            if part is not self and isinstance(part, LongspanPreTrainedModel):
                table = cast(nn.Embedding, part.get_input_embeddings())
                if table.num_embeddings != resized.num_embeddings:
                    part.resize_token_embeddings(*arguments)
                part.config.vocab_size = self.config.vocab_size
        return resized

    def as_requested(self, output: Output, return_dict: bool | None) -> Output | tuple:
        """Return an output, or a tuple of its fields if the caller or configuration asks for it."""
        if return_dict is None:
            return_dict = self.config.return_dict
        return output if return_dict else output.to_tuple()

    def initialize_shared_parameter(self) -> None:
        """Complete the parameter that the layers share; the default has none."""


@dataclasses.dataclass
class LongspanOutput(OutputWithCache):
    """Output of the Transformer without a head.

    Attributes:
        last_hidden_state: states of the tokens (B, T, M), zero at padded positions; as all states,
            of width 2 M with reversible residual connections.
        pooler_output: pooled state (B, M), as `pooling` defines it; None for tokens that continue
            a cache.
        cache: state for the next tokens, or None.
        hidden_states: embeddings and states after each layer, on request; the last ones are
            `last_hidden_state`.
        attentions: weights of the layers, on request.
        cross_attentions: weights of the layers for the encoder's tokens, on request.
        auxiliary_loss: loss from which the mechanisms' own parameters learn in training, summed
            over the layers; None if there is none. See `Attention.auxiliary_loss`.
    """

    last_hidden_state: Float[Tensor, "B T M"] | None = None
    pooler_output: Float[Tensor, "B M"] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    cache: LongspanCache | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    auxiliary_loss: Float[Tensor, ""] | None = None


def _apply_freeze(model: PreTrainedModel) -> None:
    """Clear `requires_grad` of the parameters that the model's configuration freezes."""
    if model.config.freeze == "none":
        return
    trained = {
        id(module.positions.weight)
        for module in model.modules()
        if isinstance(module, Embeddings)
        and isinstance(module.positions, nn.Embedding)
        and module.config.freeze == "all-but-positions"
    }
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained)
