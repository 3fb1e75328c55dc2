"""Language models: masked tokens with an encoder, next tokens with a decoder."""

import copy
import dataclasses
from inspect import signature
from typing import Any, NamedTuple, TypedDict, Unpack

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.activations import ACT2FN
from transformers.generation import GenerationMode
from transformers.modeling_outputs import MaskedLMOutput

from longspan.errors import InputError, OptionError
from longspan.models.adaptive import AdaptiveSoftmax, tied_names
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.cache import LongspanCache, OutputWithCache, takes_past_key_values
from longspan.models.config import LongspanConfig
from longspan.models.inputs import TokenIds, TokenMask
from longspan.models.losses import IGNORED, Items, add_losses, label_loss, mean_loss, weigh_part
from longspan.models.model import LongspanModel
from longspan.models.norms import make_norm
from longspan.shapes import Float, Int

# Name of a state in the `generate` of transformers, which was another one before 5.24.
_PREPARED = signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_NAME = "cache" if "cache" in _PREPARED else "past_key_values"


class LongspanGenerationMixin(GenerationMixin):
    """transformers' `generate` for models whose first call creates the state."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Tell `generate` to take the state that the first call returns."""
        return False

    def _prepare_cache_for_generation(  # type: ignore[override]
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Give assisted generation, and the assistant, a state that can forget rejected tokens."""
        given = generation_config, model_kwargs, generation_mode
        super()._prepare_cache_for_generation(*given, *args, **kwargs)  # type: ignore[misc]
        assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        drafts = assisted or getattr(generation_config, "is_assistant", False)
        if drafts and generation_config.use_cache and model_kwargs.get(CACHE_NAME) is None:
            decoder = self.get_decoder()  # type: ignore[attr-defined]
            made = LongspanCache(decoder.config.num_hidden_layers)
            made.activate_past_recording()
            model_kwargs[CACHE_NAME] = made

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        *args: Any,
        cache: LongspanCache | None = None,
        past_key_values: LongspanCache | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of a call in `generate`, whose arguments it reads off this signature.

        Raises:
            InputError: a prompt of a decoder ends in padding, where its next token would be read;
                or a state has the name of another transformers.
        """
        states = {"cache": cache, "past_key_values": past_key_values}
        past = states.pop(CACHE_NAME)
        if any(x is not None for x in states.values()):
            raise InputError(f"a state is called {CACHE_NAME} in `generate` of this transformers")
        kwargs[CACHE_NAME] = past
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]
        inputs["cache"] = inputs.pop(CACHE_NAME, None)
        mask = inputs.get("attention_mask")
        own = not self.config.is_encoder_decoder  # type: ignore[attr-defined]
        is_prompt = past is None or past.get_seq_length() == 0
        if own and is_prompt and mask is not None and not mask[:, -1].all():
            raise InputError(
                "a prompt ends in padding, after which no token can be predicted; pad prompts on "
                "the left (tokenizer.padding_side='left')"
            )
        return inputs

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the inputs of the next call, with the state that this one returned."""
        if outputs.cache is not None:
            model_kwargs[CACHE_NAME] = outputs.cache
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)


class LanguageModel(LongspanPreTrainedModel):
    """Base of the language models: a Transformer, and logits of the vocabulary."""

    model_class: type[LongspanPreTrainedModel] = LongspanModel
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.words.weight"}

    def __init__(self, config: LongspanConfig, bias: bool = False):
        if config.input_features is not None:
            raise OptionError(
                f"a language model reads token ids, got input_features={config.input_features}; "
                "set input_features to None"
            )
        super().__init__(config)
        self.model = self.model_class(config)
        self.lm_head: nn.Linear | AdaptiveSoftmax
        if config.adaptive_cutoffs:
            self.lm_head = AdaptiveSoftmax(config)
            self._tied_weights_keys = tied_names(config, "lm_head", "model.embeddings.words")
        else:
            bias = bias or config.lm_head_bias
            self.lm_head = nn.Linear(config.logits_input_size, config.vocab_size, bias=bias)

    def get_output_embeddings(self) -> nn.Linear | AdaptiveSoftmax:
        """Return the map to the logits: linear, or an adaptive softmax."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear | AdaptiveSoftmax) -> None:
        """Replace the map to the logits."""
        self.lm_head = new_embeddings


class LongspanForMaskedLM(LanguageModel):
    """Encoder that predicts masked tokens (Devlin et al. 2019, section 3.1)."""

    def __init__(self, config: LongspanConfig):
        if config.is_decoder:
            raise OptionError(
                "masked tokens are predicted from both sides; set is_decoder to False, or use "
                "LongspanForCausalLM"
            )
        if config.adaptive_cutoffs:
            raise OptionError(
                "masked tokens have no adaptive softmax; set adaptive_cutoffs to [], or use "
                "LongspanForCausalLM"
            )
        transforms = config.prediction_head == "transform"
        super().__init__(config, bias=transforms)
        self.transform = PredictionTransform(config) if transforms else make_narrow(config)
        self.post_init()

    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        labels: TokenIds | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Items | None = None,
    ) -> MaskedLMOutput | tuple:
        """Predict the token at each position; see `LongspanModel.forward` for the inputs.

        `labels` are the tokens of the positions that are predicted, and -100 elsewhere.
        `num_items_in_batch` is the number of labels of all parts of a batch; see `weigh_part`.

        Returns:
            `logits` (B, T, V) and, if labels are given, `loss`: the mean cross entropy.
        """
        encoded = self.model(
            input_ids,
            attention_mask,
            global_attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.lm_head(self.transform(encoded.last_hidden_state))
        loss = None if labels is None else label_loss(logits, labels)
        loss = add_losses(loss, encoded.auxiliary_loss)
        output = MaskedLMOutput(
            loss=weigh_part(loss, labels, num_items_in_batch),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
        return self.as_requested(output, return_dict)


class PredictionTransform(nn.Module):
    """Linear map, activation and normalization before the logits of masked tokens."""

    def __init__(self, config: LongspanConfig):
        super().__init__()
        width = config.logits_input_size
        self.dense = nn.Linear(config.output_size, width, bias=config.linear_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = make_norm(config, width)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T W"]:
        """Map every position independently."""
        return self.norm(self.activation(self.dense(x)))


@dataclasses.dataclass
class CausalOutput(OutputWithCache):
    """Output of a causal language model.

    Attributes:
        loss: mean cross entropy of the next tokens, plus `auxiliary_loss` in training.
        logits: scores of the next token (B, T, V). Those of an adaptive softmax are
            log-probabilities, and None with labels.
        cache: state for the next tokens.
        hidden_states: see `LongspanOutput`.
        attentions: see `LongspanOutput`.
        auxiliary_loss: see `LongspanOutput`.
        token_losses: with labels, the cross entropy of each of them (B, T) under an adaptive
            softmax, 0 where it is -100; else None.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "B T V"] | None = None
    cache: LongspanCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    auxiliary_loss: Float[Tensor, ""] | None = None
    token_losses: Float[Tensor, "B T"] | None = None


class Scores(NamedTuple):
    """Parts of a `CausalOutput` that follow from states and labels."""

    logits: Tensor | None = None
    loss: Tensor | None = None
    token_losses: Tensor | None = None


class NextTokens(TypedDict, total=False):
    """Further argument of a causal language model.

    It is not in the signature: tools of transformers take every argument there whose name has
    "label" for one that a batch must have.

    Attributes:
        shift_labels: the token after each position, and -100 where nothing is predicted, as in
            segments of a stream, whose last token is followed by the next segment.
    """

    shift_labels: TokenIds | None


def _next_tokens(labels: Tensor | None, shift_labels: Tensor | None = None) -> Tensor | None:
    """Return the token after each position, and -100 at the last one of unshifted labels."""
    if labels is None or shift_labels is not None:
        return shift_labels
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


class LongspanForCausalLM(LanguageModel, LongspanGenerationMixin):
    """Decoder that predicts the next token, with a state that each mechanism bounds.

    In training on streams of documents, one in each row, pass the state of one segment to the next,
    and clear it where a document has ended:

        output = model(segment, shift_labels=next_tokens, cache=state, use_cache=True)
        state = model.model.clear_rows(output.cache.detach(), document_ended)
    """

    def __init__(self, config: LongspanConfig):
        if not config.is_decoder:
            config = copy.deepcopy(config)
            config.is_decoder = True
        super().__init__(config)
        self.narrow = make_narrow(config)
        self.post_init()

    @takes_past_key_values
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        labels: TokenIds | None = None,
        cache: LongspanCache | None = None,
        use_cache: bool | None = None,
        token_type_ids: TokenIds | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Items | None = None,
        **targets: Unpack[NextTokens],
    ) -> CausalOutput | tuple:
        """Predict the token after each position; see `LongspanModel.forward` for the inputs.

        `labels` are the input ids, and -100 where nothing is predicted; they are shifted here, so
        that the last token has no loss. `shift_labels` are the tokens after each position instead;
        see `NextTokens`. `logits_to_keep` is the number of last positions with logits; 0: all. With
        labels an adaptive softmax computes their losses and no logits. `num_items_in_batch` is the
        number of predicted tokens of all parts of a batch; see `weigh_part`.

        Returns:
            See `CausalOutput`.

        Raises:
            TypeError: there is no such argument.
        """
        shift_labels = _next_tokens(labels, **targets)
        decoded = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        states = self.narrow(decoded.last_hidden_state[:, -logits_to_keep:])
        scores = self._score(states, shift_labels)
        loss = add_losses(scores.loss, decoded.auxiliary_loss)
        output = CausalOutput(
            loss=weigh_part(loss, shift_labels, num_items_in_batch),
            logits=scores.logits,
            cache=decoded.cache,
            hidden_states=decoded.hidden_states,
            attentions=decoded.attentions,
            auxiliary_loss=decoded.auxiliary_loss,
            token_losses=scores.token_losses,
        )
        return self.as_requested(output, return_dict)

    def _score(self, states: Tensor, labels: Tensor | None) -> Scores:
        """Return the logits, the losses, or both, as the head computes them."""
        if labels is None:
            return Scores(logits=self.lm_head(states))
        if isinstance(self.lm_head, AdaptiveSoftmax):
            losses = self.lm_head(states, labels)
            return Scores(loss=mean_loss(losses.sum(), labels), token_losses=losses)
        logits = self.lm_head(states)
        return Scores(logits=logits, loss=label_loss(logits, labels))


def make_narrow(config: LongspanConfig) -> nn.Module:
    """Return the linear map from states to the width of the embeddings, if these are narrower."""
    states, width = config.output_size, config.logits_input_size
    return nn.Identity() if width == states else nn.Linear(states, width)
