"""Other options on the same parameters: against mechanisms built with them and copied weights."""

import copy

import pytest
import torch
from contract import HEADS, assert_near, build_small, qkv, run_steps, steps_of

from longspan.attention import MECHANISMS
from longspan.attention.other_options import OtherOptions
from longspan.errors import InputError, OptionError, UnknownNameError

T = 40
# Options that change no tensor but hashes, which are drawn: (mechanism, other values).
CASES = [
    ("transformer_xl", {"memory": 29}),
    ("transformer_xl", {"segment": 5, "memory": 33, "clamp": 7, "same_length": True}),
    ("transformer_xl", {"clamp": None, "backprop_through_memory": True}),
    ("compressive", {"memory": 17, "compressed_memory": 9}),
    ("compressive", {"segment": 7, "ratio": 3}),
    ("position_infused", {"segment": 6, "memory": 21}),
    ("local", {"window": 9}),
    ("longformer", {"window": 9}),
    ("dilated", {"dilation": 4}),
    ("nystrom", {"landmarks": 4}),
    ("sinkhorn", {"iterations": 2}),
    ("reformer", {"hashes": 3}),
    ("reformer", {"chunk": 9, "hashes": 1, "seed": 5}),
]
# Options that change a parameter, or a buffer of random numbers; with the reason.
REFUSED = [
    ("linformer", {"rank": 3}, "projection has the shape"),
    ("synthesizer", {"trainable": True}, "parameter parts.random.matrix is new"),
    ("compressive", {"compression": "conv"}, "compression.keys is new"),
    ("long_short", {"segment_rank": 3}, "has the shape"),
    ("performer", {"features": 3}, "has the shape"),
    ("performer", {"seed": 3}, "has other values"),
    ("bigbird", {"seed": 3}, "has other values"),
]
# Mechanisms whose sizes are those of a parameter or a buffer.
OF_TENSORS = {"bigbird", "convolution", "linformer", "lru", "performer", "sinkhorn", "synthesizer"}
NAMES = [f"{name}-{'-'.join(changes) or 'none'}" for name, changes in CASES]
every_case = pytest.mark.parametrize(("name", "changes"), CASES, ids=NAMES)


def perturbed(name, **options):
    """Return a causal mechanism, where there is one, whose parameters are no initial values."""
    torch.manual_seed(4)
    attention = build_small(name, causal=MECHANISMS[name].traits.causal, **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return attention


def built_with(attention, changes):
    """Return a mechanism that is built with the options, and has copies of the parameters.

    Its hashes are its own draws.
    """
    made = build_small(attention.name, causal=attention.causal, **changes)
    copied = {key: x for key, x in attention.state_dict().items() if "rotations" not in key}
    missing, unexpected = made.load_state_dict(copied, strict=False)
    assert (unexpected, [key for key in missing if "rotations" not in key]) == ([], [])
    return made


@every_case
def test_equals_a_mechanism_built_with_the_options(name, changes):
    attention = perturbed(name)
    expected, plain = built_with(attention, changes), copy.deepcopy(attention)
    other = OtherOptions(attention, changes)
    for mask in (None, torch.arange(T) < torch.tensor([T, T - 7, 1])[:, None]):
        with other.applied():
            found = attention(*qkv(T), mask)
        assert_near(found, expected(*qkv(T), mask), "inside the context")
        assert_near(attention(*qkv(T), mask), plain(*qkv(T), mask), "after it")
    assert not torch.equal(expected(*qkv(T)), plain(*qkv(T))), "the options have an effect"


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_sizes_of_every_mechanism_are_applied_or_refused(name):
    """No size is half applied: the output is that of a built mechanism, or there is an error."""
    attention, size = perturbed(name), MECHANISMS[name].size_option
    if size is None:
        return
    if name in OF_TENSORS:
        with pytest.raises(OptionError, match="that change no parameter and no buffer"):
            OtherOptions(attention, {size: 24})
        return
    with OtherOptions(attention, {size: 24}).applied():
        found = attention(*qkv(T))
    assert_near(found, built_with(attention, {size: 24})(*qkv(T)), f"{size}=24")


@every_case
def test_gradients_are_unchanged_by_a_pass_in_between(name, changes):
    """What a mechanism keeps from call to call, such as tables by length, is not mixed up."""
    one = perturbed(name)
    two, before, gradients = copy.deepcopy(one), dict(one.named_parameters()), []
    other = OtherOptions(one, changes)
    one(*qkv(T))
    with other.applied(), torch.no_grad():
        one(*qkv(T))
    for attention in (one, two):
        inputs = [x.requires_grad_() for x in qkv(T)]
        attention(*inputs).square().sum().backward()
        found = [x.grad for x in (*inputs, *attention.parameters())]
        gradients.append([x for x in found if x is not None])
    for x, y in zip(*gradients, strict=True):
        assert torch.equal(x, y)
    assert all(x is before[key] for key, x in one.named_parameters())
    assert (repr(one), one.signature, one.training) == (repr(two), two.signature, two.training)


@pytest.mark.parametrize(("name", "changes"), CASES[:6], ids=NAMES[:6])
def test_steps_inside_equal_the_whole_sequence(name, changes):
    attention = perturbed(name)
    expected = built_with(attention, changes)(*qkv(T))
    with OtherOptions(attention, changes).applied():
        out, cache = run_steps(attention, qkv(T), steps_of(T, 3))
    assert_near(out, expected, "steps")
    with pytest.raises(InputError, match="the cache was made by"):
        attention.step(*qkv(1), cache)


def test_nested_contexts_and_errors_restore_the_options():
    attention = perturbed("transformer_xl")
    before = repr(attention)
    longer = OtherOptions(attention, {"memory": 40})

    def fail():
        with longer.applied():
            seen.append((attention.memory, "memory=40" in repr(attention)))
            raise KeyError

    seen = []
    with pytest.raises(KeyError):
        fail()
    assert seen == [(40, True)]
    assert (attention.memory, repr(attention)) == (15, before)
    with longer.applied():
        assert attention.memory == 40
    assert (attention.memory, repr(attention)) == (15, before)


def test_random_numbers_are_not_used_up():
    attention = perturbed("transformer_xl")
    state = torch.get_rng_state()
    OtherOptions(attention, {"memory": 40})
    assert torch.equal(torch.get_rng_state(), state)


def test_changes_of_attributes_stay_where_they_are_made():
    """Hooks and modes are of the instance, whatever its options."""
    attention, calls = perturbed("local"), []
    other = OtherOptions(attention, {"window": 9})
    attention.register_forward_hook(lambda *_: calls.append(1))
    attention.eval()
    with other.applied():
        attention(*qkv(T))
        assert not attention.training
    assert calls == [1]


@pytest.mark.parametrize(
    ("name", "changes", "reason"), REFUSED, ids=[f"{x}-{'-'.join(y)}" for x, y, _ in REFUSED]
)
def test_options_that_change_a_tensor_are_refused(name, changes, reason):
    with pytest.raises(OptionError, match=reason) as error:
        OtherOptions(perturbed(name), changes)
    ((option, value),) = changes.items()
    assert str(error.value).startswith(f"{name} cannot be evaluated with {option}={value!r}: ")
    assert str(error.value).endswith("train with these options instead")


def test_unknown_options_and_values_are_refused():
    attention = perturbed("transformer_xl")
    with pytest.raises(UnknownNameError, match="memroy"):
        OtherOptions(attention, {"memroy": 3})
    with pytest.raises(OptionError, match="memory must be an integer >= 0, got -1"):
        OtherOptions(attention, {"memory": -1})
    with pytest.raises(OptionError, match="memory"):
        OtherOptions(attention, {"memory": "long"})


def test_a_released_parameter_stays_with_the_model():
    attention = perturbed("linformer", sharing="layerwise")
    shared = attention.release_shared()
    with OtherOptions(attention, {"seed": 1}).applied():
        out = attention(*qkv(T), shared=shared)
    assert torch.equal(out, attention(*qkv(T), shared=shared))
    assert out.shape[1] == HEADS


def test_attributes_that_the_options_of_training_alone_have_are_absent_inside():
    """Queries choose the slots with `most_used`, which the instance's traits say."""
    attention = perturbed("compressive", compression="most_used")
    other = OtherOptions(attention, {"compression": "max"})
    assert attention.traits.mixes_queries
    with other.applied():
        assert attention.traits == built_with(attention, {"compression": "max"}).traits
        assert not attention.traits.mixes_queries
    assert attention.traits.mixes_queries
