"""GPT-2 (Radford et al. 2019).

A decoder with normalization before each block. Its linear maps are saved transposed. transformers
counts the positions of padding on the left, unless `position_ids` are given; ours, like its
`generate`, count real tokens. Dropout of the embeddings becomes that of the blocks.
"""

from typing import Any

from transformers import GPT2Config

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import TASK_HEAD
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    parameters,
)
from longspan.models.conversion.heads import last_token_head, question_head, token_head
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

SAME_FIELDS = (
    *("vocab_size", "initializer_range", "use_cache"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
)
NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
# Name in the source, and index in a matrix that holds several.
LINEAR = {
    "attention.query": ("attn.c_attn", (0, 3)),
    "attention.key": ("attn.c_attn", (1, 3)),
    "attention.value": ("attn.c_attn", (2, 3)),
    "attention.output": ("attn.c_proj", (0, 1)),
    "feed_forward.input": ("mlp.c_fc", (0, 1)),
    "feed_forward.output": ("mlp.c_proj", (0, 1)),
}
LANGUAGE_HEAD = Head(LongspanForCausalLM, [], "lm_head.weight")
LANGUAGE_MODELS = ("GPT2LMHeadModel", "GPT2DoubleHeadsModel")
MASK = "constant of the mask"


def _fields(config: Any) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "hidden_act": config.activation_function,
        "hidden_dropout_prob": config.resid_pdrop,
        "attention_dropout": config.attn_pdrop,
        "layer_norm_eps": config.layer_norm_epsilon,
        "norm": "pre",
        "position": "learned",
        "pooling": "last",
        "is_decoder": True,
    }


def _weights(config: Any) -> list[Weight]:
    weights = [
        Weight(WORDS, ("wte.weight",)),
        Weight(POSITIONS, ("wpe.weight",)),
        *parameters("norm", "ln_f"),
    ]
    for i in range(config.n_layer):
        for target, source in NORMS.items():
            weights += parameters(f"layers.{i}.{target}", f"h.{i}.{source}")
        for target, (source, part) in LINEAR.items():
            matrix, bias = parameters(f"layers.{i}.{target}", f"h.{i}.{source}")
            weights += [matrix._replace(part=part, transposed=True), bias._replace(part=part)]
    return weights


def _refusals(config: Any) -> list[str]:
    usual = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    given = {name: getattr(config, name) for name in usual}
    return [f"{name}={value}" for name, value in given.items() if value != usual[name]]


def _tied_head(config: Any) -> Head | None:
    """Return the head of a language model, whose tied matrix is not saved."""
    is_language_model = set(LANGUAGE_MODELS) & set(config.architectures or ())
    return LANGUAGE_HEAD if is_language_model else None


def _source_config(config: LongspanConfig) -> GPT2Config:
    if not config.is_decoder:
        raise OptionError("is_decoder must be True, got False")
    return GPT2Config(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        n_inner=config.intermediate_size,
        n_positions=config.max_position_embeddings,
        activation_function=config.hidden_act,
        resid_pdrop=config.hidden_dropout_prob,
        embd_pdrop=config.hidden_dropout_prob,
        attn_pdrop=config.attention_dropout,
        layer_norm_epsilon=config.layer_norm_eps,
    )


FAMILY = Family(
    model_types=("gpt2",),
    prefix="transformer.",
    fields=_fields,
    weights=_weights,
    heads={
        "score.": last_token_head,
        "classifier.": token_head,
        "qa_outputs.": question_head,
        "lm_head.": lambda _: LANGUAGE_HEAD,
        "": _tied_head,
    },
    dropped={
        "h.*.attn.bias": MASK,
        "h.*.attn.masked_bias": MASK,
        "multiple_choice_head.*": TASK_HEAD,
    },
    refusals=_refusals,
    source_config=_source_config,
    architectures={
        LongspanModel: "GPT2Model",
        LongspanForCausalLM: "GPT2LMHeadModel",
        LongspanForSequenceClassification: "GPT2ForSequenceClassification",
        LongspanForTokenClassification: "GPT2ForTokenClassification",
        LongspanForQuestionAnswering: "GPT2ForQuestionAnswering",
    },
)
