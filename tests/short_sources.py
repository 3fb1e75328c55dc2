"""Tiny random checkpoints of transformers, as sources of `longify`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    MBartConfig,
    MBartForConditionalGeneration,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

VOCABULARY = 40
LENGTH = 20  # tokens of each source
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "type_vocab_size": 2,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 1,
}
# Layers 0 and 2 attend to all tokens, layer 1 to 3 tokens on each side.
MODERN = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "local_attention": 6,
    **{"bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2},
}
# Positions of RoBERTa begin after the row of the padding.
SOURCES = {
    "bert": (BertForMaskedLM, BertConfig, {}),
    "roberta": (RobertaForMaskedLM, RobertaConfig, {"max_position_embeddings": LENGTH + 2}),
    "modernbert": (ModernBertForMaskedLM, ModernBertConfig, MODERN),
    "electra": (ElectraForMaskedLM, ElectraConfig, {"embedding_size": 12}),
    "distilbert": (DistilBertForMaskedLM, DistilBertConfig, {"hidden_dim": 24}),
    "albert": (AlbertForMaskedLM, AlbertConfig, {"embedding_size": 12}),
}
# The scores of a head of this width are larger by a power of two than those that are divided.
T5 = {
    **{"vocab_size": VOCABULARY, "n_positions": LENGTH, "d_model": 16, "d_kv": 4, "d_ff": 24},
    **{"num_layers": 2, "num_heads": 2, "pad_token_id": 1, "relative_attention_max_distance": 16},
    **{"relative_attention_num_buckets": 8, "is_encoder_decoder": False},
}
# Fields of the families that go both ways, by `model_type`.
BOTH_WAYS: dict[str, dict] = {
    "gpt2": {
        **{
            "vocab_size": VOCABULARY,
            "n_positions": LENGTH,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
        },
        **{"n_inner": 24, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
    },
    "distilbert": {
        **{"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "pad_token_id": 1},
        **{"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    },
    "mpnet": {
        **{name: size for name, size in SIZES.items() if name != "type_vocab_size"},
        "max_position_embeddings": LENGTH + 2,
    },
    "albert": {**{**SIZES, "embedding_size": 12, "num_hidden_layers": 4, "num_hidden_groups": 2}},
    "t5": {**T5, "feed_forward_proj": "gated-gelu"},
    "longt5": {**T5, "local_radius": 3},
    # Inputs of up to 36 tokens have full attention.
    "big_bird": {
        **{**SIZES, "max_position_embeddings": 72, "sep_token_id": 3},
        **{"block_size": 4, "num_random_blocks": 2},
    },
    # Windows of both sides.
    "longformer": {
        **{**SIZES, "max_position_embeddings": LENGTH + 2, "sep_token_id": 2},
        "attention_window": [4, 8],
    },
    # As many landmarks as tokens in a segment: exact attention at any length.
    "nystromformer": {
        **{**SIZES, "max_position_embeddings": 36, "conv_kernel_size": 5},
        **{"num_landmarks": 8, "segment_means_seq_len": 8},
    },
}
# The parts differ in their sizes.
PARTS = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "max_position_embeddings": LENGTH,
    **{"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
    **{"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 20},
    **{"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
}
ENCODER_DECODERS = {
    "bart": (BartForConditionalGeneration, BartConfig, PARTS),
    "mbart": (MBartForConditionalGeneration, MBartConfig, {**PARTS, "scale_embedding": True}),
    "pegasus": (PegasusForConditionalGeneration, PegasusConfig, PARTS),
}


def make(name: str, **fields) -> PreTrainedModel:
    """Return a source whose every parameter affects the outputs."""
    cls, config, own = SOURCES[name]
    return draw(cls(config(**{**SIZES, **own, **fields})))


def make_both_ways(name: str, **fields) -> PreTrainedModel:
    """Return a model of a class of a family that goes both ways."""
    cls = getattr(transformers, name)
    return draw(cls(cls.config_class(**{**BOTH_WAYS[cls.config_class.model_type], **fields})))


def make_encoder_decoder(name: str, **fields) -> PreTrainedModel:
    """Return an encoder-decoder whose every parameter, and bias of the logits, affects outputs."""
    cls, config, own = ENCODER_DECODERS[name]
    model = draw(cls(config(**{**own, **fields})))
    model.final_logits_bias.normal_()
    return model


@torch.no_grad()
def forward(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> Any:
    """Call a model and return all states, as its class in transformers has to be called.

    A decoder has to be told which tokens are padding. BigBird seeds numpy, and keeps full attention
    after a short input. Nystromformer takes padding beside landmarks in a mask of four axes alone.
    """
    config, mask = model.config, inputs["attention_mask"]
    if config.model_type == "gpt2":
        inputs = {**inputs, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    if config.model_type == "nystromformer" and (
        config.num_landmarks != config.segment_means_seq_len
    ):
        bias = torch.zeros(len(mask), 1, 1, mask.shape[1], dtype=torch.float64)
        inputs = inputs | {"attention_mask": bias.masked_fill(mask[:, None, None] == 0, -1e300)}
    if config.model_type == "big_bird":
        model.base_model.set_attention_type(config.attention_type)
    state = np.random.get_state()
    output = model(**inputs, output_hidden_states=True)
    np.random.set_state(state)
    return output


@torch.no_grad()
def assert_equal_parts(
    ours: PreTrainedModel,
    theirs: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    atol: float = 2e-5,
    rtol: float = 1e-5,
) -> None:
    """Compare the states of all layers of an encoder and its decoder, the logits and the loss.

    The states within LED's encoder include padding to a multiple of its window.
    """
    mine, other = (x(**inputs, output_hidden_states=True, use_cache=False) for x in (ours, theirs))
    real = inputs["attention_mask"].bool()
    states = zip(mine.encoder_hidden_states, other.encoder_hidden_states, strict=True)
    pairs = [(a[real], b[:, : real.shape[1]][real]) for a, b in states]
    pairs += zip(mine.decoder_hidden_states, other.decoder_hidden_states, strict=True)
    pairs += [(mine[field], other[field]) for field in ("logits", "loss") if field in other]
    for a, b in pairs:
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def draw(model: PreTrainedModel) -> PreTrainedModel:
    """Add noise to all parameters of a model."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def move_generation_defaults(folder: Path) -> None:
    """Move the generation defaults of a checkpoint to its `config.json`."""
    old, new = folder / "generation_config.json", folder / "config.json"
    new.write_text(json.dumps(json.loads(new.read_text()) | json.loads(old.read_text())))
    old.unlink()


def save_tokenizer(folder: Path, size: int = VOCABULARY) -> None:
    """Save a tokenizer of the numbers from 0, with the ids of RoBERTa's special tokens."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(str, range(size - 5))]
    tokenizer = Tokenizer(models.WordLevel({x: i for i, x in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        **{"pad_token": "<pad>", "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>"},
        **{"sep_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"},
    ).save_pretrained(folder)
