"""Encoder-decoders: an encoder of any mechanism, and a decoder that attends to its states.

With Longformer's mechanism in the encoder it is LED, Beltagy et al. 2020
(https://arxiv.org/abs/2004.05150), section 7: the encoder has local and global attention, the
decoder full causal and full cross-attention.
"""

import copy
import dataclasses
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput

from longspan.errors import InputError
from longspan.models.base import LongspanOutput, Requests
from longspan.models.cache import LongspanCache, OutputWithCache, takes_past_key_values
from longspan.models.config import LongspanConfig
from longspan.models.cross_attention import build_cross_mechanism
from longspan.models.flops import encoder_flops, linear_flops
from longspan.models.heads.base import Shapes, text_shapes
from longspan.models.heads.language import LanguageModel, LongspanGenerationMixin, make_narrow
from longspan.models.heads.losses import IGNORED, Items, label_loss
from longspan.models.inputs import TokenIds, TokenMask
from longspan.models.model import LongspanModel, LongspanPreTrainedModel
from longspan.models.parts import decoder_config, encoder_config
from longspan.shapes import Float, Int, Mask

# Arguments of `generate` that describe the input: all beams of an input share them.
_SHARED_BY_BEAMS = ("encoder_outputs", "attention_mask", "global_attention_mask")
EncoderOutput = ModelOutput | tuple[Any, ...] | list[Any]
DecoderIds = Int[Tensor, "N U"]
DecoderMask = Mask[Tensor, "N _"]  # U tokens, or with a cache all so far


@dataclasses.dataclass
class EncoderDecoderOutput(OutputWithCache):
    """Output of an encoder-decoder, with or without logits.

    Attributes:
        loss: mean cross entropy of the labels, plus `auxiliary_loss` in training; of a model with
            logits.
        logits: scores of the next token of the decoder (N, U, V); None without a head.
        last_hidden_state: states of the decoder's tokens (N, U, M); None with a head.
        cache: state for the next tokens, or None.
        decoder_hidden_states: states of the decoder after each layer, on request.
        decoder_attentions: weights of the decoder, on request.
        cross_attentions: weights of the decoder for the encoder's tokens, on request.
        encoder_last_hidden_state: states of the encoder's tokens (B, T, M); None if only the cache
            holds them.
        encoder_hidden_states: states of the encoder after each layer, on request.
        encoder_attentions: weights of the encoder, on request.
        auxiliary_loss: see `LongspanOutput`; of both parts.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "N U V"] | None = None
    last_hidden_state: Float[Tensor, "N U M"] | None = None
    cache: LongspanCache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Float[Tensor, "B T M"] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    auxiliary_loss: Float[Tensor, ""] | None = None


class LongspanEncoderDecoderModel(LongspanPreTrainedModel):
    """Encoder and decoder without a head."""

    _tied_weights_keys = {"decoder.embeddings.words.weight": "encoder.embeddings.words.weight"}

    def __init__(self, config: LongspanConfig):
        config = _as_encoder_decoder(config)
        super().__init__(config)
        self.encoder = LongspanModel(encoder_config(config))
        self.decoder = LongspanModel(decoder_config(config))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings of the encoder."""
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings of the encoder, and of the decoder if they are tied."""
        self.encoder.set_input_embeddings(value)
        if self.config.tie_word_embeddings:
            self.decoder.set_input_embeddings(value)

    @takes_past_key_values
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        encoder_outputs: EncoderOutput | None = None,
        decoder_input_ids: DecoderIds | None = None,
        decoder_attention_mask: DecoderMask | None = None,
        decoder_inputs_embeds: Float[Tensor, "N U W"] | None = None,
        cache: LongspanCache | None = None,
        use_cache: bool | None = None,
        **requests: Unpack[Requests],
    ) -> EncoderDecoderOutput | tuple:
        """Encode the input and compute the states of the decoder's tokens.

        Args:
            input_ids: token ids of the encoder.
            attention_mask: True or 1 at real tokens of the encoder; cross-attention reads no
                others.
            global_attention_mask: True or 1 at global tokens of the encoder.
            inputs_embeds: embeddings in place of `input_ids`.
            encoder_outputs: output of the encoder in place of its inputs, the states first.
            decoder_input_ids: token ids of the decoder; N rows: B, or a multiple such as beams.
            decoder_attention_mask: True or 1 at real tokens of the decoder.
            decoder_inputs_embeds: embeddings in place of `decoder_input_ids`.
            cache: state after the decoder's tokens before. It holds what the decoder
                reads of the encoder, and its mask; neither need be given again.
            use_cache: whether to return the state; see `LongspanModel.forward`.
            requests: see `Requests`; weights and states of both parts.

        Raises:
            InputError: the encoder has two inputs, or none, and see `LongspanModel.forward`.
        """
        flags: Any = {**requests, "return_dict": True}
        _check_sources(input_ids, inputs_embeds, encoder_outputs, cache)
        encoded = encoder_outputs
        if input_ids is not None or inputs_embeds is not None:
            masks = (attention_mask, global_attention_mask)
            encoded = self.encoder(input_ids, *masks, inputs_embeds=inputs_embeds, **flags)
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            encoder_hidden_states=None if encoded is None else encoded[0],
            encoder_attention_mask=attention_mask,
            **flags,
        )
        return self.as_requested(_join_outputs(encoded, decoded), requests.get("return_dict"))


def _as_encoder_decoder(config: LongspanConfig) -> LongspanConfig:
    """Return the configuration, or a copy that describes an encoder-decoder."""
    if config.is_encoder_decoder:
        return config
    config = copy.deepcopy(config)
    config.is_encoder_decoder = True
    return config


def _check_sources(
    input_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    encoder_outputs: EncoderOutput | None,
    past: LongspanCache | None,
) -> None:
    """Check that the encoder's states have one source.

    Raises:
        InputError: there are two, or none.
    """
    inputs = [x for x in (input_ids, inputs_embeds) if x is not None]
    if inputs and (encoder_outputs is not None or past is not None):
        held = "encoder_outputs" if past is None else "cache"
        raise InputError(
            f"{held} replaces the encoder's input; give no input_ids or inputs_embeds with it"
        )
    if not inputs and encoder_outputs is None and past is None:
        raise InputError("give input_ids, inputs_embeds or encoder_outputs; got none of them")


def _join_outputs(encoded: EncoderOutput | None, decoded: LongspanOutput) -> EncoderDecoderOutput:
    found = [getattr(x, "auxiliary_loss", None) for x in (encoded, decoded)]
    losses = [x for x in found if x is not None]
    return EncoderDecoderOutput(
        last_hidden_state=decoded.last_hidden_state,
        cache=decoded.cache,
        decoder_hidden_states=decoded.hidden_states,
        decoder_attentions=decoded.attentions,
        cross_attentions=decoded.cross_attentions,
        encoder_last_hidden_state=None if encoded is None else encoded[0],
        encoder_hidden_states=getattr(encoded, "hidden_states", None),
        encoder_attentions=getattr(encoded, "attentions", None),
        auxiliary_loss=torch.stack(losses).sum() if losses else None,
    )


class LongspanForConditionalGeneration(LanguageModel, LongspanGenerationMixin):
    """Encoder-decoder that predicts a text from another, such as its summary.

    `generate` passes `attention_mask` and `global_attention_mask` to the encoder, which runs once;
    beams share its states.
    """

    card_kind = "text2text-generation"
    model_class = LongspanEncoderDecoderModel
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embeddings.words.weight"}

    def __init__(self, config: LongspanConfig):
        super().__init__(_as_encoder_decoder(config), bias=True)
        self.narrow = make_narrow(config)
        self.post_init()

    @takes_past_key_values
    def forward(
        self,
        input_ids: TokenIds | None = None,
        attention_mask: TokenMask | None = None,
        global_attention_mask: TokenMask | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        encoder_outputs: EncoderOutput | None = None,
        decoder_input_ids: DecoderIds | None = None,
        decoder_attention_mask: DecoderMask | None = None,
        decoder_inputs_embeds: Float[Tensor, "N U W"] | None = None,
        labels: DecoderIds | None = None,
        cache: LongspanCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Items | None = None,
        **requests: Unpack[Requests],
    ) -> EncoderDecoderOutput | tuple:
        """Predict the decoder's next tokens; see `LongspanEncoderDecoderModel.forward`.

        `labels` are the tokens that the decoder must predict, and -100 where it need not. Without
        `decoder_input_ids` they are its inputs as well, one token later. `logits_to_keep` is the
        number of last positions with logits; 0: all. `num_items_in_batch` is the number of labels
        of all parts of a batch; see `Head.finish`.

        Returns:
            See `EncoderDecoderOutput`.
        """
        if labels is not None:
            use_cache = bool(use_cache)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = (input_ids, attention_mask, global_attention_mask, inputs_embeds, encoder_outputs)
        target = (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
        flags: Any = {**requests, "return_dict": True}
        decoded = self.model(*source, *target, cache, use_cache, **flags)
        logits = self.lm_head(self.narrow(decoded.last_hidden_state[:, -logits_to_keep:]))
        loss = None if labels is None else label_loss(logits, labels)
        weight, scores = (labels, num_items_in_batch), {"logits": logits, "last_hidden_state": None}
        return self.finish(EncoderDecoderOutput, [decoded], loss, requests, *weight, **scores)

    @classmethod
    def flops(cls, config: LongspanConfig, shapes: Shapes) -> int:
        """Return the operations of encoder, decoder and logits; see `Head.flops`.

        Cross-attention counts as the mechanism's own count, in proportion to the queries.
        """
        decoder, (length,), (target,) = decoder_config(config), *text_shapes(shapes).values()
        source, D = config.sequence_length(length), decoder.head_dim
        cross = decoder.num_attention_heads * build_cross_mechanism(decoder, 0).flops(source, D)
        cross = cross * target // source
        # Queries and outputs of the target's tokens, keys and values of the input's.
        cross += 2 * linear_flops(target + source, decoder.hidden_size, decoder.all_head_size)
        layers = encoder_flops(decoder, target) + decoder.num_hidden_layers * cross
        logits = linear_flops(target, config.logits_input_size, config.vocab_size)
        return encoder_flops(encoder_config(config), length) + layers + logits

    @classmethod
    def label_shapes(cls, shapes: Shapes) -> Shapes:
        """Return the shape of the labels: a token for each position of the decoder."""
        return {cls.label: shapes["decoder_input_ids"]}

    def prepare_decoder_input_ids_from_labels(self, labels: DecoderIds) -> DecoderIds:
        """Return the decoder's inputs: the start token, and the labels but the last.

        Labels of -100 become padding; no prediction that counts follows it. With
        `decoder_start="last"` the last label that is no padding stands first.

        Raises:
            InputError: the configuration has no start token, or no padding token where one is
                needed.
        """
        pad = self.config.pad_token_id
        shifted = torch.cat((self._first_tokens(labels), labels[:, :-1]), dim=1)
        if pad is None and (shifted == IGNORED).any():
            raise InputError("labels of -100 become padding; set pad_token_id, got None")
        return shifted if pad is None else shifted.masked_fill(shifted == IGNORED, pad)

    def _first_tokens(self, labels: Tensor) -> Tensor:
        """Return the first input of the decoder in each row, (N, 1)."""
        if self.config.decoder_start == "last":
            real = (labels != IGNORED) & (labels != self.config.pad_token_id)
            places = torch.arange(labels.shape[1], device=labels.device)
            return labels.gather(1, (real * places).amax(1, keepdim=True))
        start = self.config.first_decoder_token
        if start is None:
            raise InputError(
                "labels require the first token of the decoder; set decoder_start_token_id, or "
                "give decoder_input_ids"
            )
        return torch.full_like(labels[:, :1], start)

    def _expand_inputs_for_generation(  # type: ignore[override]
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **inputs: Any,
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the decoder's inputs for beams and samples, which share those of the encoder."""
        shared = {name: inputs.pop(name) for name in _SHARED_BY_BEAMS if name in inputs}
        base = cast(Any, super())
        input_ids, inputs = base._expand_inputs_for_generation(
            expand_size, input_ids=input_ids, **inputs
        )
        return input_ids, inputs | shared


HEAD = LongspanForConditionalGeneration
