"""Short convolutions of queries, keys and values, and norm and gate of the mechanism's output."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from longspan.attention import MECHANISMS
from longspan.errors import InputError, OptionError, UnknownNameError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForConditionalGeneration,
    LongspanForMaskedLM,
    LongspanModel,
)
from longspan.models.attention_layer import LayerContext, SelfAttention
from longspan.models.conversion.to_source import list_differences
from longspan.models.parts import decoder_config
from longspan.models.short_convolution import ShortConvolution

WHOLE = {
    **{"short_convolution": 3, "short_convolution_activation": "silu"},
    **{"output_norm": "rms", "output_gate": "silu"},
}


def randomize(model):
    """Give convolutions weights under which all taps and channels differ."""
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.weight)
    return model


def convolve_plainly(weight, x, before):
    """Return the formula, token by token and tap by tap."""
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for j in range(weight.shape[2]):
            if 0 <= (source := t - before + j) < x.shape[1]:
                out[:, t] += weight[:, 0, j] * x[:, source]
    return out


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("length", [1, 2, 11])
def test_convolution_is_the_sum_over_its_taps(small, taps, is_decoder, length):
    convolution = ShortConvolution(small(short_convolution=taps, is_decoder=is_decoder)).double()
    x = torch.randn(2, length, 16, dtype=torch.float64)
    before = taps - 1 if is_decoder else taps // 2
    expected = convolve_plainly(convolution.weight, x, before)
    torch.testing.assert_close(convolution(x), expected)
    assert convolution.weight.shape == (16, 1, taps)


def test_gradients_are_exact(small):
    convolution = ShortConvolution(small(short_convolution=3, num_attention_heads=8)).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    weight = convolution.weight.detach().clone().normal_().requires_grad_()

    def call(x, weight):
        return torch.func.functional_call(convolution, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(call, (x, weight))
    assert torch.autograd.gradgradcheck(call, (x, weight))


def test_initial_weights_are_those_of_torch(small):
    """Of a layer alone, and in a model, whose `initializer_range` is that of linear maps."""
    config = small(hidden_size=512, short_convolution=4, initializer_range=0.01)
    theirs = torch.nn.Conv1d(512, 512, 4, groups=512).weight
    layer = LongspanModel(config).layers[0].attention
    for convolution in (ShortConvolution(config), *layer.convolutions.values()):
        assert convolution.weight.abs().max() <= 0.5
        assert convolution.weight.std().item() == pytest.approx(theirs.std().item(), rel=0.1)


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_convolution_is_that_of_qwen3_next(small, activation):
    config = small(short_convolution=4, short_convolution_activation=activation, is_decoder=True)
    convolution = ShortConvolution(config)
    torch.nn.init.normal_(convolution.weight)
    x, weight = torch.randn(2, 9, 16), convolution.weight[:, 0]
    theirs = qwen.causal_conv1d_fn(
        x.mT, weight, activation=None if activation == "none" else activation
    ).mT
    torch.testing.assert_close(convolution(x), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norm_and_gate_are_those_of_qwen3_next(small, dtype):
    attention = SelfAttention(small(output_norm="rms", output_gate="silu"), 0).to(dtype)
    theirs = qwen.Qwen3NextRMSNormGated(8, eps=attention.config.layer_norm_eps).to(dtype)
    torch.nn.init.normal_(attention.norm.weight)
    theirs.load_state_dict(attention.norm.state_dict())
    mixed, gate = torch.randn(2, 2, 5, 8, dtype=dtype), torch.randn(2, 5, 16, dtype=dtype)
    expected = theirs(mixed, gate.unflatten(2, (2, 8)).transpose(1, 2))
    torch.testing.assert_close(attention._modulate(mixed, gate), expected)


@pytest.mark.parametrize("fields", [{}, {"qkv_bias": False}], ids=str)
def test_layer_is_its_formula(small, fields):
    """Projections, convolutions, rotary positions, attention, norm, gate, output projection."""
    config = small(position="rotary", is_decoder=True, **WHOLE, **fields)
    layer = randomize(SelfAttention(config, 0)).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    result = layer(x, LayerContext()).states
    assert (layer.gate.bias is None) == bool(fields)

    def project(name):
        convolved = layer.convolutions[name](getattr(layer, name)(x))
        return convolved.unflatten(2, (2, 8)).transpose(1, 2)

    mixed = layer.mechanism(project("query"), project("key"), project("value"))
    mixed = F.rms_norm(mixed, (8,), layer.norm.weight, config.layer_norm_eps)
    gated = mixed.transpose(1, 2).flatten(2) * F.silu(layer.gate(x))
    torch.testing.assert_close(result, layer.output(gated))
    sigmoid = SelfAttention(small(output_gate="sigmoid"), 0).double()
    result, ones = sigmoid(x).states, torch.ones(2, 2, 7, 8, dtype=torch.float64)
    gate = sigmoid.gate(x)
    expected = torch.sigmoid(gate).unflatten(2, (2, 8)).transpose(1, 2)
    torch.testing.assert_close(sigmoid._modulate(ones, gate), expected)


@torch.no_grad()
@pytest.mark.parametrize("cls", [LongspanForMaskedLM, LongspanForCausalLM])
def test_convolution_of_the_token_alone_changes_no_output(small, cls):
    plain = cls(small(position="rotary")).double().eval()
    model = cls(small(position="rotary", short_convolution=4)).double().eval()
    missing = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing
    assert all(".convolutions." in x for x in missing)
    for module in model.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.zeros_(module.weight)[:, :, module.before] = 1
    ids = torch.randint(1, 50, (2, 9))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits)


def test_layers_have_a_convolution_for_each_projection(small):
    model = LongspanModel(small(attention=["full", "synthesizer"], **WHOLE))
    names = [sorted(layer.attention.convolutions) for layer in model.layers]
    assert names == [["key", "query", "value"], ["value"]]
    plain = LongspanModel(small(attention=["full", "synthesizer"]))
    added = set(model.state_dict()) - set(plain.state_dict())
    counts = 3 * 16 * 3 + 16 * 3 + 2 * (16 * 16 + 16 + 8)
    assert sum(model.state_dict()[name].numel() for name in added) == counts
    assert not plain.layers[0].attention.convolutions


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_padded_content_changes_nothing_in_any_mechanism(small, name):
    options = dict(MECHANISMS[name].small_options)
    config = small(attention=name, attention_options=options, **WHOLE)
    model = randomize(LongspanModel(config)).double()
    ids, mask = torch.randint(1, 50, (3, 19)), torch.ones(3, 19, dtype=torch.bool)
    mask[0, 13:] = mask[1] = mask[2, 4:7] = False
    result = []
    for padding in (ids, ids.flip(1)):
        model.zero_grad()
        out = model(torch.where(mask, ids, padding), mask).last_hidden_state
        assert out[~mask].eq(0).all()
        out.sum().backward()
        result.append((out.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(result[0], result[1])
    assert all(grad.isfinite().all() for grad in result[0][1])
    trained = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    parts = ("convolutions.value.weight", "attention.norm.weight", "attention.gate.weight")
    assert all(any(x.endswith(part) for x in trained) for part in parts)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_nan_in_padding_stays_there(small, is_decoder):
    config = small(position="rotary", is_decoder=is_decoder, **WHOLE)
    layer = randomize(SelfAttention(config, 0)).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    context = LayerContext(mask=mask)
    expected = layer(x, context).states
    x[1, 6:] = torch.nan
    torch.testing.assert_close(layer(x, context).states[mask], expected[mask])


@torch.no_grad()
def test_rows_with_nothing_to_attend_are_zero(small):
    layer = randomize(SelfAttention(small(linear_bias=False, **WHOLE), 0))
    mask = torch.zeros(2, 5, dtype=torch.bool)
    assert layer(torch.randn(2, 5, 16), LayerContext(mask=mask)).states.eq(0).all()


def test_extreme_values_give_finite_results(small):
    layer = randomize(SelfAttention(small(**WHOLE), 0))
    for size in (0.0, 1e-30, 1e15):
        x = torch.full((1, 5, 16), size, requires_grad=True)
        out = layer(x).states
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("attention", ["full", "linear"])
def test_half_precision_is_near_to_single(small, attention, recwarn):
    model = randomize(LongspanForCausalLM(small(attention=attention, position="none", **WHOLE)))
    model, ids = model.eval(), torch.randint(1, 50, (2, 9))
    expected = model(ids).logits
    with torch.autocast("cpu", torch.bfloat16):
        state = model(ids[:, :5], use_cache=True).cache
        output = model(ids[:, 5:], cache=state, labels=ids[:, 5:])
    output.loss.backward()
    assert output.logits.dtype == state.layers[0].state.tokens[0].dtype == torch.bfloat16
    weights = [x.weight for x in model.modules() if isinstance(x, ShortConvolution)]
    assert all(x.grad.isfinite().all() and x.grad.any() for x in weights)
    limits = {"rtol": 0, "atol": 0.1 * float(expected.detach().abs().max())}
    torch.testing.assert_close(output.logits.float(), expected[:, 5:], **limits)
    torch.testing.assert_close(model.bfloat16()(ids).logits.float(), expected, **limits)
    assert not [x for x in recwarn if "Mismatch dtype" in str(x.message)]


def assert_equal_state(result, expected):
    assert sorted(result.state) == sorted(expected.state)
    for name, x in expected.state.items():
        torch.testing.assert_close(result.state[name], x)


@torch.no_grad()
def test_cache_is_detached_reordered_and_shortened_like_that_of_its_mechanism(small):
    model = randomize(LongspanForCausalLM(small(attention="linear", position="none", **WHOLE)))
    model, ids = model.double().eval(), torch.randint(1, 50, (3, 14))
    state = model(ids[:, :9], use_cache=True).cache
    first = state.layers[0].state
    assert (first.length, first.num_rows) == (9, 3)
    assert [x.shape for x in first.tokens] == [(3, 2, 16)] * 3
    assert state.num_bytes == sum(
        x.untyped_storage().nbytes() for layer in state.layers for x in layer.state.state.values()
    )
    # The state holds no memory of the tokens before its last ones.
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in first.tokens)
    assert_equal_state(first.detach(), first)
    expected = model(ids[:, 9:], cache=state).logits
    state.reorder_cache(torch.tensor([2, 0, 0]))
    moved = model(ids[:, 9:][[2, 0, 0]], cache=state).logits
    torch.testing.assert_close(moved, expected[[2, 0, 0]])
    state = model(ids[:, :9], use_cache=True).cache
    state.activate_past_recording()
    longer = state
    for part in (ids[:, :4], ids[:, 4:5], ids[:, 5:7]):
        longer = model(part, cache=longer, use_cache=True).cache
    for tokens in (0, 1, 2, 6, 7):
        shorter = longer.layers[0].state.rollback(tokens)
        rest_of_ids = torch.cat((ids[:, :9], ids[:, : 7 - tokens]), 1)
        assert_equal_state(shorter, model(rest_of_ids, use_cache=True).cache.layers[0].state)
    with pytest.raises(InputError, match="cannot forget its last 8 tokens"):
        longer.layers[0].state.rollback(8)


@torch.no_grad()
def test_recorded_steps_are_forgotten_to_the_start(small):
    layer = SelfAttention(small(attention="linear", is_decoder=True, **WHOLE), 0)
    cache = layer(torch.randn(2, 4, 16), LayerContext(use_cache=True, record=True)).cache
    assert cache.rollback(4) is None
    assert cache.rollback(3).tokens[0].shape == (2, 2, 16)
    unused = layer(torch.randn(2, 4, 16), LayerContext(use_cache=False), cache)
    assert unused.cache is None


@torch.no_grad()
def test_caches_of_other_models_are_refused(small, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    fields, ids = {"attention": "linear", "position": "none"}, torch.randint(1, 50, (2, 5))
    models = [
        LongspanForCausalLM(small(short_convolution=taps, **fields)).eval() for taps in (0, 3, 4)
    ]
    states = [model(ids, use_cache=True).cache for model in models]
    for model, state, expected, got in (
        (models[0], states[1], 0, 3),
        (models[1], states[0], 3, 0),
        (models[1], states[2], 3, 4),
    ):
        message = f"short_convolution={expected}, got short_convolution={got}; start without"
        with pytest.raises(InputError, match=message):
            model(ids, cache=state)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["full", "linear"])
def test_encoder_decoder_convolves_its_self_attention(attention):
    config = LongspanConfig(
        vocab_size=40,
        is_encoder_decoder=True,
        decoder_start_token_id=1,
        attention="local",
        decoder_overrides={"attention": attention, "position": "rotary", "output_gate": "sigmoid"},
        **WHOLE,
    )
    torch.manual_seed(1)
    model = randomize(LongspanForConditionalGeneration(config)).double().eval()
    encoder, decoder = model.model.encoder.layers[0], model.model.decoder.layers[0]
    assert [x.attention.convolutions["value"].before for x in (encoder, decoder)] == [1, 2]
    assert not hasattr(decoder.cross_attention, "convolutions")
    assert (decoder_config(config).output_gate, config.output_gate) == ("sigmoid", "silu")
    ids = torch.randint(1, 40, (2, 12))
    options = {"max_new_tokens": 9, "num_beams": 2, "do_sample": False}
    result = model.generate(ids, **options)
    assert result.equal(model.generate(ids, use_cache=False, **options))
    target = torch.randint(1, 40, (2, 8))
    whole = model(ids, decoder_input_ids=target, use_cache=False).logits
    first = model(ids, decoder_input_ids=target[:, :5], use_cache=True)
    rest = model(decoder_input_ids=target[:, 5:], cache=first.cache).logits
    torch.testing.assert_close(torch.cat((first.logits, rest), 1), whole)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"short_convolution": 1}, r"must be 0 \(none\) or at least 2 taps, got 1"),
        ({"short_convolution": -2}, "short_convolution must be at least 0, got -2"),
        ({"short_convolution": 17}, "short_convolution must be at most 16, got 17"),
        (
            {"short_convolution": 5, "max_position_embeddings": 4},
            "at most max_position_embeddings=4, got 5: the further taps would read no token; use",
        ),
        ({"short_convolution_activation": "silu"}, "='silu' requires short_convolution >= 2, got"),
        ({"output_norm": "rms", "layer_norm_eps": 0.0}, "requires layer_norm_eps > 0, got 0"),
    ],
    ids=str,
)
def test_invalid_fields_are_rejected(fields, message):
    with pytest.raises(OptionError, match=message):
        LongspanConfig(**fields)


@pytest.mark.parametrize("field", ["short_convolution_activation", "output_norm", "output_gate"])
def test_unknown_choices_are_rejected(field):
    with pytest.raises(UnknownNameError, match=f"no {field} called 'sillu'"):
        LongspanConfig(short_convolution=3, **{field: "sillu"})


def test_decoders_without_a_limit_of_length_take_any_number_of_taps():
    fields = {"is_decoder": True, "position": "rotary", "max_position_embeddings": 4}
    model = LongspanForCausalLM(LongspanConfig(short_convolution=5, **fields))
    assert model(torch.randint(1, 50, (1, 9))).logits.shape[1] == 9


def test_context_parallelism_is_refused(small):
    with pytest.raises(OptionError, match="short_convolution=3 does not support context paral"):
        LongspanModel(small(short_convolution=3)).enable_context_parallel(None)


def test_context_parallelism_of_auxiliary_losses_is_refused(small):
    options = {"feature_map": "hedgehog", "distillation": True}
    fields = {"attention": "linear", "attention_options": options}
    with pytest.raises(OptionError, match=r"linear .*auxiliary loss reads whole sequences"):
        LongspanModel(small(**fields)).enable_context_parallel(None)


@torch.no_grad()
def test_models_of_transformers_have_no_such_layers(small):
    reasons = list_differences(small(**WHOLE), small(), ())
    assert [x.split()[0] for x in reasons] == list(WHOLE)
    assert reasons[0] == "short_convolution must be 0, got 3"


@torch.no_grad()
def test_weights_that_a_checkpoint_lacks_are_drawn(small, tmp_path):
    LongspanModel(small()).save_pretrained(tmp_path)
    model = LongspanModel.from_pretrained(tmp_path, **WHOLE)
    weights = [x.weight for x in model.modules() if isinstance(x, ShortConvolution)]
    assert len(weights) == 6
    assert all(0.1 < x.std() < 0.5 and x.abs().max() <= 3**-0.5 for x in weights)
    assert model.layers[0].attention.norm.weight.eq(1).all()
