"""Architectures of transformers with exact attention of ours: right, or refused by name."""

import pytest
import torch
import transformers
from packaging.version import Version

import longspan
from longspan.errors import InputError
from longspan.interop.calls import AttentionFunction

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
FIELDS = {
    "ModernBert": {"cls_token_id": 1, "sep_token_id": 2},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "GPT2": {"n_layer": 2, "n_head": 4, "n_embd": 32},
    "CodeGen": {"rotary_dim": 8, "n_positions": 64},
    "Mpt": {"n_heads": 4, "n_layers": 2, "d_model": 32, "max_seq_len": 64},
    "Longformer": {"attention_window": 4},
}
ENCODERS = [
    "Albert",
    "Bert",
    "Camembert",
    "Data2VecText",
    "DistilBert",
    "Electra",
    "Ernie",
    "Esm",
    "JinaEmbeddingsV3",
    "ModernBert",
    "NomicBert",
    "Roberta",
    "RobertaPreLayerNorm",
    "XLMRoberta",
]
DECODERS = [
    "Arcee",
    "BioGpt",
    "CTRL",
    "Cohere",
    "Cohere2",
    "Ernie4_5",
    "Exaone4",
    "GPT2",
    "GPTBigCode",
    "GPTNeoX",
    "Gemma",
    "Gemma3Text",
    "Glm4",
    "Granite",
    "Helium",
    "Llama",
    "Mistral",
    "OPT",
    "Olmo2",
    "Persimmon",
    "Phi",
    "Phi3",
    "Qwen2",
    "Qwen3",
    "SmolLM3",
    "StableLm",
    "Starcoder2",
]
OWN_CODE = [
    "BigBird",
    "Bloom",
    "Canine",
    "CodeGen",
    "ConvBert",
    "GPTNeoXJapanese",
    "IBert",
    "Longformer",
    "MPNet",
    "MegatronBert",
    "Mpt",
    "Nystromformer",
    "RemBert",
    "RoFormer",
]
if Version(transformers.__version__) >= Version("5.24"):
    OWN_CODE.remove("CodeGen")
    DECODERS.append("CodeGen")
OTHERS = {
    "LayoutLM": "is_causal",
    "Splinter": "is_causal",
    "Gemma2": "softcap",
    "VaultGemma": "softcap",
}
# They have no choice of an attention and create no mask, so they keep their own.
UNASKED = ("DebertaV2", "OpenAIGPT", "XLM")
BATCHES = [(1, 12, 0), (3, 12, 4), (12, 12, 4), (2, 12, 0)]


def make(name, attention):
    cls = getattr(transformers, f"{name}Model")
    for head in ("ForCausalLM", "LMHeadModel"):
        if name in DECODERS:
            cls = getattr(transformers, name + head, cls)
    fields = {**SIZES, **(GROUPED if name in DECODERS else {}), **FIELDS.get(name, {})}
    config = getattr(transformers, f"{name}Config")(**fields)
    torch.manual_seed(0)
    return cls._from_config(config, attn_implementation=attention).double().eval()


def inputs():
    """Yield batches, padded on the right: of one row, and of as many rows as tokens, too."""
    for B, T, padded in BATCHES:
        mask = torch.ones(B, T, dtype=torch.long)
        mask[0, T - padded :] = 0
        yield {"input_ids": torch.randint(3, 59, (B, T)), "attention_mask": mask}
        if not padded:
            yield {"input_ids": torch.randint(3, 59, (B, T))}


@pytest.fixture
def calls(monkeypatch):
    """Calls of our attention function."""
    made, call = [], AttentionFunction.__call__
    monkeypatch.setattr(
        AttentionFunction, "__call__", lambda self, *x, **y: made.append(1) or call(self, *x, **y)
    )
    return made


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS, *UNASKED])
@torch.no_grad()
def test_architecture_is_right(name, calls):
    expected, found = make(name, None), make(name, longspan.register_attention("full"))
    found.load_state_dict(expected.state_dict())
    for batch in inputs():
        real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        calls.clear()
        logits = [model(**batch)[0][real] for model in (expected, found)]
        torch.testing.assert_close(*logits)
        assert len(calls) == (0 if name in UNASKED else 2)  # layers


@pytest.mark.parametrize("name", [*OWN_CODE, *OTHERS])
@torch.no_grad()
def test_architecture_is_refused_by_name(name):
    model = make(name, longspan.register_attention("full"))
    reason = OTHERS.get(name, f"models with {name}Config compute attention by their own code")
    for batch in inputs():
        with pytest.raises(InputError, match=reason):
            model(**batch)


def test_a_configuration_of_ones_own_has_the_models_of_its_parent(calls):
    config = type("OwnConfig", (transformers.BertConfig,), {})(**SIZES)
    config._attn_implementation = longspan.register_attention("full")
    transformers.BertModel(config)(**next(inputs()))
    assert len(calls) == 2
    config = type("OwnConfig", (transformers.BloomConfig,), {})(**SIZES)
    config._attn_implementation = longspan.register_attention("full")
    with pytest.raises(InputError, match="OwnConfig compute attention by their own code"):
        transformers.BloomModel(config)(**next(inputs()))
