"""Encoder: pooling, positions, norms, masks and inputs."""

import jaxtyping
import pytest
import torch
from torch import nn

from longspan.attention import MECHANISMS, Attention
from longspan.errors import InputError
from longspan.models import LongspanModel
from longspan.models.inputs import drop_full_mask, to_boolean_mask
from longspan.models.pooling import Pooling

POOLINGS = ("mean", "max", "cls", "first", "attention")
POSITIONS = ("learned", "sinusoidal", "rotary", "none")


def build_encoder(config) -> LongspanModel:
    return LongspanModel(config).double().eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_and_other_rows_do_not_affect_a_row(small, pooling, position, norm):
    model = build_encoder(small(pooling=pooling, position=position, norm=norm))
    row = torch.randint(1, 50, (1, 11))
    alone = model(row)
    batch = torch.randint(0, 50, (3, 29))
    batch[1, :11] = row
    mask = torch.ones_like(batch)
    mask[1, 11:], mask[2, 4:] = 0, 0
    together = model(batch, mask)
    torch.testing.assert_close(together.last_hidden_state[1, :11], alone.last_hidden_state[0])
    torch.testing.assert_close(together.pooler_output[1], alone.pooler_output[0])
    assert together.last_hidden_state[1, 11:].eq(0).all()


def test_mask_without_padding_is_dropped(small, monkeypatch):
    model, masks = build_encoder(small(attention="local")), []
    original = Attention.forward

    def forward(self, q, k, v, mask, *others, **more):
        masks.append(mask)
        return original(self, q, k, v, mask, *others, **more)

    monkeypatch.setattr(Attention, "forward", forward)
    ids = torch.randint(1, 16, (2, 8))
    full = torch.ones_like(ids)
    padded = full.clone()
    padded[1, 6:] = 0
    plain = model(ids).last_hidden_state
    assert torch.equal(model(ids, full).last_hidden_state, plain)
    assert {mask is None for mask in masks} == {True}
    masks.clear()
    model(ids, padded)
    assert {mask is None for mask in masks} == {False}
    masks.clear()


def test_traced_models_keep_their_mask():
    full = torch.ones(1, 4, dtype=torch.bool)
    padded = torch.tensor([[True, True, False, False]])

    def count(mask):
        kept = drop_full_mask(mask)
        return torch.tensor(4) if kept is None else kept.sum()

    with torch.no_grad():
        assert torch.jit.trace(count, full)(padded) == 2
        assert torch.vmap(count)(padded[None]).tolist() == [2]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("pooling", ["mean", "max", "first", "attention"])
def test_row_without_tokens_gives_finite_states_and_zero_gradient(small, pooling, norm):
    model = build_encoder(small(pooling=pooling, norm=norm))
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    out = model(ids, torch.tensor([[1, 1, 0], [0, 0, 0]]))
    assert out.last_hidden_state[1].eq(0).all()
    assert out.pooler_output.isfinite().all()
    (out.pooler_output.sin().sum() + out.last_hidden_state.sin().sum()).backward()
    gradient = model.embeddings.words.weight.grad
    assert gradient[[5, 6]].ne(0).any(1).all()
    assert gradient[[7, 8, 9, 10]].eq(0).all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max", "attention"])
def test_pooling_reads_real_tokens_on_any_side(small, pooling):
    model = build_encoder(small(pooling=pooling))
    ids = torch.randint(1, 50, (3, 8))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 0, 0], [1] * 8])
    out, real = model(ids, mask), mask.bool()
    states = [x[y] for x, y in zip(out.last_hidden_state, real, strict=True)]
    own = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.amax(0),
        "attention": lambda x: torch.softmax(model.pooling.scores(x)[:, 0], 0) @ x,
    }[pooling]
    torch.testing.assert_close(out.pooler_output, torch.stack([own(x) for x in states]))
    assert out.pooler_output.abs().amax(1).min() > 0.01
    shares = model.pooling.shares(out.last_hidden_state, real)
    torch.testing.assert_close(shares.sum(1).float(), torch.ones(3))
    assert shares[~real].eq(0).all()
    if pooling == "max":
        winners = torch.stack([(x == x.amax(0)).float().mean(1) for x in states[2:]])
        torch.testing.assert_close(shares[2:].float(), winners)
    else:
        pooled = (shares[:, None].double() @ out.last_hidden_state)[:, 0]
        torch.testing.assert_close(pooled, out.pooler_output)


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max", "attention"])
def test_pooling_without_padding_equals_that_with_a_full_mask(small, pooling):
    pool = Pooling(small(pooling=pooling)).double()
    x, full = torch.randn(2, 7, 16, dtype=torch.float64), torch.ones(2, 7, dtype=torch.bool)
    torch.testing.assert_close(pool(x, None), pool(x, full))
    torch.testing.assert_close(pool.shares(x, None), pool.shares(x, full))


def test_summary_acts_as_prepended_token(small):
    model = build_encoder(small(pooling="cls"))
    ids = torch.randint(1, 49, (2, 40))
    out = model(ids)
    plain = build_encoder(small(pooling="first", max_position_embeddings=41))
    plain.load_state_dict(
        {k: v for k, v in model.state_dict().items() if "summary" not in k}, strict=True
    )
    with torch.no_grad():
        plain.embeddings.words.weight[49] = model.embeddings.summary.weight[0]
    expected = plain(torch.cat((torch.full((2, 1), 49), ids), dim=1))
    torch.testing.assert_close(out.pooler_output, expected.pooler_output)
    torch.testing.assert_close(out.last_hidden_state, expected.last_hidden_state[:, 1:])
    assert out.last_hidden_state.shape == (2, 40, 16)


def record_global_masks(model: LongspanModel, monkeypatch) -> list:
    seen, forward = [], Attention.forward

    def spy(self, *inputs, global_mask=None, **others):
        seen.append(global_mask)
        return forward(self, *inputs, global_mask=global_mask, **others)

    monkeypatch.setattr(Attention, "forward", spy)
    return seen


def test_summary_is_global_if_mechanism_supports_global_tokens(small, monkeypatch):
    model = build_encoder(small(pooling="cls"))
    assert MECHANISMS["full"].traits.global_tokens
    seen = record_global_masks(model, monkeypatch)
    model(torch.ones(2, 3, dtype=torch.long))
    assert [mask.tolist() for mask in seen] == [[[True, False, False, False]] * 2] * 2
    seen.clear()
    model(torch.ones(1, 3, dtype=torch.long), None, torch.tensor([[0, 1, 0]]))
    assert seen[0].tolist() == [[True, False, True, False]]


def test_summary_is_not_global_without_global_token_support(small, stateful, monkeypatch):
    model = build_encoder(small(pooling="cls", attention=stateful))
    seen = record_global_masks(model, monkeypatch)
    ids = torch.ones(2, 3, dtype=torch.long)
    model(ids)
    assert seen == [None, None]
    with pytest.raises(InputError, match="not supported by 2 layers of stateful; use one of"):
        model(ids, None, torch.ones_like(ids))


@pytest.mark.parametrize("position", POSITIONS)
def test_token_order_matters_unless_position_is_none(small, position):
    model = build_encoder(small(position=position))
    ids = torch.arange(1, 10)[None]
    same = torch.allclose(model(ids).pooler_output, model(ids.flip(1)).pooler_output)
    assert same == (position == "none")


@pytest.mark.parametrize("position", POSITIONS)
def test_left_padding_shifts_absolute_positions_only(small, position):
    model = build_encoder(small(position=position))
    ids, mask = torch.randint(1, 50, (1, 16)), torch.ones(1, 16, dtype=torch.bool)
    mask[:, :5] = False
    shifted, plain = model(ids, mask).pooler_output, model(ids[:, 5:]).pooler_output
    assert torch.allclose(shifted, plain) == (position in ("rotary", "none"))


def test_sinusoids_have_scale_of_initial_word_embeddings(small):
    model = build_encoder(small(position="sinusoidal", norm="pre"))
    ids = torch.randint(1, 50, (1, 40))
    added = model.embeddings(ids) - model.embeddings.words(ids)
    assert added.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.1)


def test_norm_placement_follows_configuration(small):
    ids = torch.randint(1, 50, (2, 7))
    post, pre = build_encoder(small(norm="post")), build_encoder(small(norm="pre"))
    for states in (post.embeddings(ids), post(ids).last_hidden_state, pre(ids).last_hidden_state):
        torch.testing.assert_close(states.mean(-1), torch.zeros(2, 7).double(), atol=1e-9, rtol=0)
    assert pre.embeddings(ids).mean(-1).abs().max() > 1e-3
    # With zero block outputs a pre-norm layer is the identity; a post-norm layer still normalizes.
    for model in (pre, post):
        for part in (model.layers[0].attention.output, model.layers[0].feed_forward.output):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)
    x = torch.randn(1, 3, 16, dtype=torch.float64) + 5
    assert pre.layers[0](x).states.equal(x)
    assert post.layers[0](x).states.mean().abs() < 1e-9


def test_dropout_follows_embeddings_mechanisms_and_blocks(small):
    model = LongspanModel(small(hidden_dropout_prob=0.25, attention_dropout=0.5)).train()
    used = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda module, *_: used.append(module.p))
    model(torch.ones(1, 7, dtype=torch.long))
    assert used == [0.25, *[0.5, 0.25, 0.25] * 2]


@pytest.mark.parametrize("field", ["hidden_dropout_prob", "attention_dropout"])
def test_dropout_is_active_in_training_only(small, field):
    model = LongspanModel(small(**{field: 0.5})).train()
    ids = torch.randint(1, 50, (2, 7))
    assert not model(ids).last_hidden_state.equal(model(ids).last_hidden_state)
    model.eval()
    assert model(ids).last_hidden_state.equal(model(ids).last_hidden_state)


def test_initial_weights_follow_initializer_range(small):
    config = small(hidden_size=64, intermediate_size=64, vocab_size=500, pooling="cls")
    model = LongspanModel(config)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert module.weight.std().item() == pytest.approx(0.3, rel=0.35)
        if isinstance(module, nn.Linear):
            assert module.bias.eq(0).all()
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
    assert model.embeddings.words.weight.std().item() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("position", POSITIONS)
def test_bfloat16_autocast_is_close_to_float32(small, position):
    model = LongspanModel(small(position=position, pooling="cls")).eval()
    ids, mask = torch.randint(1, 50, (2, 17)), torch.ones(2, 17)
    mask[1, 5:] = 0
    exact = model(ids, mask.bool()).pooler_output
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(ids, mask.bool()).pooler_output
    rough.float().sum().backward()
    assert not rough.float().equal(exact)
    torch.testing.assert_close(rough.float(), exact, atol=0.1, rtol=0.05)


@pytest.mark.slow
def test_compiled_encoder_equals_eager(small, monkeypatch):
    # torch.compile cannot trace the shape checks of the tests.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = build_encoder(small(pooling="cls"))
    ids, mask = torch.randint(1, 50, (2, 17)), torch.rand(2, 17) > 0.3
    compiled = torch.compile(model)(ids, mask)
    torch.testing.assert_close(compiled.last_hidden_state, model(ids, mask).last_hidden_state)


def test_too_long_input_is_rejected(small):
    with pytest.raises(InputError, match=r"position_embeddings=40 tokens, got 41; truncate"):
        build_encoder(small())(torch.ones(1, 41, dtype=torch.long))


def test_token_ids_outside_vocabulary_are_rejected(small):
    with pytest.raises(InputError, match=r"ids must be in 0\.\.49, got 1\.\.50; check"):
        build_encoder(small())(torch.tensor([[1, 50]]))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("position", POSITIONS)
def test_one_hot_inputs_equal_token_ids(small, pooling, position):
    """Use the word embeddings as columns of the input projection."""
    words = build_encoder(small(pooling=pooling, position=position))
    numbers = build_encoder(small(pooling=pooling, position=position, input_features=50))
    state = words.state_dict()
    state["embeddings.values.weight"] = state.pop("embeddings.words.weight").T
    state["embeddings.values.bias"] = torch.zeros(16)
    numbers.load_state_dict(state)
    ids, mask = torch.randint(0, 50, (3, 13)), torch.rand(3, 13) > 0.3
    values = nn.functional.one_hot(ids, 50).double()
    expected, found = words(ids, mask), numbers(attention_mask=mask, input_values=values)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output)


BOTH_KINDS = {"input_ids": torch.ones(2, 3, dtype=torch.long), "input_values": torch.rand(2, 3, 2)}


@pytest.mark.parametrize(
    ("features", "inputs", "message"),
    [
        (None, {}, r"takes input_ids or inputs_embeds only \(input_features=None\)"),
        (None, {"input_values": torch.rand(2, 3, 1)}, "takes input_ids or"),
        (None, BOTH_KINDS, "only"),
        (2, BOTH_KINDS, "only"),
        (2, {"input_ids": torch.ones(2, 3, dtype=torch.long)}, "takes input_values or .*=2"),
        (2, {}, "takes input_values or"),
        (2, {"input_values": torch.rand(2, 3)}, r"must have shape \(B, T, 2\), got \(2, 3\)"),
        (2, {"input_values": torch.rand(2, 3, 1)}, r"\(B, T, 2\), got \(2, 3, 1\)"),
        (2, {"input_values": torch.rand(1, 41, 2)}, "=40 tokens, got 41; truncate"),
    ],
)
def test_wrong_kind_of_inputs_is_rejected(small, monkeypatch, features, inputs, message):
    # The shape checks of the tests would raise first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=message):
        LongspanModel(small(input_features=features))(**inputs)


def test_continuous_inputs_have_linear_embedding(small):
    model = LongspanModel(small(input_features=3))
    assert model.get_input_embeddings() is model.embeddings.values
    assert model.embeddings.words is None
    assert "embeddings.words.weight" not in model.state_dict()


def test_attention_head_size_sets_width_of_heads(small):
    model = build_encoder(small(attention_head_size=6))
    ids = torch.randint(1, 50, (2, 9))
    attention, x = model.layers[0].attention, torch.randn(2, 9, 16, dtype=torch.float64)
    q, k, v = (
        getattr(attention, n)(x).view(2, 9, 2, 6).transpose(1, 2) for n in ("query", "key", "value")
    )
    mixed = (q @ k.mT / 6**0.5).softmax(-1) @ v
    torch.testing.assert_close(
        attention(x).states, attention.output(mixed.transpose(1, 2).flatten(2))
    )
    assert model(ids).last_hidden_state.shape == (2, 9, 16)


def test_masks_of_wrong_values_or_shape_are_rejected():
    ids = torch.ones(2, 3, dtype=torch.long)
    for value in (2, -1, 0.5, -torch.inf, torch.nan):
        with pytest.raises(InputError, match=rf"attention_mask must be .* got {value:g}; mark"):
            to_boolean_mask("attention_mask", torch.tensor([[1, 0, 1], [1, 1, value]]), ids)
    with pytest.raises(InputError, match=r"the shape of the inputs, \(2, 3\), got \(2, 4\)"):
        to_boolean_mask("attention_mask", torch.ones(2, 4, dtype=torch.bool), ids)


@torch.no_grad()
def test_types_without_a_table_are_refused(small):
    model, ids = build_encoder(small()), torch.ones(2, 3, dtype=torch.long)
    expected = model(ids).last_hidden_state
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids)).last_hidden_state, expected)
    with pytest.raises(InputError, match=r"token_type_ids must be 0 .* up to 1; leave them"):
        model(ids, token_type_ids=ids)


def test_word_embeddings_can_be_resized(small):
    model = LongspanModel(small())
    before = model.embeddings.words.weight.clone()
    model.resize_token_embeddings(60)
    assert model.config.vocab_size == 60
    assert model.embeddings.words.weight[:50].equal(before)
    model(torch.tensor([[59]]))


CARRIES = [name for name in sorted(MECHANISMS) if MECHANISMS[name].traits.carries_positions]


@pytest.mark.parametrize("name", CARRIES)
def test_no_position_embeddings_where_mechanism_carries_positions(small, name):
    model = build_encoder(small(attention=name))
    assert model.embeddings.positions is None
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (2, 12))
    assert not torch.equal(model(ids).pooler_output, model(ids.flip(1)).pooler_output)
    explicit = build_encoder(small(attention=name, position="learned"))
    assert explicit.embeddings.positions is not None
