"""RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692) and models of its form."""

import dataclasses
from functools import partial
from typing import Any

from longspan.models.conversion.families import bert
from longspan.models.conversion.heads import masked_head

HEAD = partial(
    masked_head,
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    output="lm_head.decoder",
    bias="lm_head.bias",
    activation="gelu",  # whatever that of the layers is
)
SKIPS_PADDING = {**bert.POST_NORM, "positions_skip_padding": True}


def padding_refusals(config: Any) -> list[str]:
    """Return the reason why a source whose positions begin after the padding's row has none."""
    return [] if config.pad_token_id is not None else ["pad_token_id=None"]


FAMILY = dataclasses.replace(
    bert.FAMILY,
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    constants=SKIPS_PADDING,
    heads={"lm_head.": HEAD},
    dropped=bert.DROPPED,
    refusals=lambda config: bert.bert_refusals(config) + padding_refusals(config),
    rows_before=lambda config: config.pad_token_id + 1,
)
