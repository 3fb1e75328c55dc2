"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

BERT without types of tokens and without a pooler.
"""

from functools import partial
from typing import Any

from longspan.models.conversion.families.bert import COMPUTED, POST_NORM, encoder_weights
from longspan.models.conversion.family import Family, Head, same
from longspan.models.conversion.heads import (
    choice_head,
    classes,
    is_multiple_choice,
    masked_head,
    question_head,
    sequence_head,
    token_head,
)

LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.input": "ffn.lin1",
    "feed_forward.output": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}


def _pooled_head(config: Any) -> Head:
    """Return the head of candidates or of texts, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, pooler="pre_classifier", activation="relu")
    return sequence_head(config, "relu", hidden="pre_classifier", output="classifier")


FAMILY = Family(
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
    weights=partial(encoder_weights, layer=LAYER, source="transformer.layer.{}", types=False),
    heads={
        "vocab_": partial(
            masked_head,
            dense="vocab_transform",
            norm="vocab_layer_norm",
            output="vocab_projector",
        ),
        "qa_outputs.": question_head,
        "pre_classifier.": _pooled_head,
        "classifier.": token_head,
    },
    dropped=COMPUTED,
    architectures=classes("DistilBert"),
    source_fields=lambda config: {"max_position_embeddings": config.max_position_embeddings},
)
