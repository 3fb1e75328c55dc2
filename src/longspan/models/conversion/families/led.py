"""LED in transformers (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 7).

BART with Longformer's attention in the encoder. Each part has a position table of its own length,
without the two rows that BART has before that of the first token.
"""

import dataclasses
from functools import partial
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families import bart
from longspan.models.conversion.families.longformer import (
    longformer_attention,
    longformer_windows,
    window_refusals,
)
from longspan.models.conversion.heads import classes
from longspan.models.heads.seq2seq import LongspanForConditionalGeneration
from longspan.models.parts import decoder_config

PARTS, SOURCE = ("query", "key", "value"), "self_attn.longformer_self_attn"
ATTENTION = {
    **{f"attention.{x}": f"{SOURCE}.{x}" for x in PARTS},
    **{f"attention.mechanism.projections.{x}": f"{SOURCE}.{x}_global" for x in PARTS},
    "attention.output": "self_attn.output",
}


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    if config.first_decoder_token is None:
        raise OptionError("decoder_start_token_id must be a number, got None")
    decoder = decoder_config(config)
    return {
        **{theirs: getattr(decoder, ours) for ours, theirs in bart.sizes("decoder").items()},
        "decoder_start_token_id": config.first_decoder_token,
        "attention_window": longformer_windows(config),
        "max_encoder_position_embeddings": config.max_position_embeddings,
        "max_decoder_position_embeddings": decoder.max_position_embeddings,
    }


FAMILY = dataclasses.replace(
    bart.FAMILY,
    model_types=("led",),
    prefix="led.",
    weights=partial(bart.bart_weights, encoder_attention=ATTENTION),
    refusals=lambda config: bart.bart_refusals(config) + window_refusals(config),
    position_rows=lambda config: config.max_encoder_position_embeddings,
    rows_before=lambda _: 0,
    attention=longformer_attention,
    architectures=classes("LED", LongspanForConditionalGeneration, base=bart.FAMILY.base),
    source_fields=_source_fields,
    decoder_rows=lambda config: config.max_decoder_position_embeddings,
)
