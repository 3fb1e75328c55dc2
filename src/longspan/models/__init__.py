"""Transformer models for every attention mechanism, registered with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from longspan.models.config import LongspanConfig
from longspan.models.encoder import LongspanModel, LongspanPreTrainedModel
from longspan.models.flops import count_flops
from longspan.models.heads import (
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)
from longspan.models.lengthening import lengthen

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification)

__all__ = [
    "LongspanConfig",
    "LongspanForPairClassification",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "count_flops",
    "lengthen",
]
