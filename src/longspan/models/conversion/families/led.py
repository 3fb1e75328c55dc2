"""LED in transformers (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 7).

BART with Longformer's attention in the encoder. Each part has a position table of its own length,
without the two rows that BART has before that of the first token.
"""

from typing import Any

from transformers import LEDConfig

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families import bart
from longspan.models.conversion.families.longformer import (
    longformer_attention,
    longformer_windows,
    window_refusals,
)
from longspan.models.conversion.family import Decoder, Family, Weight
from longspan.models.heads.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)
from longspan.models.parts import decoder_config

PARTS = ("query", "key", "value")
ATTENTION = {
    **{f"attention.{x}": f"self_attn.longformer_self_attn.{x}" for x in PARTS},
    **{
        f"attention.mechanism.projections.{x}": f"self_attn.longformer_self_attn.{x}_global"
        for x in PARTS
    },
    "attention.output": "self_attn.output",
}


def _weights(config: Any) -> list[Weight]:
    return bart.bart_weights(config, ATTENTION)


def _refusals(config: Any) -> list[str]:
    return bart.bart_refusals(config) + window_refusals(config)


def _source_config(config: LongspanConfig) -> LEDConfig:
    if config.first_decoder_token is None:
        raise OptionError("decoder_start_token_id must be a number, got None")
    decoder = decoder_config(config)
    return LEDConfig(
        **{name: getattr(config, name) for name in bart.SAME_FIELDS},
        **bart.source_sizes(config, "encoder"),
        **bart.source_sizes(decoder, "decoder"),
        decoder_start_token_id=config.first_decoder_token,
        attention_window=longformer_windows(config),
        max_encoder_position_embeddings=config.max_position_embeddings,
        max_decoder_position_embeddings=decoder.max_position_embeddings,
        d_model=config.hidden_size,
        activation_function=config.hidden_act,
        dropout=config.hidden_dropout_prob,
        init_std=config.initializer_range,
        tie_word_embeddings=config.tie_word_embeddings,
    )


FAMILY = Family(
    model_types=("led",),
    prefix="led.",
    fields=bart.bart_fields,
    weights=_weights,
    heads=bart.FAMILY.heads,
    dropped=bart.DROPPED,
    refusals=_refusals,
    position_rows=lambda config: config.max_encoder_position_embeddings,
    attention=longformer_attention,
    base=LongspanEncoderDecoderModel,
    source_config=_source_config,
    architectures={
        LongspanEncoderDecoderModel: "LEDModel",
        LongspanForConditionalGeneration: "LEDForConditionalGeneration",
    },
    decoder=Decoder(
        words=bart.DECODER_PARTS.words,
        position_rows=lambda config: config.max_decoder_position_embeddings,
    ),
)
