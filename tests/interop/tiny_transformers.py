"""Configurations of tiny models of transformers."""

from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # Large enough that attention affects the output.
    "initializer_range": 0.3,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
GROUPED = {**SIZES, **TOKENS, "num_key_value_heads": 2}
BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERN = {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, **TOKENS}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**GROUPED)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**GROUPED)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GROUPED, head_dim=8)),
    "bert": (BertModel, BertConfig(**SIZES, **BERT)),
    "modernbert": (
        ModernBertModel,
        ModernBertConfig(**SIZES, **MODERN, global_attn_every_n_layers=2),
    ),
}
CAUSAL = ("llama", "qwen2", "qwen3")
