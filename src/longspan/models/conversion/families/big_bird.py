"""BigBird in transformers (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062).

Its blocks differ from those of the paper, see the options in `_attention`. Its sparse attention has
no dropout, so that the way back writes 0 for that of a sparse model.
"""

from functools import partial
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import (
    BERT_HEAD,
    FIELDS,
    POST_NORM,
    PRETRAINING,
    bert_refusals,
    encoder_weights,
)
from longspan.models.conversion.family import (
    Family,
    LayerAttention,
    options_of_all,
    same,
    type_refusals,
)
from longspan.models.conversion.heads import (
    ENCODERS,
    choice_or_token_head,
    classes,
    sequence_head,
)
from longspan.models.heads.question_answering import LongspanForQuestionAnswering

SPARSE, FULL = "block_sparse", "original_full"
MECHANISMS = {SPARSE: "bigbird", FULL: "full"}


def _attention(config: Any) -> list[LayerAttention]:
    block, random = config.block_size, config.num_random_blocks
    sparse = {
        "block": block,
        "num_random_blocks": random,
        "sampling": "transformers",
        "repeats": True,
        "padded_blocks": True,
        "full_up_to": (5 + 2 * random) * block,
    }
    options = sparse if config.attention_type == SPARSE else {}
    return [(MECHANISMS[config.attention_type], options)] * config.num_hidden_layers


def _derived(config: Any) -> dict[str, Any]:
    return {"attention_dropout": 0.0} if config.attention_type == SPARSE else {}


def _refusals(config: Any) -> list[str]:
    reasons = bert_refusals(config)
    if config.attention_type not in MECHANISMS:
        reasons.append(f"attention_type={config.attention_type!r}")
    if config.attention_type == SPARSE and config.num_random_blocks < 1:
        reasons.append(
            f"num_random_blocks={config.num_random_blocks}, which transformers does not compute"
        )
    return reasons + type_refusals(config)


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    kinds = {name: kind for kind, name in MECHANISMS.items()}
    names = dict.fromkeys(config.attention_names)
    if len(names) > 1 or not names.keys() <= kinds.keys():
        raise OptionError(
            f"the attention must be one of {', '.join(kinds)} in all layers, got "
            f"{' and '.join(names)}"
        )
    (name,) = names
    fields = {
        "attention_type": kinds[name],
        "max_position_embeddings": config.max_position_embeddings,
        "use_bias": config.has_qkv_bias,
    }
    if kinds[name] == FULL:
        return fields
    options = options_of_all(config, name)
    random = options["num_random_blocks"]
    blocks = {"block_size": options["block"], "num_random_blocks": 3 if random is None else random}
    return fields | blocks


FAMILIES = (
    Family(
        model_types=("big_bird",),
        prefix="bert.",
        fields={
            **FIELDS,
            **same("sep_token_id"),
            "qkv_bias": "use_bias",
            "scale_embedding": "rescale_embeddings",
        },
        constants=POST_NORM,
        derived=_derived,
        weights=encoder_weights,
        heads={
            "cls.predictions.": BERT_HEAD,
            "classifier.dense.": sequence_head,
            "classifier.": partial(choice_or_token_head, pooler="pooler"),
            "qa_classifier.": lambda _: (
                "feed-forward network with a residual connection, where ours is one linear map"
            ),
        },
        dropped=PRETRAINING,
        refusals=_refusals,
        attention=_attention,
        architectures=classes(
            "BigBird", *(cls for cls in ENCODERS if cls is not LongspanForQuestionAnswering)
        ),
        source_fields=_source_fields,
    ),
)
