"""Relative positions in models: T5's and Transformer-XL's own formulas, decoding, refusals."""

import pytest
import torch
from test_causal import (
    assert_beams_ignore_left_padding,
    assert_left_padding_changes_nothing,
    decoder,
    logits_by_parts,
    tokens,
)
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from longspan.attention import MECHANISMS, Inputs
from longspan.errors import OptionError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanModel,
)
from longspan.models.attention_layer import SelfAttention
from longspan.models.relative import T5Positions, t5_buckets

ABLE = [name for name, cls in MECHANISMS.items() if cls.traits.relative]
T, HEADS, WIDTH = 40, 2, 32
BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}


@pytest.fixture(params=["t5", "relative"])
def position(request):
    return request.param


@pytest.fixture(params=ABLE)
def name(request):
    return request.param


def fields(name="full", position="relative", **changes):
    """Return the fields of a small model."""
    options = {"attention_options": dict(MECHANISMS[name].small_options)}
    return {"attention": name, "position": position, "hidden_size": WIDTH} | options | changes


def perturbed(module):
    """Return a module in float64 whose parameters all differ from their initial values."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module.eval()


def encoder(name="full", position="relative", **changes):
    sizes = {"vocab_size": 60, "max_position_embeddings": 64}
    torch.manual_seed(1)
    return perturbed(LongspanModel(LongspanConfig(**fields(name, position, **sizes | changes))))


def layer_and_context(name, position, **changes):
    """Return the attention of the first layer of a model, and the context that it reads."""
    model = encoder(name, position, **changes)
    ids = tokens(2)
    x = model.embeddings(ids)
    return model.layers[0].attention, model._context(x, ids, None, None, None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (4, 3), (64, 777)])
def test_buckets_equal_those_of_t5(causal, buckets, farthest):
    distances = torch.arange(-3000, 3000)
    expected = T5Attention._relative_position_bucket(-distances, not causal, buckets, farthest)
    assert t5_buckets(distances, buckets, farthest, causal).equal(expected)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("changes", [{}, BUCKETS])
def test_full_attention_equals_that_of_t5(causal, changes):
    attention, context = layer_and_context("full", "t5", is_decoder=causal, **changes)
    config = T5Config(
        d_model=WIDTH, d_kv=16, num_heads=HEADS, dropout_rate=0, is_decoder=causal, **changes
    )
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    pairs = zip((theirs.q, theirs.k, theirs.v, theirs.o), projections(attention), strict=True)
    for other, own in pairs:
        own.bias.zero_()
        own.weight.copy_(other.weight)
    attention.query.weight.mul_(16**0.5)  # T5 does not divide the products by sqrt(D)
    table = theirs.relative_attention_bias.weight
    model_table = context.relative.of_distance.__self__.relative_attention_bias.weight
    model_table.copy_(table)
    x = torch.randn(3, T, WIDTH, dtype=torch.float64)
    mask = torch.ones(3, 1, T, T).tril().log().double() if causal else None
    expected = theirs(x, mask=mask)[0]
    torch.testing.assert_close(attention(x, context).states, expected, rtol=0, atol=1e-12)


def projections(attention):
    return attention.query, attention.key, attention.value, attention.output


@torch.no_grad()
def test_full_causal_attention_equals_transformer_xl_with_one_segment():
    """Exactly the mechanism of that name, with the same parameters."""
    attention, context = layer_and_context("full", "relative", is_decoder=True)
    config = LongspanConfig(**fields("transformer_xl", "none", is_decoder=True))
    config.attention_options = {"segment": 64, "memory": 0}
    theirs = SelfAttention(config, 0).double().eval()
    for other, own in zip(projections(theirs), projections(attention), strict=True):
        other.load_state_dict(own.state_dict())
    theirs.mechanism.load_state_dict(attention.positions.state_dict())
    x = torch.randn(3, T, WIDTH, dtype=torch.float64)
    expected = theirs(x).states
    torch.testing.assert_close(attention(x, context).states, expected, rtol=0, atol=1e-12)


def dense_transformer_xl(attention, x, is_global, clamp):
    """Compute eq. 5 of Dai et al. 2019 with a vector for each pair of the mechanism."""
    places, D = attention.positions, attention.config.head_dim
    q, k, v = (p(x).unflatten(-1, (HEADS, D)).transpose(1, 2) for p in projections(attention)[:3])
    rate = 10_000.0 ** -(torch.arange(0, WIDTH, 2).double() / WIDTH)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    angles = (distance if clamp is None else distance.clamp(-clamp, clamp))[..., None] * rate
    r = torch.einsum("hdw,ijw->hijd", places.position, torch.cat([angles.sin(), angles.cos()], -1))
    content = (q + places.content_bias[:, None]) @ k.mT
    place = torch.einsum("bhid,hijd->bhij", q + places.position_bias[:, None], r)
    mask = attention.mechanism.dense_mask(Inputs(q, q, q, global_mask=is_global))
    weights = ((content + place) / D**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return attention.output((weights @ v).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("clamp", [None, 4])
def test_windows_equal_the_formula_of_transformer_xl(name, causal, clamp):
    """Global tokens included, whose distances reach over the whole row."""
    if name == "full":
        pytest.skip("has another test")
    changes = {"is_decoder": causal, "relative_clamp": clamp}
    attention, context = layer_and_context(name, "relative", **changes)
    x = torch.randn(2, T, WIDTH, dtype=torch.float64)
    for is_global in (None, torch.arange(T).eq(torch.tensor([[6], [31]]))):
        own = context._replace(global_mask=is_global)
        expected = dense_transformer_xl(attention, x, is_global, clamp)
        torch.testing.assert_close(attention(x, own).states, expected, rtol=0, atol=1e-12)


def test_layers_share_the_table_of_t5_and_own_their_sinusoids(name):
    model = encoder(name, "t5")
    names = [n for n, _ in model.named_parameters() if "relative" in n or "position" in n]
    assert names == ["relative.relative_attention_bias.weight"]
    model = encoder(name, "relative")
    names = [n for n, _ in model.named_parameters() if "relative" in n or "position" in n]
    own = ("position", "content_bias", "position_bias")
    assert names == [f"layers.{i}.attention.positions.{x}" for i in range(2) for x in own]


@pytest.mark.parametrize("causal", [False, True])
def test_every_parameter_trains(name, position, causal):
    model = encoder(name, position, is_decoder=causal, **BUCKETS).train()
    model(tokens(), use_cache=False).last_hidden_state.pow(3).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@torch.no_grad()
def test_padding_changes_nothing(name, position):
    model, ids = encoder(name, position, pooling="cls"), tokens(2)
    mask = torch.arange(T) < torch.tensor([[T], [23]])
    found = model(ids, mask).last_hidden_state[1, :23]
    expected = model(ids[1:, :23]).last_hidden_state[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def causal_lm(name, position, **changes):
    model = decoder(name, position=position, **changes)
    perturbed(model.model)
    return model


@torch.no_grad()
def test_parts_with_a_state_equal_the_whole(name, position):
    """One new token (projected queries) and several."""
    model, ids = causal_lm(name, position), tokens()
    for rows in (1, 3):
        found, state = logits_by_parts(model, ids[:rows], (17, 18, 19, 33))
        expected = model(ids[:rows], use_cache=False).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
        assert state.get_seq_length() == T


@torch.no_grad()
def test_generation_with_a_state_equals_generation_without(name, position):
    model, ids = causal_lm(name, position), tokens(2, 9)
    options = {"max_new_tokens": 9, "num_beams": 3, "do_sample": False}
    found = model.generate(ids, **options)
    assert found.equal(model.generate(ids, use_cache=False, **options))


@torch.no_grad()
def test_left_padding_changes_nothing(name, position):
    assert_left_padding_changes_nothing(causal_lm(name, position))


@torch.no_grad()
def test_beams_ignore_left_padding(position):
    assert_beams_ignore_left_padding(causal_lm("local", position))


@torch.no_grad()
def test_sink_tokens_keep_their_distance_in_generation(position):
    options = {"window": 4, "first_global": 2}
    model = causal_lm("longformer", position, attention_options=options)
    found, _ = logits_by_parts(model, tokens(), (5, 30, 31, 32))
    expected = model(tokens(), use_cache=False).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_encoder_decoders_have_a_table_on_each_side(position):
    config = LongspanConfig(
        **fields("local", position, vocab_size=60, is_encoder_decoder=True),
        decoder_start_token_id=1,
        max_position_embeddings=64,
    )
    model = perturbed(LongspanForConditionalGeneration(config))
    options = {"max_new_tokens": 9, "do_sample": False}
    found = model.generate(tokens(2), **options)
    assert found.equal(model.generate(tokens(2), use_cache=False, **options))
    if position == "t5":
        tables = [m for m in model.modules() if isinstance(m, T5Positions)]
        assert [table.causal for table in tables] == [False, True]


@torch.no_grad()
def test_weights_sum_to_the_output_and_hold_the_positions(name, position):
    model, ids = encoder(name, position), tokens(1, 12)
    weights = model(ids, output_attentions=True).attentions
    plain = encoder(name, "none")(ids, output_attentions=True).attentions
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(1, HEADS, 12).double())
    assert (weights[0] - plain[0]).abs().max() > 1e-3


@torch.no_grad()
def test_weights_hold_the_numbers_of_pixels():
    model = encoder("full", "relative_2d", max_position_embeddings=9)
    ids = tokens(1, 9)
    before = model(ids, output_attentions=True).attentions[0]
    model.layers[0].attention.positions.offsets.weight.mul_(3)
    assert (model(ids, output_attentions=True).attentions[0] - before).abs().max() > 1e-3


def test_checkpoint_keeps_the_positions(position, tmp_path):
    model = causal_lm("local", position, **BUCKETS | {"relative_clamp": 9})
    model.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(loaded(tokens()).logits, model(tokens()).logits)


def test_checkpoint_without_positions_gets_initial_ones(position, tmp_path):
    config = LongspanConfig(**fields("local", "none", initializer_range=0.05))
    LongspanModel(config).save_pretrained(tmp_path)
    model = LongspanModel.from_pretrained(tmp_path, position=position)
    new = [x for n, x in model.named_parameters() if "relative" in n or "position" in n]
    assert len(new) == (1 if position == "t5" else 6)
    for parameter in new:
        assert 0.5 < parameter.std() / 0.05 < 2


def test_positions_are_added_under_autocast(position):
    model = LongspanModel(LongspanConfig(**fields("longformer", position)))
    is_global = (torch.arange(T) == 3).expand(3, -1)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens(), global_attention_mask=is_global).pooler_output
    out[:, 0].sum().backward()
    new = [x for n, x in model.named_parameters() if "relative" in n or "position" in n]
    assert all(x.grad.any() for x in new)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "linformer"}, "'t5' adds numbers to scores, which linformer does not supp"),
        ({"attention": "transformer_xl", "position": "relative"}, "use one of .*full.*local"),
        ({"relative_attention_num_buckets": 3}, "must be at least 4, and even unless .*, got 3"),
        ({"relative_attention_num_buckets": 7}, "must be at least 4, and even unless .*, got 7"),
        ({"relative_attention_max_distance": 8}, "must be greater than 8, .*, got 8"),
        (
            {"relative_attention_max_distance": 16, "is_decoder": True},
            "must be greater than 16, .*, got 16",
        ),
        ({"relative_clamp": -1}, "relative_clamp"),
    ],
)
def test_refusals_name_the_remedy(changes, message):
    with pytest.raises(OptionError, match=message):
        LongspanConfig(**{"position": "t5"} | changes)


def test_options_without_the_trait_are_refused(position):
    options = {"window": 2, "global_projections": True}
    config = LongspanConfig(**fields("longformer", position, attention_options=options))
    with pytest.raises(OptionError, match="longformer does not support with these options"):
        LongspanModel(config)


def test_shards_of_positions_are_refused(position):
    model = LongspanModel(LongspanConfig(**fields("full", position)))
    with pytest.raises(OptionError, match=f"position='{position}' does not support context par"):
        model.enable_context_parallel(None)
