"""Transformer models for every attention mechanism, registered with transformers' Auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from longspan.models.base import LongspanPreTrainedModel
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.continuation import Continuation
from longspan.models.conversion.converter import Conversion
from longspan.models.conversion.from_source import convert, longify
from longspan.models.conversion.to_source import to_transformers
from longspan.models.flops import encoder_flops
from longspan.models.heads.candidates import LongspanForCandidates
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.models.heads.coreference import LongspanForCoreference
from longspan.models.heads.coreference_head import decode_clusters
from longspan.models.heads.dual_encoder import LongspanDualEncoder
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.multi_hop import (
    LongspanForMultiHopQuestionAnswering,
    MultiHopLabels,
    MultiHopLogits,
    multi_hop_losses,
)
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.pair_classification import LongspanForPairClassification
from longspan.models.heads.question_answering import LongspanForQuestionAnswering, best_spans
from longspan.models.heads.reconstruction import LongspanForReconstruction
from longspan.models.heads.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.lengthening import lengthen
from longspan.models.model import LongspanModel

AutoConfig.register(LongspanConfig.model_type, LongspanConfig)
AutoModel.register(LongspanConfig, LongspanModel)
AutoModelForMaskedLM.register(LongspanConfig, LongspanForMaskedLM)
AutoModelForCausalLM.register(LongspanConfig, LongspanForCausalLM)
AutoModelForSeq2SeqLM.register(LongspanConfig, LongspanForConditionalGeneration)
AutoModelForSequenceClassification.register(LongspanConfig, LongspanForSequenceClassification)
AutoModelForTokenClassification.register(LongspanConfig, LongspanForTokenClassification)
AutoModelForQuestionAnswering.register(LongspanConfig, LongspanForQuestionAnswering)
AutoModelForMultipleChoice.register(LongspanConfig, LongspanForMultipleChoice)
# transformers' Trainer shifts the labels for label smoothing in the classes of this list only.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[LongspanConfig.model_type] = LongspanForCausalLM.__name__

__all__ = [
    "Continuation",
    "Conversion",
    "LongspanCache",
    "LongspanConfig",
    "LongspanDualEncoder",
    "LongspanEncoderDecoderModel",
    "LongspanForCandidates",
    "LongspanForCausalLM",
    "LongspanForConditionalGeneration",
    "LongspanForCoreference",
    "LongspanForMaskedLM",
    "LongspanForMultiHopQuestionAnswering",
    "LongspanForMultipleChoice",
    "LongspanForPairClassification",
    "LongspanForQuestionAnswering",
    "LongspanForReconstruction",
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "MultiHopLabels",
    "MultiHopLogits",
    "best_spans",
    "convert",
    "decode_clusters",
    "encoder_flops",
    "lengthen",
    "longify",
    "multi_hop_losses",
    "to_transformers",
]
