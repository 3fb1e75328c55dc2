"""What an attention implementation supports of a model's own attention, and refuses."""

import pytest
import torch
from tiny_transformers import GROUPED, SIZES
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralForCausalLM,
    NllbMoeConfig,
    NllbMoeModel,
    PhimoeConfig,
    PhimoeModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5EncoderModel,
)
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.gemma2 import Gemma2Config, Gemma2Model

import longspan
from longspan.errors import InputError, OptionError
from longspan.interop.masks import create_padding_mask, order_of

IDS = torch.arange(3, 27).repeat(2, 1)


def make(cls, config, attention):
    """Build a model with equal weights for every attention."""
    torch.manual_seed(0)
    return cls._from_config(config, attn_implementation=attention, dtype=torch.float64).eval()


def full():
    return longspan.register_attention("full")


def llama(attention, **fields):
    return make(LlamaModel, LlamaConfig(**GROUPED, **fields), attention)


QWEN = Qwen2Config(**GROUPED, sliding_window=5, use_sliding_window=True, max_window_layers=1)
MISTRAL = MistralConfig(**GROUPED, sliding_window=5)


@pytest.mark.parametrize(
    ("cls", "config"), [(Qwen2ForCausalLM, QWEN), (MistralForCausalLM, MISTRAL)]
)
@torch.no_grad()
def test_layers_keep_their_own_window(cls, config):
    own, expected = make(cls, config, full()), make(cls, config, "sdpa")
    mask = torch.ones_like(IDS)
    mask[0, :7] = 0
    logits = (model(IDS, attention_mask=mask).logits[mask.bool()] for model in (own, expected))
    torch.testing.assert_close(*logits)
    fixed = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(own.generate(IDS, **fixed), expected.generate(IDS, **fixed))


@torch.no_grad()
def test_position_bias_reaches_the_mechanism():
    config = T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=24, num_layers=2, num_heads=4)
    mask = torch.ones_like(IDS)
    mask[0, 20:] = 0
    wide = longspan.register_attention("local", name="wide", window=64)
    expected = make(T5EncoderModel, config, "sdpa")(IDS, attention_mask=mask)[0][mask.bool()]
    for name in (full(), wide):
        out = make(T5EncoderModel, config, name)(IDS, attention_mask=mask)[0][mask.bool()]
        torch.testing.assert_close(out, expected)
    linear = make(T5EncoderModel, config, longspan.register_attention("linear"))
    with pytest.raises(InputError, match=r"scale is not supported.*bias is not supported"):
        linear(IDS)


@torch.no_grad()
def test_cross_attention_needs_a_mechanism_that_has_it():
    config = BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    # As many states as queries: lengths do not show that this is cross-attention.
    inputs = {"input_ids": IDS, "encoder_hidden_states": torch.randn(2, 24, 32).double()}
    inputs["encoder_attention_mask"] = (torch.arange(24) < 20).expand(2, -1)
    out, expected = (make(BertModel, config, name)(**inputs)[0] for name in (full(), "sdpa"))
    torch.testing.assert_close(out, expected)
    local = make(BertModel, config, longspan.register_attention("local"))
    with pytest.raises(InputError, match="local does not support cross-attention"):
        local(**inputs)


@torch.no_grad()
def test_packed_sequences_and_masks_of_pairs_are_refused():
    model = llama(full())
    with pytest.raises(InputError, match="packed sequences"):
        model(IDS, position_ids=torch.arange(12).repeat(2, 2), use_cache=False)
    pairs = torch.ones(2, 1, 24, 24, dtype=torch.bool).tril()
    with pytest.raises(InputError, match=r"must mark real tokens.*\(2, 1, 24, 24\)"):
        model(IDS, attention_mask=pairs)
    with pytest.raises(InputError, match="cu_seq_lens_q"):
        model(IDS, cu_seq_lens_q=torch.tensor([0, 12, 24]))


@torch.no_grad()
def test_capped_scores_are_refused():
    config = Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=50.0)
    with pytest.raises(InputError, match="softcap"):
        make(Gemma2Model, config, full())(IDS)


@torch.no_grad()
def test_window_that_is_not_passed_on_is_refused():
    model = make(Qwen2ForCausalLM, QWEN, full())
    model.model.layers[1].self_attn.sliding_window = None
    with pytest.raises(InputError, match="does not pass on"):
        model(IDS)


NLLB = NllbMoeConfig(
    vocab_size=40,
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    num_experts=2,
)
PHIMOE = PhimoeConfig(**GROUPED, sliding_window=4, num_local_experts=2)


@pytest.mark.parametrize("attention", ["full", "local", "linear"])
@pytest.mark.parametrize(
    ("cls", "config", "message"),
    [
        (NllbMoeModel, NLLB, "the mask is causal, and the module's is_causal says bidirectional"),
        (PhimoeModel, PHIMOE, "the mask has a sliding window, and the call has no"),
    ],
)
@pytest.mark.parametrize("padded", [0, 5])
def test_a_mask_that_says_more_than_the_call_is_refused(cls, config, message, padded, attention):
    name = longspan.register_attention(attention)
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation=name).eval()
    mask = torch.arange(IDS.shape[1]).expand_as(IDS) >= padded
    more = {"decoder_input_ids": IDS} if cls is NllbMoeModel else {}
    with pytest.raises(InputError, match=message):
        model(IDS, attention_mask=mask.long(), **more)


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_inputs_of_other_attentions_are_refused(name):
    with pytest.raises(InputError, match=rf"\({name}\) is not supported"):
        llama(full())(IDS, **{name: torch.zeros(1)})


def test_bidirectional_mechanism_is_refused_in_a_causal_model():
    name = longspan.register_attention("nystrom")
    with pytest.raises(OptionError, match="causal=True is not supported"):
        llama(name)(IDS)


def test_dropout_without_weights_is_refused():
    model = llama(longspan.register_attention("linear"), attention_dropout=0.1)
    model(IDS)
    with pytest.raises(OptionError, match=r"dropout=0\.1; load the model"):
        model.train()(IDS)


def test_scores_with_another_factor():
    model, expected = llama(full()), llama("sdpa")
    linear = llama(longspan.register_attention("linear"))
    for one in (model, expected, linear):
        for layer in one.layers:
            layer.self_attn.scaling = 0.1
    torch.testing.assert_close(model(IDS)[0], expected(IDS)[0])
    with pytest.raises(InputError, match="scale is not supported"):
        linear(IDS)


@pytest.mark.parametrize(
    "name", ["flashy", "flex", "my_sdpa", "a/b", "a|b", "eager", "", "swapped"]
)
def test_reserved_names_are_refused(name):
    with pytest.raises(OptionError, match="name must have"):
        longspan.register_attention("local", name=name)


def test_name_belongs_to_one_variant():
    assert longspan.register_attention("local", name="one", window=3) == "longspan:one"
    assert longspan.register_attention("local", name="one", window=3) == "longspan:one"
    with pytest.raises(OptionError, match=r"already registered.*another name="):
        longspan.register_attention("local", name="one", window=4)
    with pytest.raises(OptionError, match="redraw_every"):
        longspan.register_attention("performer", name="redrawn", redraw_every=10)
    with pytest.raises(longspan.errors.UnknownNameError, match="no option of 'local'"):
        longspan.register_attention("local", name="two", windows=4)


def test_masks_have_no_pairs():
    padding = torch.arange(8) < 6
    made = create_padding_mask(1, 8, 8, attention_mask=padding[None])
    assert torch.equal(made, padding[None, None, None])
    every = create_padding_mask(1, 8, 8, attention_mask=torch.ones(1, 8))
    assert order_of(every) == (True, False, True)
    assert len(create_padding_mask(9, 8, 8).untyped_storage()) == 1
    # A cache with room for 12 tokens, 5 of which are written before these 3.
    assert create_padding_mask(1, 3, 12, torch.tensor(5)).shape == (1, 1, 1, 8)
    window = sliding_window_causal_mask_function(4)
    made = create_padding_mask(1, 8, 8, mask_function=window, local_size=4)
    assert order_of(made) == (True, True, True)
    for function in (window, lambda b, h, q, k: causal_mask_function(b, h, q, k)):
        with pytest.raises(InputError, match="custom mask functions"):
            create_padding_mask(1, 8, 8, mask_function=function)
