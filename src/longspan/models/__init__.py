"""Transformer models for every attention mechanism, registered with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from longspan.models.base import LongspanPreTrainedModel
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.conversion.convert import Conversion, longify
from longspan.models.flops import count_flops
from longspan.models.heads import (
    LongspanForPairClassification,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)
from longspan.models.language import LongspanForCausalLM, LongspanForMaskedLM
from longspan.models.lengthening import lengthen
from longspan.models.model import LongspanModel

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification)

__all__ = [
    "Conversion",
    "LongspanCache",
    "LongspanConfig",
    "LongspanForCausalLM",
    "LongspanForMaskedLM",
    "LongspanForPairClassification",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "count_flops",
    "lengthen",
    "longify",
]
