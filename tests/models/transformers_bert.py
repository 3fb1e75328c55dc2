"""BERT of transformers with the weights of our encoder."""

import torch
from transformers import BertConfig, BertPreTrainedModel

from longspan.models import LongspanPreTrainedModel

LAYER_NAMES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.input": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
EMBEDDING_NAMES = {
    "embeddings.words": "embeddings.word_embeddings",
    "embeddings.positions": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
SHARED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "max_position_embeddings",
    "layer_norm_eps",
    "initializer_range",
)


def bert_names(num_layers: int) -> dict[str, str]:
    """Return the name of each module of BERT by the name of ours."""
    names = dict(EMBEDDING_NAMES)
    for i in range(num_layers):
        for ours, theirs in LAYER_NAMES.items():
            names[f"layers.{i}.{ours}"] = f"encoder.layer.{i}.{theirs}"
    return names


def bert_with_encoder_of(
    model: LongspanPreTrainedModel, cls: type[BertPreTrainedModel]
) -> BertPreTrainedModel:
    """Return a model of transformers whose encoder equals ours: full attention, `norm="post"`."""
    fields = {name: getattr(model.config, name) for name in SHARED_FIELDS}
    fields |= {name: getattr(model.config, name) for name in ("num_labels", "problem_type")}
    config = BertConfig(**fields, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    bert = cls(config).double().eval()
    for ours, theirs in bert_names(config.num_hidden_layers).items():
        state = model.base_model.get_submodule(ours).state_dict()
        bert.base_model.get_submodule(theirs).load_state_dict(state)
    with torch.no_grad():
        bert.base_model.embeddings.token_type_embeddings.weight.zero_()
    return bert
