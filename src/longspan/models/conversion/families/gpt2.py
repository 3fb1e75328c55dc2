"""GPT-2 (Radford et al. 2019).

A decoder with normalization before each block. Its linear maps are saved transposed. transformers
counts the positions of padding on the left, unless `position_ids` are given; ours, like its
`generate`, count real tokens. Dropout of the embeddings becomes that of the blocks.
"""

from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import TASK_HEAD
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    layer_weights,
    parameters,
    same,
    unlike,
)
from longspan.models.conversion.heads import classes, last_token_head, question_head, token_head
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification

NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
_LINEAR: dict[str, str | tuple[str, tuple[int, int]]] = {
    "attention.query": ("attn.c_attn", (0, 3)),
    "attention.key": ("attn.c_attn", (1, 3)),
    "attention.value": ("attn.c_attn", (2, 3)),
    "attention.output": "attn.c_proj",
    "feed_forward.input": "mlp.c_fc",
    "feed_forward.output": "mlp.c_proj",
}
_LANGUAGE_HEAD = Head(LongspanForCausalLM, [], "lm_head.weight")
_LANGUAGE_MODELS = ("GPT2LMHeadModel", "GPT2DoubleHeadsModel")
MASK = "constant of the mask"


def _weights(config: Any) -> list[Weight]:
    return [
        Weight(WORDS, ("wte.weight",)),
        Weight(POSITIONS, ("wpe.weight",)),
        *parameters("norm", "ln_f"),
        *layer_weights(NORMS, "h.{}", config.n_layer),
        *(
            weight._replace(transposed=weight.target.endswith(".weight"))
            for weight in layer_weights(_LINEAR, "h.{}", config.n_layer)
        ),
    ]


def _refusals(config: Any) -> list[str]:
    scaling = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    return unlike(config, **scaling, add_cross_attention=False)


def _tied_head(config: Any) -> Head | None:
    """Return the head of a language model, whose tied matrix is not saved."""
    is_language_model = set(_LANGUAGE_MODELS) & set(config.architectures or ())
    return _LANGUAGE_HEAD if is_language_model else None


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    if not config.is_decoder:
        raise OptionError("is_decoder must be True, got False")
    return {
        "n_inner": config.intermediate_size,
        "n_positions": config.max_position_embeddings,
        "embd_pdrop": config.hidden_dropout_prob,
    }


FAMILIES = (
    Family(
        model_types=("gpt2",),
        prefix="transformer.",
        fields={
            **same("vocab_size", "initializer_range", "use_cache"),
            **same("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "hidden_act": "activation_function",
            "hidden_dropout_prob": "resid_pdrop",
            "attention_dropout": "attn_pdrop",
            "layer_norm_eps": "layer_norm_epsilon",
        },
        constants={"norm": "pre", "position": "learned", "pooling": "last", "is_decoder": True},
        derived=lambda config: {"intermediate_size": config.n_inner or 4 * config.n_embd},
        weights=_weights,
        heads={
            "score.": last_token_head,
            "classifier.": token_head,
            "qa_outputs.": question_head,
            "lm_head.": lambda _: _LANGUAGE_HEAD,
            "": _tied_head,
        },
        dropped={
            "h.*.attn.bias": MASK,
            "h.*.attn.masked_bias": MASK,
            "multiple_choice_head.*": TASK_HEAD,
        },
        refusals=_refusals,
        architectures={
            **classes(
                "GPT2",
                LongspanForCausalLM,
                LongspanForSequenceClassification,
                LongspanForTokenClassification,
                LongspanForQuestionAnswering,
            ),
            LongspanForCausalLM: "GPT2LMHeadModel",
        },
        source_fields=_source_fields,
    ),
)
