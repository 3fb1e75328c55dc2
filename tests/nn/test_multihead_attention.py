"""`longspan.nn.MultiheadAttention` against `torch.nn.MultiheadAttention`, and in torch's layers."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from longspan.attention import MECHANISMS
from longspan.errors import InputError, NoWeightsError, OptionError, UnknownNameError
from longspan.nn import MultiheadAttention
from longspan.nn import weights as weights_module
from longspan.nn.masks import padding_mask

WIDTH, HEADS, T, B = 24, 3, 20, 2


def options_of(name, **more):
    options = dict(MECHANISMS[name].small_options)
    if "max_length" in MECHANISMS[name].traits.sizes:
        options["max_length"] = 64
    return options | more


def make(name="local", heads=HEADS, dropout=0.0, **options):
    torch.manual_seed(3)
    own = {"attention": name, "attention_options": options_of(name, **options)}
    return MultiheadAttention(WIDTH, heads, dropout, batch_first=True, **own).double()


def tokens(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (B, T, WIDTH)), generator=g, dtype=torch.float64)


def padding():
    return torch.arange(T) >= torch.tensor([[T], [13]])


def both(arguments, state=None):
    """Return torch's module and ours with the same weights, biases that are not zero."""
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **arguments).double()
    torch.manual_seed(5)
    ours = MultiheadAttention(WIDTH, HEADS, **arguments).double()
    for (name, x), (other, y) in zip(
        theirs.named_parameters(), ours.named_parameters(), strict=True
    ):
        assert name == other
        assert torch.equal(x, y), "initial values"
    for parameter in theirs.parameters():
        parameter.data += torch.randn_like(parameter) / 4
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


CAUSAL = torch.ones(T, T, dtype=torch.bool).triu(1)
FLOAT = torch.zeros(T, T, dtype=torch.float64).masked_fill(CAUSAL, -torch.inf)
ALIBI = -(torch.arange(T)[:, None] - torch.arange(T)).abs().double()
CALLS = {
    "plain": {},
    "padding": {"key_padding_mask": padding()},
    "float padding": {
        "key_padding_mask": torch.zeros(B, T).double().masked_fill(padding(), -torch.inf)
    },
    "added to keys": {"key_padding_mask": torch.linspace(-1, 1, B * T).double().view(B, T)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "causal without a hint": {"attn_mask": FLOAT},
    "no weights": {"need_weights": False},
    "weights of heads": {"average_attn_weights": False},
    "numbers": {"attn_mask": ALIBI},
    "numbers per head": {"attn_mask": torch.stack([ALIBI * i for i in range(B * HEADS)])},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": padding()},
}
ARGUMENTS = {
    "batch first": {"batch_first": True},
    "batch second": {},
    "no bias": {"bias": False, "batch_first": True},
    "other widths": {"kdim": 10, "vdim": 14, "batch_first": True},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_full_equals_torch_with_gradients_and_weights(arguments, call):
    theirs, ours = both(arguments)
    inputs = [tokens()] * 3
    if "kdim" in arguments:
        inputs = [tokens(), tokens(B, T, 10, seed=1), tokens(B, T, 14, seed=2)]
    if not arguments.get("batch_first"):
        inputs = [inputs[0].transpose(0, 1)] * 3
    results = []
    for module in (theirs, ours):
        leaves = {id(x): x.clone().requires_grad_() for x in inputs}
        out, weights = module(*(leaves[id(x)] for x in inputs), **call)
        loss = out.pow(3).sum() + (0 if weights is None else weights.pow(2).sum())
        parameters = dict(module.named_parameters())
        grads = torch.autograd.grad(loss, [*leaves.values(), *parameters.values()])
        results.append([out, weights, *grads])
    for x, y in zip(*results, strict=True):
        if x is not None or y is not None:
            torch.testing.assert_close(y, x, atol=1e-10, rtol=1e-10)


def test_unbatched_inputs_equal_torch():
    theirs, ours = both({})
    x, mask = tokens(T, WIDTH), padding()[1]
    for call in ({}, {"key_padding_mask": mask}, {"attn_mask": CAUSAL}):
        for a, b in zip(ours(x, x, x, **call), theirs(x, x, x, **call), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_cross_attention_equals_torch():
    theirs, ours = both({"batch_first": True})
    x, y = tokens(), tokens(B, 9, WIDTH, seed=1)
    mask = torch.arange(9) >= torch.tensor([[9], [4]])
    results = [m(x, y, y, key_padding_mask=mask) for m in (ours, theirs)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_rows_of_every_mechanism_are_those_of_its_own_call(name):
    """The projections of torch's layer around a direct call give the same rows."""
    module, x = make(name).eval(), tokens()
    out, none = module(x, x, x, key_padding_mask=padding(), need_weights=False)
    assert none is None
    q, k, v = (
        y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for y in nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    layer_input = module._layer_input(x)
    assert (layer_input is not None) == module.mechanism.traits.needs_layer_input
    rows = module.mechanism(q, k, v, key_mask=~padding(), layer_input=layer_input)
    expected = module.out_proj(rows.transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)


def fill_state(module, seed=4):
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.data += torch.randn_like(parameter) / 4


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_state_dict_of_torch_loads_and_own_state_is_saved(name):
    theirs, module = both({"batch_first": True})[0], make(name)
    module.load_state_dict(theirs.state_dict())
    own = {x for x in module.state_dict() if not x.startswith("mechanism.")}
    assert own == set(theirs.state_dict())
    for key, x in theirs.state_dict().items():
        assert torch.equal(module.state_dict()[key], x)
    fill_state(module)
    other = make(name)
    other.load_state_dict(module.state_dict())
    for key, x in module.state_dict().items():
        assert torch.equal(other.state_dict()[key], x), key
    incomplete = {k: x for k, x in module.state_dict().items() if k != "out_proj.bias"}
    with pytest.raises(RuntimeError, match=r"Missing key.*out_proj.bias"):
        other.load_state_dict(incomplete)


def test_global_projections_start_as_copies_of_loaded_ones():
    module = make("longformer", global_projections=True)
    theirs, mechanism = both({"batch_first": True})[0], module.mechanism
    for state in (None, theirs.state_dict()):
        if state is not None:
            nn.ModuleDict({"self_attn": module}).load_state_dict(
                {f"self_attn.{key}": x for key, x in state.items()}
            )
        copies = [mechanism.projections.query, mechanism.projections.key]
        for copy, weight in zip(copies, module.in_proj_weight.chunk(3), strict=False):
            assert torch.equal(copy.weight, weight)
    x, is_global = tokens(), torch.arange(T).expand(B, T) == 4
    out = module(x, x, x, need_weights=False, global_mask=is_global)[0]
    plain = make("longformer")
    plain.load_state_dict(theirs.state_dict())
    expected = plain(x, x, x, need_weights=False, global_mask=is_global)[0]
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)


def test_checkpoints_without_the_layer_leave_the_mechanism_as_it_is():
    """A head or an adapter loaded with strict=False once replaced trained global projections."""
    module = make("longformer", global_projections=True)
    fill_state(module)
    model = nn.ModuleDict({"self_attn": module, "head": nn.Linear(2, 2)}).double()
    expected = {key: x.clone() for key, x in module.state_dict().items()}
    for state in ({}, {"self_attn.out_proj.bias": expected["out_proj.bias"]}):
        missing, _ = model.load_state_dict(model["head"].state_dict(prefix="head.") | state, False)
        assert "self_attn.mechanism.projections.query.weight" in missing
        for key, x in module.state_dict().items():
            assert torch.equal(x, expected[key]), key


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_rows_depend_on_values_only(name):
    """Query, key and value may be one tensor, copies of it, or views of another layout."""
    module, x = make(name).eval(), tokens()
    fill_state(module)
    expected = module(x, x, x, need_weights=False)[0]
    views = x.mT.contiguous().mT, torch.stack([x, x])[0], x.repeat(1, 1, 2)[..., :WIDTH]
    for inputs in ((x, x.clone(), x.clone()), views):
        out = module(*inputs, need_weights=False)[0]
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)
    nested = [torch.nested.nested_tensor(list(x), layout=torch.jagged) for _ in range(3)]
    out = module(*nested, need_weights=False)[0]
    torch.testing.assert_close(torch.stack(out.unbind()), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["local", "linear", "performer", "linformer", "full", "reformer"])
def test_weights_mix_the_values(name):
    module, x = make(name, dropout=0.0), tokens()
    out, weights = module(x, x, x, padding(), average_attn_weights=False)
    value = nn.functional.linear(x, *(y.chunk(3)[2] for y in list(module.parameters())[:2]))
    mixed = weights @ value.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(module.out_proj(mixed.transpose(1, 2).flatten(2)), out)
    mean = module(x, x, x, padding())[1]
    torch.testing.assert_close(mean, weights.mean(1))
    weights.sum().backward()
    assert module.training


def test_weights_are_refused_where_there_are_none_or_too_many(monkeypatch):
    x, is_global = tokens(), torch.arange(T).expand(B, T) == 4
    module = make("longformer", global_projections=True)
    fill_state(module.mechanism)
    with pytest.raises(NoWeightsError, match="pass need_weights=False"):
        module(x, x, x, global_mask=is_global)
    monkeypatch.setattr(weights_module, "MOST_WEIGHTS", B * HEADS * T * T - 1)
    with pytest.raises(InputError, match=r"2 x 3 x 20 x 20 weights.* pass need_weights=False"):
        make()(x, x, x)
    assert make()(x, x, x, need_weights=False)[1] is None


def test_causal_masks_reach_causal_mechanisms_and_others_are_refused():
    x, module = tokens(), make("performer", causal=True)
    expected = module(x, x, x, need_weights=False)[0]
    calls = (
        {"is_causal": True},
        {"attn_mask": CAUSAL},
        {"attn_mask": FLOAT},
        {"attn_mask": FLOAT, "is_causal": True},
    )
    for call in calls:
        assert torch.equal(module(x, x, x, need_weights=False, **call)[0], expected)
    with pytest.raises(InputError, match=r"attn_mask must be the causal mask .*traits.bias"):
        module(x, x, x, attn_mask=CAUSAL.roll(1, 1))
    with pytest.raises(InputError, match=r"attn_mask must be the causal mask of a causal"):
        make("performer")(x, x, x, attn_mask=CAUSAL)
    with pytest.raises(InputError, match=r"is_causal=True requires .*'causal': True"):
        make("local")(x, x, x, is_causal=True)


def test_any_mask_reaches_mechanisms_with_a_bias():
    x, plain, causal = tokens(), make(), make(causal=True)
    out = plain(x, x, x, need_weights=False, attn_mask=CAUSAL)[0]
    torch.testing.assert_close(out, causal(x, x, x, need_weights=False)[0])
    changed = plain(x, x, x, need_weights=False, attn_mask=ALIBI)[0]
    assert not torch.allclose(changed, plain(x, x, x, need_weights=False)[0])


def test_padding_has_no_influence_and_global_tokens_have():
    x, is_global = tokens(), torch.arange(T).expand(B, T) == 4
    module = make()
    for call in ({}, {"global_mask": is_global}):
        out = module(x, x, x, padding(), need_weights=False, **call)[0]
        other = torch.where(padding()[..., None], torch.nan, x)
        rows = module(other, other, other, padding(), need_weights=False, **call)[0]
        torch.testing.assert_close(rows[~padding()], out[~padding()])
    plain = module(x, x, x, padding(), need_weights=False)[0]
    assert not torch.allclose(out[0, 19], plain[0, 19])


WRONG = {
    "widths": (lambda x: (x[..., :-1], x, x), {}, "of widths"),
    "lengths": (lambda x: (x, x, x[:, :-1]), {}, "equally long"),
    "batch": (lambda x: (x[0], x, x), {}, "all with or all without a batch"),
    "cross": (lambda x: (x[:, :5], x, x), {}, "cross-attention is not supported"),
    "padding shape": (lambda x: (x, x, x), {"key_padding_mask": padding().T}, "of shape"),
    "padding dtype": (lambda x: (x, x, x), {"key_padding_mask": padding().long()}, "boolean or"),
    "mask shape": (lambda x: (x, x, x), {"attn_mask": CAUSAL[:5]}, "attn_mask must be boolean"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_inputs_are_refused(case):
    change, call, message = case
    with pytest.raises(InputError, match=message):
        make()(*change(tokens()), need_weights=False, **call)


def test_numbers_on_keys_are_refused_without_a_bias_and_where_none_are_read(monkeypatch):
    x, numbers = tokens(), torch.linspace(0, 1, B * T).double().view(B, T)
    with pytest.raises(InputError, match=r"key_padding_mask must be .* adds no other numbers"):
        make("linear")(x, x, x, numbers)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for name, message in (("linear", "adds no other numbers"), ("full", "pass .* as attn_mask")):
        with pytest.raises(RuntimeError, match=message):
            padding_mask(numbers, (B, T), make(name).mechanism)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_heads": 5}, OptionError, "embed_dim must be a multiple of num_heads"),
        ({"add_bias_kv": True}, OptionError, "add_bias_kv and add_zero_attn must be False"),
        ({"add_zero_attn": True}, OptionError, "must be False"),
        ({"attention": "locale"}, UnknownNameError, "did you mean local"),
        ({"attention_options": {"windw": 3}}, UnknownNameError, "did you mean window"),
        ({"attention_options": {"heads": 3}}, OptionError, "must not contain heads"),
        ({"attention": "linear", "dropout": 0.1}, OptionError, "weight_dropout is not supported"),
        ({"attention": "linformer"}, OptionError, "max_length is required"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    options = {"num_heads": 2, "attention": "local"} | arguments
    with pytest.raises(error, match=message):
        MultiheadAttention(WIDTH, **options)


def encoder(attention, **layer):
    torch.manual_seed(0)
    one = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True, **layer)
    stack = nn.TransformerEncoder(one, 2).double()
    for part in stack.layers:
        own = make(attention, heads=2)
        own.load_state_dict(part.self_attn.state_dict())
        part.self_attn = own
    return stack


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "padded"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_mechanism_runs_inside_torch_encoders_in_training_and_inference(norm_first, masked):
    """In eval mode without gradients torch's fused path would attend to all keys."""
    call = {"src_key_padding_mask": padding()} if masked else {}
    stack, dense = (encoder(x, norm_first=norm_first) for x in ("local", "full"))
    x = tokens()
    expected = stack.train()(x, **call)[~padding()]
    stack.eval()
    torch.testing.assert_close(stack(x, **call)[~padding()], expected)
    with torch.no_grad():
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                out = stack(x, **call)
            torch.testing.assert_close(out[~padding()], expected)
        assert not torch.allclose(dense.eval()(x, **call)[~padding()], expected)
        alone = stack.layers[0].eval()(x, **call)
        with torch.enable_grad():
            torch.testing.assert_close(alone, stack.layers[0](x, **call))


def test_full_inside_a_torch_encoder_equals_the_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).double().eval()
    ours, x = encoder("full").eval(), tokens()
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=padding())
        out = ours(x, src_key_padding_mask=padding())
    torch.testing.assert_close(out[~padding()], expected[~padding()])


def test_causal_mechanism_runs_inside_a_torch_decoder():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True).double()
    layer.self_attn = make("linear", causal=True, heads=2)
    x, memory = tokens(), tokens(B, 7, WIDTH, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    out = layer(x, memory, tgt_mask=mask, tgt_is_causal=True)
    changed = torch.cat([x[:, :12], x[:, 12:] + 1], 1)
    later = layer(changed, memory, tgt_mask=mask, tgt_is_causal=True)
    torch.testing.assert_close(later[:, :12], out[:, :12])
    assert not torch.allclose(later[:, 12:], out[:, 12:])


LENGTHS = (7, 20, 1, 12)


def documents():
    return [tokens(n, WIDTH, seed=i).requires_grad_() for i, n in enumerate(LENGTHS)]


def nested(layout, rows=None):
    return torch.nested.as_nested_tensor(rows or documents(), layout=layout)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_nested_tensors_equal_documents_alone(name, layout):
    module, rows = make(name), documents()
    x = nested(layout, rows)
    out, none = module(x, x, x, need_weights=False)
    assert none is None
    assert (out.is_nested, out.layout) == (True, layout)
    alone = [module(own, own, own, need_weights=False)[0] for own in rows]
    results = []
    for outs in (out.to_padded_tensor(0.0), nn.utils.rnn.pad_sequence(alone, batch_first=True)):
        leaves = [*rows, *module.parameters()]
        grads = torch.autograd.grad(
            outs.pow(2).sum(), leaves, allow_unused=True, materialize_grads=True
        )
        results.append([outs, *grads])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


def test_jagged_residual_and_global_tokens():
    module, x = make(), nested(torch.jagged)
    is_global = torch.arange(sum(LENGTHS)) % 7 == 2
    out = module(x, x, x, need_weights=False, global_mask=is_global)[0]
    assert (x + out).offsets() is x.offsets()
    for got, own, mask in zip(
        out.unbind(), x.unbind(), is_global.split(list(LENGTHS)), strict=True
    ):
        expected = module(own, own, own, need_weights=False, global_mask=mask)[0]
        torch.testing.assert_close(got, expected)


def test_nested_tensors_are_refused_with_a_reason():
    module, x = make(), nested(torch.jagged)
    with pytest.raises(InputError, match="nested tensors exclude need_weights"):
        module(x, x, x)
    with pytest.raises(InputError, match="must all be nested"):
        module(x, x, tokens(), need_weights=False)
    shorter = torch.nested.nested_tensor([tokens(n, WIDTH) for n in (3, 4)], layout=torch.jagged)
    with pytest.raises(InputError, match="same lengths"):
        module(x, shorter, shorter, need_weights=False)
    with pytest.raises(InputError, match="one layout"):
        module(x, nested(torch.strided), x, need_weights=False)


WITH_LOSS = {
    "indexed": ("indexed", {}),
    "distilled": ("linear", {"feature_map": "hedgehog", "distillation": True}),
    "compression": ("compressive", {"compression": "conv", "segment": 6, "memory": 6}),
}


@pytest.mark.parametrize(("name", "options"), WITH_LOSS.values(), ids=WITH_LOSS)
def test_the_mechanism_learns_from_the_auxiliary_loss_and_nothing_else_does(name, options):
    """Padding has no part in it, and nested documents have that of padded ones."""
    module, rows, losses = make(name, **options), documents(), []
    x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    mask = {"key_padding_mask": ~real}
    for inputs in (x, x + 9 * ~real[..., None], nested(torch.jagged), nested(torch.strided)):
        module(inputs, inputs, inputs, need_weights=False, **({} if inputs.is_nested else mask))
        losses.append(module.auxiliary_loss)
    torch.testing.assert_close(losses, losses[:1] * 4, atol=1e-10, rtol=1e-10)
    assert deepcopy(module).auxiliary_loss is None
    losses[0].backward()
    learned = {n for n, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    assert {n.startswith("mechanism.") for n in learned} == {True}
    module.eval()(x, x, x, need_weights=False)
    assert module.auxiliary_loss is None


@pytest.mark.parametrize(("name", "options"), WITH_LOSS.values(), ids=WITH_LOSS)
def test_autocast_rounds_no_auxiliary_loss(name, options):
    """The sum over the queries of a batch is beyond float16."""
    module, x = make(name, **options).float(), tokens().float()
    module(x, x, x, need_weights=False)
    expected = module.auxiliary_loss
    with torch.autocast("cpu", torch.float16):
        module(x, x, x, need_weights=False)
    torch.testing.assert_close(module.auxiliary_loss, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_modules_have_a_loss_where_the_mechanism_declares_one(name):
    module, x = make(name), tokens()
    module(x, x, x, need_weights=False)
    assert (module.auxiliary_loss is not None) == module.mechanism.has_auxiliary_loss


def test_the_auxiliary_loss_of_cross_attention_is_refused():
    module, x = make("linear", feature_map="hedgehog", distillation=True), tokens()
    with pytest.raises(InputError, match="that of self-attention, got 5 queries and 20 keys"):
        module(x[:, :5], x, x, need_weights=False)
    module.eval()(x[:, :5], x, x, need_weights=False)


def test_dropout_is_that_of_training():
    module, x = make(dropout=0.5), tokens()
    torch.manual_seed(0)
    first = module(x, x, x, need_weights=False)[0]
    assert not torch.equal(first, module(x, x, x, need_weights=False)[0])
    module.eval()
    out = module(x, x, x, need_weights=False)[0]
    assert torch.equal(out, module(x, x, x, need_weights=False)[0])
    torch.testing.assert_close(out, make(dropout=0.0)(x, x, x, need_weights=False)[0])


def test_device_and_dtype_reach_the_mechanism():
    options = {"attention": "performer", "dtype": torch.bfloat16}
    module = MultiheadAttention(WIDTH, HEADS, **options)
    assert {x.dtype for x in module.state_dict().values()} == {torch.bfloat16}
    module = MultiheadAttention(WIDTH, HEADS, **options, device="meta")
    assert {x.device.type for x in module.state_dict().values()} == {"meta"}
