"""BERT and its relatives: short encoders with learned positions.

BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).

RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692) and models of its form.

ELECTRA, generator and discriminator (Clark et al. 2020, https://arxiv.org/abs/2003.10555).

ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942). BERT whose layers share their weights,
and whose embeddings are narrower than the states.

DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108). BERT without types of tokens and
without a pooler.

MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297). RoBERTa without types of tokens, whose
scores have the numbers of T5's relative positions too. transformers fixes the padding token of its
positions, the number of buckets and the largest distance, whatever the configuration says.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    layer_weights,
    parameters,
    same,
    type_refusals,
    unlike,
)
from longspan.models.conversion.heads import (
    choice_head,
    choice_or_token_head,
    classes,
    is_multiple_choice,
    masked_head,
    question_head,
    sequence_head,
    token_head,
)

LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.input": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_NO_TYPES = {
    **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    **same("intermediate_size", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"),
    **same("initializer_range", "pad_token_id", "bos_token_id", "eos_token_id"),
    **same("tie_word_embeddings"),
    "attention_dropout": "attention_probs_dropout_prob",
}
FIELDS = {**_NO_TYPES, **same("type_vocab_size")}
POST_NORM = {"norm": "post", "pooling": "first", "position": "learned"}
TASK_HEAD = "head of a task; train a new one"
COMPUTED = {"embeddings.position_ids": "index of each position, which is computed"}
POOLER = {**COMPUTED, "pooler.*": "the pooled state is that of the first token"}
DROPPED = {**POOLER, "classifier.*": TASK_HEAD, "qa_outputs.*": TASK_HEAD}
PRETRAINING = {**DROPPED, "cls.seq_relationship.*": "next-sentence head, which is not used"}


def encoder_weights(
    config: Any,
    layer: Mapping[str, str] = LAYER,
    source: str = "encoder.layer.{}",
    types: bool = True,
) -> list[Weight]:
    """Return the weights of embeddings and layers.

    Args:
        config: configuration of the source.
        layer: names of the modules of a layer.
        source: name of a layer.
        types: whether the source has types of tokens.
    """
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
    ]
    if types and config.type_vocab_size:
        weights += parameters("embeddings.types", "embeddings.token_type_embeddings", "weight")
    return weights + layer_weights(layer, source, config.num_hidden_layers)


def bert_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder with absolute positions."""
    usual = {"is_decoder": False, "add_cross_attention": False}
    return unlike(config, **usual, position_embedding_type="absolute")


BERT_HEAD = partial(
    masked_head,
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    output="cls.predictions.decoder",
    bias="cls.predictions.bias",
)
BERT = Family(
    model_types=("bert",),
    prefix="bert.",
    fields=FIELDS,
    constants=POST_NORM,
    weights=encoder_weights,
    heads={"cls.predictions.": BERT_HEAD},
    dropped=PRETRAINING,
    refusals=bert_refusals,
)


ROBERTA_HEAD = partial(
    masked_head,
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    output="lm_head.decoder",
    bias="lm_head.bias",
    activation="gelu",  # whatever that of the layers is
)
SKIPS_PADDING = {**POST_NORM, "positions_skip_padding": True}


def padding_refusals(config: Any) -> list[str]:
    """Return the reason why a source whose positions begin after the padding's row has none."""
    return [] if config.pad_token_id is not None else ["pad_token_id=None"]


ROBERTA = dataclasses.replace(
    BERT,
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    constants=SKIPS_PADDING,
    heads={"lm_head.": ROBERTA_HEAD},
    dropped=DROPPED,
    refusals=lambda config: bert_refusals(config) + padding_refusals(config),
    rows_before=lambda config: config.pad_token_id + 1,
)


def _electra_weights(config: Any) -> list[Weight]:
    is_wider = config.embedding_size != config.hidden_size
    widen = parameters("embeddings.widen", "embeddings_project") if is_wider else []
    return encoder_weights(config) + widen


_ELECTRA_HEAD = partial(
    masked_head,
    dense="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
    output="generator_lm_head",
    activation="gelu",  # whatever that of the layers is
)
ELECTRA = dataclasses.replace(
    BERT,
    model_types=("electra",),
    prefix="electra.",
    fields={**FIELDS, **same("embedding_size")},
    weights=_electra_weights,
    heads={"generator_": _ELECTRA_HEAD},
    dropped={
        **DROPPED,
        "discriminator_predictions.*": "head for replaced tokens, which is not used",
        "sequence_summary.*": TASK_HEAD,
    },
)


_ALBERT_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.input": "ffn",
    "feed_forward.output": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}
_ALBERT_TOKENS = "AlbertForTokenClassification"


def _albert_weights(config: Any) -> list[Weight]:
    group = "encoder.albert_layer_groups.{}.albert_layers.0"
    return [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.types", "embeddings.token_type_embeddings", "weight"),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
        *parameters("embeddings.widen", "encoder.embedding_hidden_mapping_in"),
        *layer_weights(_ALBERT_LAYER, group, config.num_hidden_groups),
    ]


def _albert_refusals(config: Any) -> list[str]:
    groups, layers, reasons = config.num_hidden_groups, config.num_hidden_layers, []
    if config.inner_group_num != 1:
        reasons.append(f"inner_group_num must be 1, got {config.inner_group_num}")
    if groups > layers:
        reasons.append(f"num_hidden_groups={groups} exceeds num_hidden_layers={layers}")
    if config.embedding_size == config.hidden_size:
        reasons.append(
            f"embedding_size={config.embedding_size} is hidden_size, where ours has no map between"
        )
    return reasons + type_refusals(config)


def _albert_classifier(config: Any) -> Head | str:
    """Return the head of candidates, tokens or texts, whose weights have the same names."""
    if is_multiple_choice(config) or _ALBERT_TOKENS in (config.architectures or ()):
        return choice_or_token_head(config, pooler="pooler")
    return sequence_head(config, "tanh", hidden="pooler", output="classifier")


def _albert_source_fields(config: LongspanConfig) -> dict[str, Any]:
    if config.num_hidden_groups is None or config.embedding_size is None:
        raise OptionError(
            "num_hidden_groups and embedding_size must be numbers, got "
            f"{config.num_hidden_groups} and {config.embedding_size}"
        )
    return {"max_position_embeddings": config.max_position_embeddings}


ALBERT = Family(
    model_types=("albert",),
    prefix="albert.",
    fields={**FIELDS, **same("embedding_size", "num_hidden_groups")},
    constants=POST_NORM,
    weights=_albert_weights,
    heads={
        "predictions.": partial(
            masked_head,
            dense="predictions.dense",
            norm="predictions.LayerNorm",
            output="predictions.decoder",
            bias="predictions.bias",
        ),
        "qa_outputs.": question_head,
        "classifier.": _albert_classifier,
    },
    dropped={**POOLER, "sop_classifier.*": "sentence-order head, which is not used"},
    refusals=_albert_refusals,
    architectures=classes("Albert"),
    source_fields=_albert_source_fields,
)


_DISTILBERT_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.input": "ffn.lin1",
    "feed_forward.output": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}


def _distilbert_pooled_head(config: Any) -> Head:
    """Return the head of candidates or of texts, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, pooler="pre_classifier", activation="relu")
    return sequence_head(config, "relu", hidden="pre_classifier", output="classifier")


_DISTILBERT = Family(
    model_types=("distilbert",),
    prefix="distilbert.",
    fields={
        **same("vocab_size", "attention_dropout", "initializer_range", "tie_word_embeddings"),
        **same("pad_token_id", "bos_token_id", "eos_token_id"),
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
    },
    constants={**POST_NORM, "layer_norm_eps": 1e-12},
    weights=partial(
        encoder_weights, layer=_DISTILBERT_LAYER, source="transformer.layer.{}", types=False
    ),
    heads={
        "vocab_": partial(
            masked_head,
            dense="vocab_transform",
            norm="vocab_layer_norm",
            output="vocab_projector",
        ),
        "qa_outputs.": question_head,
        "pre_classifier.": _distilbert_pooled_head,
        "classifier.": token_head,
    },
    dropped=COMPUTED,
    architectures=classes("DistilBert"),
    source_fields=lambda config: {"max_position_embeddings": config.max_position_embeddings},
)


MPNET_PADDING, MPNET_BUCKETS, MPNET_MAX_DISTANCE = 1, 32, 128
_MPNET_ATTENTION = {
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}


def _mpnet_weights(config: Any) -> list[Weight]:
    table = "relative_attention_bias.weight"
    weights = encoder_weights(config, {**LAYER, **_MPNET_ATTENTION}, types=False)
    return [*weights, Weight(f"relative.{table}", (f"encoder.{table}",))]


def _mpnet_refusals(config: Any) -> list[str]:
    fixed = {"pad_token_id": MPNET_PADDING, "relative_attention_num_buckets": MPNET_BUCKETS}
    values = {name: getattr(config, name) for name in fixed}
    return [
        f"{name} must be {fixed[name]}, which transformers reads whatever it is, got {value}"
        for name, value in values.items()
        if value != fixed[name]
    ]


_MPNET = Family(
    model_types=("mpnet",),
    prefix="mpnet.",
    fields={**_NO_TYPES, **same("relative_attention_num_buckets")},
    constants={
        **SKIPS_PADDING,
        "has_relative_attention_bias": True,
        "relative_attention_max_distance": MPNET_MAX_DISTANCE,
    },
    weights=_mpnet_weights,
    heads={
        "lm_head.": ROBERTA_HEAD,
        "qa_outputs.": question_head,
        "classifier.dense.": partial(sequence_head, activation="tanh"),
        "classifier.": choice_or_token_head,
    },
    dropped=POOLER,
    refusals=_mpnet_refusals,
    rows_before=lambda _: MPNET_PADDING + 1,
    architectures=classes("MPNet"),
    source_fields=lambda config: {
        "max_position_embeddings": config.max_position_embeddings + MPNET_PADDING + 1
    },
)


FAMILIES = (BERT, ROBERTA, ELECTRA, ALBERT, _DISTILBERT, _MPNET)
