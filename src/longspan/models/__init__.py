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
from longspan.models.candidates import LongspanForCandidates
from longspan.models.classification import (
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
)
from longspan.models.config import LongspanConfig
from longspan.models.continuation import Continuation
from longspan.models.conversion.converter import Conversion
from longspan.models.conversion.from_source import convert, longify
from longspan.models.conversion.to_source import to_transformers
from longspan.models.coreference import LongspanForCoreference
from longspan.models.coreference_head import decode_clusters
from longspan.models.dual_encoder import LongspanDualEncoder
from longspan.models.flops import (
    count_candidate_flops,
    count_coreference_flops,
    count_flops,
    count_language_flops,
    count_multi_hop_flops,
    count_span_flops,
    count_text_to_text_flops,
    encoder_flops,
)
from longspan.models.language import LongspanForCausalLM, LongspanForMaskedLM
from longspan.models.lengthening import lengthen
from longspan.models.model import LongspanModel
from longspan.models.multi_hop import (
    LongspanForMultiHopQuestionAnswering,
    MultiHopLabels,
    MultiHopLogits,
    multi_hop_losses,
)
from longspan.models.multiple_choice import LongspanForMultipleChoice
from longspan.models.pair_classification import LongspanForPairClassification
from longspan.models.question_answering import LongspanForQuestionAnswering, best_spans
from longspan.models.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)

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
    "LongspanForSequenceClassification",
    "LongspanForTokenClassification",
    "LongspanModel",
    "LongspanPreTrainedModel",
    "MultiHopLabels",
    "MultiHopLogits",
    "best_spans",
    "convert",
    "count_candidate_flops",
    "count_coreference_flops",
    "count_flops",
    "count_language_flops",
    "count_multi_hop_flops",
    "count_span_flops",
    "count_text_to_text_flops",
    "decode_clusters",
    "encoder_flops",
    "lengthen",
    "longify",
    "multi_hop_losses",
    "to_transformers",
]
