"""Heads of tasks that transformers' encoders and ours share, under the names of BERT's classes.

Published classes make tokens global where the caller names none: the first one of a text to
classify, the question, the candidate answers. `tokens` names this rule, `default_global_tokens`.
"""

from typing import Any

from longspan.models.conversion.family import Head, parameters
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification


def sequence_head(
    config: Any,
    activation: str,
    tokens: str = "none",
    hidden: str = "classifier.dense",
    output: str = "classifier.out_proj",
) -> Head:
    """Return the head that classifies the first token through a hidden layer.

    Args:
        config: configuration of the source.
        activation: activation of the hidden layer.
        tokens: tokens that are global unless the caller names some.
        hidden: name of the hidden layer.
        output: name of the linear map after it.
    """
    weights = [
        *parameters("classifier.hidden", hidden),
        *parameters("classifier.output", output),
    ]
    fields = {
        **_pooled(config, activation),
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
