"""Heads that the families share, by the names of their weights in transformers.

Published classes make tokens global where the caller names none: the first one of a text to
classify, the question, the candidate answers. `tokens` names this rule, `default_global_tokens`.
"""

from typing import Any

from longspan.models.base import LongspanPreTrainedModel
from longspan.models.conversion.family import Head, Weight, parameters
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

ENCODERS: tuple[type[LongspanPreTrainedModel], ...] = (
    LongspanForMaskedLM,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanForQuestionAnswering,
    LongspanForMultipleChoice,
)


def classes(
    name: str,
    *heads: type[LongspanPreTrainedModel],
    base: type[LongspanPreTrainedModel] = LongspanModel,
) -> dict[type[LongspanPreTrainedModel], str]:
    """Return the name in transformers of the base class and of each class with a head.

    Args:
        name: name of the family in the names of its classes.
        heads: classes of ours; none: all of `ENCODERS`.
        base: class without a head.
    """
    names = {cls: cls.__name__.replace("Longspan", name) for cls in heads or ENCODERS}
    return {base: f"{name}Model", **names}


def masked_head(
    config: Any,
    *,
    dense: str,
    norm: str,
    output: str,
    bias: str | None = None,
    activation: str | None = None,
) -> Head | str:
    """Return the head for masked tokens, or why it cannot be kept.

    Args:
        config: configuration of the source.
        dense: name of the hidden layer.
        norm: name of the norm after it.
        output: name of the map to the vocabulary.
        bias: name of the bias of the logits where it is saved by itself too. The source reads that
            of the output matrix, which equals the other one if weights are tied.
        activation: activation of the hidden layer; None: that of the layers.
    """
    if activation and activation != config.hidden_act:
        return activation_refusal(activation, config.hidden_act)
    names = [bias, f"{output}.bias"] if config.tie_word_embeddings else [f"{output}.bias", bias]
    weights = [
        *parameters("transform.dense", dense),
        *parameters("transform.norm", norm),
        Weight("lm_head.bias", tuple(name for name in names if name)),
    ]
    return Head(LongspanForMaskedLM, weights, f"{output}.weight")


def activation_refusal(head: str, layers: str) -> str:
    """Return why a head with another activation than the layers cannot be kept."""
    return f"the head's activation is {head}, that of the layers {layers}"


def sequence_head(
    config: Any,
    activation: str | None = None,
    tokens: str = "none",
    hidden: str = "classifier.dense",
    output: str = "classifier.out_proj",
) -> Head:
    """Return the head that classifies the first token through a hidden layer.

    Args:
        config: configuration of the source.
        activation: activation of the hidden layer; None: that of the layers.
        tokens: tokens that are global unless the caller names some.
        hidden: name of the hidden layer.
        output: name of the linear map after it.
    """
    weights = [
        *parameters("classifier.hidden", hidden),
        *parameters("classifier.output", output),
    ]
    fields = {
        **_pooled(config, activation or config.hidden_act),
        **_labels(config),
        "problem_type": config.problem_type,
        "default_global_tokens": tokens,
    }
    return Head(LongspanForSequenceClassification, weights, fields=fields)


def last_token_head(config: Any) -> Head:
    """Return the linear head without a bias that classifies the last token of a decoder."""
    fields = {
        **_labels(config),
        "problem_type": config.problem_type,
        "pooling": "last",
        "classifier_hidden_size": 0,
        "classifier_bias": False,
    }
    weights = parameters("classifier.output", "score", "weight")
    return Head(LongspanForSequenceClassification, weights, fields=fields)


def token_head(config: Any) -> Head | str:
    """Return the linear head that classifies every token, or why it cannot be kept."""
    if config.num_labels < 2:
        return "it predicts one number for each token"
    fields = {**_labels(config), "classifier_hidden_size": 0}
    weights = parameters("classifier.output", "classifier")
    return Head(LongspanForTokenClassification, weights, fields=fields)


def question_head(config: Any, tokens: str = "none") -> Head | str:
    """Return the head for the first and the last token of an answer, or why it cannot be kept."""
    if config.num_labels != 2:
        return f"it has {config.num_labels} numbers for each token, expected 2"
    weights = parameters("qa_outputs", "qa_outputs")
    return Head(LongspanForQuestionAnswering, weights, fields={"default_global_tokens": tokens})


def choice_head(
    config: Any, tokens: str = "none", pooler: str = "pooler.dense", activation: str = "tanh"
) -> Head:
    """Return the head that scores candidates by a hidden layer and a linear map.

    Args:
        config: configuration of the source.
        tokens: tokens that are global unless the caller names some.
        pooler: name of the hidden layer, that of the pooler unless the head has its own.
        activation: activation of the hidden layer.
    """
    weights = [
        *parameters("classifier.hidden", pooler),
        *parameters("classifier.output", "classifier"),
    ]
    fields = {**_pooled(config, activation), "default_global_tokens": tokens}
    return Head(LongspanForMultipleChoice, weights, fields=fields)


def choice_or_token_head(
    config: Any, tokens: str = "none", pooler: str = "pooler.dense"
) -> Head | str:
    """Return the head of candidates or of tokens, whose weights have the same names."""
    return choice_head(config, tokens, pooler) if is_multiple_choice(config) else token_head(config)


def is_multiple_choice(config: Any) -> bool:
    """Return whether a source scores candidates; its weights may have the names of others."""
    return any(name.endswith("ForMultipleChoice") for name in config.architectures or ())


def _pooled(config: Any, activation: str) -> dict[str, Any]:
    return {
        "pooling": "first",
        "classifier_hidden_size": config.hidden_size,
        "classifier_activation": activation,
    }


def _labels(config: Any) -> dict[str, Any]:
    return {"id2label": config.id2label, "label2id": config.label2id}
