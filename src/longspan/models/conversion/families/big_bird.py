"""BigBird in transformers (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062).

Its blocks differ from those of the paper, see the options in `_sparse_options`. Its sparse
attention has no dropout, so that the way back writes 0 for that of a sparse model.
"""

from typing import Any

from transformers import BigBirdConfig

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import (
    DROPPED,
    SAME_FIELDS,
    bert_fields,
    bert_head,
    bert_refusals,
    bert_weights,
)
from longspan.models.conversion.family import Family, Head, LayerAttention
from longspan.models.conversion.heads import (
    choice_head,
    is_multiple_choice,
    sequence_head,
    token_head,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

SPARSE, FULL = "block_sparse", "original_full"
MECHANISMS = {SPARSE: "bigbird", FULL: "full"}
ARCHITECTURES = {
    LongspanModel: "BigBirdModel",
    LongspanForMaskedLM: "BigBirdForMaskedLM",
    LongspanForSequenceClassification: "BigBirdForSequenceClassification",
    LongspanForTokenClassification: "BigBirdForTokenClassification",
    LongspanForMultipleChoice: "BigBirdForMultipleChoice",
}


def _sparse_options(block: int, random: int) -> dict[str, Any]:
    """Return the options of the sparse attention."""
    return {
        "block": block,
        "num_random_blocks": random,
        "sampling": "transformers",
        "repeats": True,
        "padded_blocks": True,
        "full_up_to": (5 + 2 * random) * block,
    }


def _attention(config: Any) -> list[LayerAttention]:
    sparse = config.attention_type == SPARSE
    options = _sparse_options(config.block_size, config.num_random_blocks) if sparse else {}
    return [(MECHANISMS[config.attention_type], dict(options))] * config.num_hidden_layers


def _fields(config: Any) -> dict[str, Any]:
    sparse = config.attention_type == SPARSE
    return {
        **bert_fields(config),
        "attention_dropout": 0.0 if sparse else config.attention_probs_dropout_prob,
        "qkv_bias": config.use_bias,
        "scale_embedding": config.rescale_embeddings,
        "sep_token_id": config.sep_token_id,
    }


def _refusals(config: Any) -> list[str]:
    reasons = bert_refusals(config)
    if config.attention_type not in MECHANISMS:
        reasons.append(f"attention_type={config.attention_type!r}")
    if config.attention_type == SPARSE and config.num_random_blocks < 1:
        reasons.append(
            f"num_random_blocks={config.num_random_blocks}, which transformers does not compute"
        )
    if config.type_vocab_size < 1:
        reasons.append(f"type_vocab_size={config.type_vocab_size}, expected 1 or more")
    return reasons


def _classifier(config: Any) -> Head | str:
    """Return the head of candidates or of tokens, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, pooler="pooler")
    return token_head(config)


def _question_head(config: Any) -> str:
    return "feed-forward network with a residual connection, where ours is one linear map"


def _source_config(config: LongspanConfig) -> BigBirdConfig:
    kinds = {name: kind for kind, name in MECHANISMS.items()}
    names = dict.fromkeys(config.attention_names)
    if len(names) > 1 or not names.keys() <= kinds.keys():
        raise OptionError(
            f"the attention must be one of {', '.join(kinds)} in all layers, got "
            f"{' and '.join(names)}"
        )
    (name,) = names
    own: dict[str, Any] = {"attention_type": kinds[name]}
    if kinds[name] == SPARSE:
        options = options_of(name) | config.layer_options(0)
        random = options["num_random_blocks"]
        own |= {
            "block_size": options["block"],
            "num_random_blocks": 3 if random is None else random,
        }
    return BigBirdConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        **own,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings,
        use_bias=config.has_qkv_bias,
        rescale_embeddings=config.scale_embedding,
        sep_token_id=config.sep_token_id,
        tie_word_embeddings=config.tie_word_embeddings,
    )


FAMILY = Family(
    model_types=("big_bird",),
    prefix="bert.",
    fields=_fields,
    weights=bert_weights,
    heads={
        "cls.predictions.": bert_head,
        "classifier.dense.": lambda config: sequence_head(config, config.hidden_act),
        "classifier.": _classifier,
        "qa_classifier.": _question_head,
    },
    dropped={**DROPPED, "cls.seq_relationship.*": "next-sentence head, which is not used"},
    refusals=_refusals,
    attention=_attention,
    source_config=_source_config,
    architectures=ARCHITECTURES,
)
