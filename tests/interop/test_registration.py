"""Contract of every mechanism that is an attention implementation of transformers.

Models are saved and loaded by `from_pretrained`, as users load them.
"""

import pytest
import torch
from tiny_transformers import CAUSAL, MODELS
from transformers import StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import longspan
from longspan.attention import MECHANISMS, build
from longspan.errors import InputError, OptionError
from longspan.interop.building import Recipe
from longspan.interop.decoding import attend_last

T = 24
SIZES = {"heads": 4, "head_dim": 8, "max_length": 64}
# Without parameters and noise.
OPTIONS = {name: cls.small_options for name, cls in MECHANISMS.items()}
OPTIONS |= {"nystrom": {"landmarks": 6}, "sinkhorn": {"block": 4, "gumbel": False}}


def usable(name):
    attention = build(name, **SIZES, **OPTIONS[name])
    needs_more = list(attention.parameters()) or attention.redraw_every
    return attention.traits.inputs == "qkv" and not needs_more


USABLE = [name for name in MECHANISMS if usable(name)]
CAUSAL_USABLE = [name for name in USABLE if MECHANISMS[name].traits.causal]
DECODING = [name for name in CAUSAL_USABLE if not MECHANISMS[name].traits.mixes_queries]
# Every mechanism in a model of each kind; what others pass on is the same for all mechanisms.
FEW = ("full", "local", "longformer")


def pairs(mechanisms, *models):
    """Return the mechanisms with the first of the models, and few with the others."""
    return [(x, y) for y in models for x in mechanisms if y == models[0] or x in FEW]


PAIRS = pairs(CAUSAL_USABLE, *CAUSAL) + pairs(USABLE, "bert", "modernbert")


def registered(mechanism):
    return longspan.register_attention(mechanism, name=f"{mechanism}-small", **OPTIONS[mechanism])


def token_ids(batch=2, length=T):
    return torch.randint(3, 40, (batch, length))


def padding(kind):
    """Mask whose first row is padded."""
    mask = torch.ones(2, T, dtype=torch.long)
    hidden = {"left": slice(0, 6), "right": slice(T - 6, T), "interior": slice(9, 13)}
    mask[0, hidden[kind]] = 0
    return mask


def changed(ids, where):
    """Return other tokens where the mask is True."""
    return torch.where(where, 3 + (ids - 3 + 17) % 37, ids)


def test_most_mechanisms_are_usable():
    expected = {"full", "local", "blockwise", "disjoint", "dilated", "bigbird", "longformer"}
    expected |= {"linear", "performer", "nystrom", "sparse_transformer", "strided_local"}
    assert expected <= set(USABLE)


@pytest.mark.parametrize("name", sorted(set(MECHANISMS) - set(USABLE)))
def test_other_mechanism_is_refused(name):
    with pytest.raises(OptionError, match=r"use longspan\.swap"):
        longspan.register_attention(name)


@pytest.mark.parametrize(("mechanism", "name"), PAIRS)
@torch.no_grad()
def test_tokens_of_padding_change_nothing(load, mechanism, name):
    model, ids = load(name, registered(mechanism)), token_ids()
    for kind in ("left", "right", "interior"):
        mask = padding(kind)
        out = model(input_ids=ids, attention_mask=mask)[0]
        other = model(input_ids=changed(ids, mask == 0), attention_mask=mask)[0]
        assert torch.equal(out[mask.bool()], other[mask.bool()]), kind
    # A real token has an influence on others, so the equality above says something.
    at = torch.arange(T) == T // 2 + 2
    moved = model(input_ids=changed(ids, at), attention_mask=mask)[0]
    assert (out - moved)[:, ~at].abs().max() > 1e-3


@pytest.mark.parametrize(("mechanism", "name"), PAIRS)
@torch.no_grad()
def test_padded_row_equals_a_batch_of_one(load, mechanism, name):
    model, ids, mask = load(name, registered(mechanism)), token_ids(), padding("left")
    out = model(input_ids=ids, attention_mask=mask)[0]
    for row in range(2):
        one = slice(row, row + 1)
        alone = model(input_ids=ids[one], attention_mask=mask[one])[0]
        real = mask[row].bool()
        torch.testing.assert_close(alone[0, real], out[row, real])


@pytest.mark.parametrize(("mechanism", "name"), pairs(CAUSAL_USABLE, *CAUSAL))
@torch.no_grad()
def test_later_tokens_change_nothing(load, mechanism, name):
    model, ids = load(name, registered(mechanism)), token_ids()
    out, later = model(input_ids=ids)[0], torch.arange(T) >= 15
    other = model(input_ids=changed(ids, later))[0]
    torch.testing.assert_close(out[:, :15], other[:, :15])
    assert (out - other)[:, 15:].abs().max() > 1e-3


@pytest.mark.parametrize(("mechanism", "name"), pairs(DECODING, *CAUSAL))
@torch.no_grad()
def test_cached_decoding_equals_one_pass(load, mechanism, name):
    model, ids, mask = load(name, registered(mechanism)), token_ids(), padding("left")
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    cache, rows = None, []
    for start, stop in [(0, 10), (10, 11), (11, 15), *((i, i + 1) for i in range(15, T))]:
        out = model(
            input_ids=ids[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=positions[:, start:stop],
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        rows.append(out.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(rows, 1)[real], expected[real])


@pytest.mark.parametrize("mechanism", DECODING)
@torch.no_grad()
def test_generated_tokens_need_no_cache(load, mechanism):
    model, ids, mask = load("llama", registered(mechanism)), token_ids(), padding("left")
    fixed = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 6, "pad_token_id": 0}
    assert torch.equal(
        model.generate(ids, use_cache=True, **fixed), model.generate(ids, use_cache=False, **fixed)
    )


@torch.no_grad()
def test_rows_of_earlier_queries_are_not_in_the_cache(load):
    model, ids = load("llama", registered("sinkhorn")), token_ids()
    cache = model(input_ids=ids[:, :-1]).past_key_values
    with pytest.raises(InputError, match="use_cache=False"):
        model(input_ids=ids[:, -1:], past_key_values=cache)


@pytest.mark.parametrize("kind", [None, "left", "right", "interior"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_full_equals_sdpa(load, name, kind):
    ids, mask = token_ids(), None if kind is None else padding(kind)
    real = slice(None) if mask is None else mask.bool()
    out, expected = (
        load(name, attention)(input_ids=ids, attention_mask=mask)[0][real]
        for attention in (longspan.register_attention("full"), "sdpa")
    )
    torch.testing.assert_close(out, expected)


@torch.no_grad()
def test_beams_and_static_cache_equal_those_of_sdpa(load):
    ids, mask = token_ids(), padding("left")
    fixed = {"do_sample": False, "max_new_tokens": 6, "pad_token_id": 0, "attention_mask": mask}
    own, torch_ = (load("llama", x) for x in (longspan.register_attention("full"), "sdpa"))
    for more in ({"num_beams": 3}, {"cache_implementation": "static"}):
        assert torch.equal(
            own.generate(ids, **fixed, **more), torch_.generate(ids, **fixed, **more)
        )
    for cut in (None, mask):
        out, expected = (
            model(
                input_ids=ids,
                attention_mask=cut,
                past_key_values=StaticCache(config=model.config, max_cache_len=40),
            ).logits
            for model in (own, torch_)
        )
        real = slice(None) if cut is None else cut.bool()
        torch.testing.assert_close(out[real], expected[real])


@torch.no_grad()
def test_window_decides_what_is_seen(load):
    near = longspan.register_attention("local", name="near", window=2)
    model, ids = load("bert", near), token_ids()
    moved = changed(ids, torch.arange(T) == 0)
    reached = (model(input_ids=ids)[0] - model(input_ids=moved)[0]).abs().amax((0, 2)) > 1e-9
    # Two layers of two keys to each side.
    assert reached.tolist() == [i <= 4 for i in range(T)]


@torch.no_grad()
def test_global_positions_are_seen_by_all(load):
    name = longspan.register_attention("local", name="near-global", window=2, global_positions=(0,))
    model, ids = load("bert", name), token_ids()
    for moved in (0, T - 1):
        other = model(input_ids=changed(ids, torch.arange(T) == moved))[0]
        assert (model(input_ids=ids)[0] - other).abs().amax((0, 2)).min() > 1e-9


@torch.no_grad()
def test_implementation_can_be_changed_and_is_not_saved(load, tmp_path):
    name, ids = longspan.register_attention("local", name="near", window=2), token_ids()
    model = load("llama", name)
    near = model(input_ids=ids).logits
    model.save_pretrained(tmp_path)
    assert "longspan" not in (tmp_path / "config.json").read_text()
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert again.config._attn_implementation == "sdpa"
    assert (again(input_ids=ids).logits - near).abs().max() > 1e-3
    again.set_attn_implementation(name)
    torch.testing.assert_close(again(input_ids=ids).logits, near)


def test_training_after_inference_mode_has_gradients(load):
    name = longspan.register_attention("performer", features=16)
    model, ids = load("llama", name), token_ids()
    with torch.inference_mode():
        model(input_ids=ids)
    built = ALL_ATTENTION_FUNCTIONS[name].choose.built.values()
    assert [x.projection.is_inference() for x in built] == [False, False]
    # Layers draw different features.
    assert len({x.projection.sum().item() for x in built}) == 2
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@torch.no_grad()
def test_autocast_has_its_dtype_as_in_torch(load):
    model, ids = (
        load("llama", longspan.register_attention("full"), dtype=torch.float32),
        token_ids(),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(input_ids=ids).logits
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(out, model(input_ids=ids).logits)


def test_dropout_drops_weights(load):
    full = longspan.register_attention("full")
    model, ids = load("bert", full, attention_probs_dropout_prob=0.5), token_ids()
    expected = model(input_ids=ids)[0]
    assert torch.equal(model(input_ids=ids)[0], expected)
    assert (model.train()(input_ids=ids)[0] - expected).abs().max() > 1e-3


def test_random_features_do_not_depend_on_the_default_dtype():
    recipe, sizes = Recipe("performer", {"features": 16}), {"heads": 2, "head_dim": 8}
    expected = recipe.build(**sizes).projection
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(recipe.build(**sizes).projection, expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("mechanism", ["local", "bigbird", "full", "position_infused"])
def test_padded_keys_of_a_cache_may_hold_anything(mechanism):
    attention = build(mechanism, causal=True, **SIZES, **OPTIONS[mechanism])
    q, k, v = (torch.randn(2, heads, T, 8) for heads in (4, 2, 2))
    mask = padding("interior").bool()
    expected = attention(q, k, v, mask)[:, :, -3:]
    for x in (k, v):
        x.transpose(1, 2)[~mask] = torch.nan
    torch.testing.assert_close(attend_last(attention, q[:, :, -3:], k, v, mask), expected)
