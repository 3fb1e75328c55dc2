"""Parts that the language models share: logits of the vocabulary, and generation."""

from inspect import signature
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode

from longspan.errors import InputError, OptionError
from longspan.models.adaptive import AdaptiveSoftmax, adaptive_softmax_flops, tied_names
from longspan.models.base import LongspanPreTrainedModel
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.flops import linear_flops
from longspan.models.heads.base import Head, Shapes
from longspan.models.model import LongspanModel

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
        """Give generation the empty state that it cannot leave to the first call.

        That of assisted generation, and of the assistant, can forget rejected tokens; a decoder
        whose prompt is read in chunks (`prefill_chunk_size`) needs one before the first of them.

        Raises:
            InputError: a prompt of a decoder ends in padding, where its next token would be read;
                or it is to be read in chunks, and is embeddings or that of an encoder-decoder.
        """
        arguments = generation_config, model_kwargs, generation_mode
        super()._prepare_cache_for_generation(*arguments, *args, **kwargs)  # type: ignore[misc]
        is_decoder = not self.config.is_encoder_decoder  # type: ignore[attr-defined]
        chunks = generation_config.prefill_chunk_size is not None
        if chunks and not is_decoder:
            raise InputError(
                f"prefill_chunk_size={generation_config.prefill_chunk_size} divides the prompt of "
                "a decoder, and an encoder reads its text whole; set prefill_chunk_size=None"
            )
        past = model_kwargs.get(CACHE_NAME)
        if is_decoder and (past is None or past.get_seq_length() == 0):
            _check_prompt(model_kwargs, generation_config.prefill_chunk_size)
        assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        drafts = assisted or getattr(generation_config, "is_assistant", False)
        if (drafts or chunks) and generation_config.use_cache and past is None:
            decoder = self.get_decoder()  # type: ignore[attr-defined]
            cache = model_kwargs[CACHE_NAME] = LongspanCache(decoder.config.num_hidden_layers)
            if drafts:
                cache.activate_past_recording()

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        *args: Any,
        cache: LongspanCache | None = None,
        past_key_values: LongspanCache | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of a call in `generate`, whose arguments it reads off this signature.

        Raises:
            InputError: a state has the name of another transformers.
        """
        states = {"cache": cache, "past_key_values": past_key_values}
        past = states.pop(CACHE_NAME)
        if any(x is not None for x in states.values()):
            raise InputError(f"a state is called {CACHE_NAME} in `generate` of this transformers")
        kwargs |= {CACHE_NAME: past, "inputs_embeds": inputs_embeds}
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]
        inputs["cache"] = inputs.pop(CACHE_NAME, None)
        # That of `stop_strings`, which transformers passes on to the model.
        inputs.pop("tokenizer", None)
        return inputs

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the inputs of the next call, with the state that this one returned."""
        if outputs.cache is not None:
            model_kwargs[CACHE_NAME] = outputs.cache
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)


def _check_prompt(inputs: dict[str, Any], chunk: int | None) -> None:
    """Raise InputError if a prompt ends in padding, or is embeddings to be read in chunks."""
    mask = inputs.get("attention_mask")
    if mask is not None and not mask[:, -1].all():
        raise InputError(
            "a prompt ends in padding, after which no token can be predicted; pad prompts on the "
            "left (tokenizer.padding_side='left')"
        )
    if chunk is not None and inputs.get("inputs_embeds") is not None:
        raise InputError(
            f"prefill_chunk_size={chunk} divides input_ids, not inputs_embeds; pass input_ids "
            "alone, or prefill_chunk_size=None"
        )


class LanguageModel(Head):
    """Base of the language models: a Transformer, and logits of the vocabulary."""

    card_kind = "text-generation"
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

    @classmethod
    def head_flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of the logits of each position.

        Those of an adaptive softmax are of all words, as without labels: how many words training
        reads depends on the text.
        """
        (rows,), width = cls.label_shapes(shapes)[cls.label], config.logits_input_size
        transforms = config.prediction_head == "transform" and not config.is_decoder
        maps = transforms or width != config.output_size
        head = linear_flops(rows, config.output_size, width if maps else 0)
        if config.adaptive_cutoffs:
            return head + adaptive_softmax_flops(config, rows)
        return head + linear_flops(rows, width, config.vocab_size)

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels: a token for each position."""
        return {cls.label: shapes["input_ids"]}

    def get_output_embeddings(self) -> nn.Linear | AdaptiveSoftmax:
        """Return the map to the logits: linear, or an adaptive softmax."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear | AdaptiveSoftmax) -> None:
        """Replace the map to the logits."""
        self.lm_head = new_embeddings


def make_narrow(config: LongspanConfig) -> nn.Module:
    """Return the linear map from states to the width of the embeddings, if these are narrower."""
    states, width = config.output_size, config.logits_input_size
    return nn.Identity() if width == states else nn.Linear(states, width)
