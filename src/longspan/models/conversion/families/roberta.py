"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692) and models of its form."""

from typing import Any

from longspan.models.conversion.families.bert import (
    DROPPED,
    bert_fields,
    bert_refusals,
    bert_weights,
)
from longspan.models.conversion.family import (
    Family,
    Head,
    activation_refusal,
    output_bias,
    parameters,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM

HEAD_ACTIVATION = "gelu"  # whatever that of the layers is


def _fields(config: Any) -> dict[str, Any]:
    return {**bert_fields(config), "positions_skip_padding": True}


def _refusals(config: Any) -> list[str]:
    # Positions begin after the padding's row.
    no_padding = [] if config.pad_token_id is not None else ["pad_token_id=None"]
    return bert_refusals(config) + no_padding


def roberta_head(config: Any) -> Head | str:
    """Return the head for masked tokens, or why it is not ours."""
    if reason := activation_refusal(HEAD_ACTIVATION, config.hidden_act):
        return reason
    weights = [
        *parameters("transform.dense", "lm_head.dense"),
        *parameters("transform.norm", "lm_head.layer_norm"),
        output_bias(config, "lm_head.bias", "lm_head.decoder.bias"),
    ]
    return Head(LongspanForMaskedLM, weights, "lm_head.decoder.weight")


FAMILY = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    fields=_fields,
    weights=bert_weights,
    heads={"lm_head.": roberta_head},
    dropped=DROPPED,
    refusals=_refusals,
    rows_before=lambda config: config.pad_token_id + 1,
)
