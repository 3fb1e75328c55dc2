"""Every mechanism refuses in words the sizes and options that it cannot be built with."""

import math
from typing import get_type_hints

import pytest
import torch
from contract import build_small, qkv

from longspan import space
from longspan.attention import MECHANISMS, LayerInput, build, options_of
from longspan.attention.allocation import build_within_memory, sizes_alone
from longspan.attention.build import SIZES
from longspan.attention.initial_values import initial_values, tensors_of
from longspan.errors import InputError, NoMemoryError, OptionError

GIVEN = {"heads": 2, "head_dim": 16, "max_length": 64}
NOT_MEANT = (0, -1, 2**31 - 1, 2**31, 10**12, 2**63 - 1, 2**63, 1e300, -1.5, math.nan)
HUGE = (2**31 - 1, 10**12, 2**63 - 1)
BUILT = {"heads": 3, "head_dim": 8, "max_length": 32}
OTHER = {"heads": 2, "head_dim": 4, "max_length": 33}
# Options with which parts have more of these sizes than by default.
SIZED = [
    ("based", {"feature_dim": None}),
    ("compressive", {"compression": "conv"}),
    ("convolution", {"kernels": "channel"}),
    ("dilated", {"dilation": [1, 2, 3]}),
    ("full", {"sink_logit": True}),
    ("linear", {"feature_map": "hedgehog"}),
    ("linformer", {"sharing": "headwise"}),
    ("linformer", {"sharing": "none"}),
    ("linformer", {"sharing": "none", "projection": "mean"}),
    ("longformer", {"global_projections": True}),
    ("native_sparse", {"compression": "mlp"}),
    ("nystrom", {"conv_kernel_size": 3}),
    ("sinkhorn", {"gumbel": True}),
    ("sinkhorn", {"sorting": "linear"}),
    ("sparse_transformer", {"head_patterns": "separate"}),
    ("synthesizer", {"scores": "dense"}),
]
VALUES_LIKE_KEYS = [
    ("compressive", {"compression": "conv"}),
    ("convolution", {"kernels": "channel"}),
    ("longformer", {"global_projections": True}),
    ("native_sparse", {"compression": "mlp"}),
]
CALLS = [*((name, {}) for name in MECHANISMS), *SIZED]
every_call = pytest.mark.parametrize(("name", "options"), CALLS)


def takes_number(name, option):
    hint = str(get_type_hints(MECHANISMS[name].__init__).get(option))
    return "int" in hint or "float" in hint


def refusal(name, options):
    """Return the message of the refusal; None if the mechanism is built."""
    try:
        build(name, **GIVEN, **options)
    except OptionError as error:
        return str(error)
    return None


OPTIONS = [(m, x) for m in MECHANISMS for x in options_of(m) if takes_number(m, x)]


@pytest.mark.timeout(60)  # a hang is a failure
@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_option_is_accepted_or_refused(name, option):
    is_float = get_type_hints(MECHANISMS[name].__init__)[option] is float
    for value in map(float, NOT_MEANT) if is_float else NOT_MEANT:
        message = refusal(name, {option: value})
        if message is None:
            assert option == "seed" or value not in HUGE, f"{option}={value} was accepted"
        else:
            assert option in message


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_huge_size_is_refused(name, size):
    for value in HUGE:
        with pytest.raises(OptionError, match=f"{size} must be at most [0-9,]+, got {value}"):
            build(name, **{**GIVEN, size: value})


def test_numbers_in_lists_are_bounded():
    with pytest.raises(OptionError, match=r"window must be at most 16,777,216, got \[8, 2147"):
        build("longformer", **GIVEN, window=[8, 2**31 - 1])
    with pytest.raises(OptionError, match=r"dilation must be at most 16,777,216, got \[\[1, 2147"):
        build("dilated", **GIVEN, window=8, dilation=[[1, 2**31 - 1], [1, 1]])


@pytest.mark.parametrize(
    ("name", "sizes", "needed"),
    [
        ("synthesizer", {"scores": "random", "max_length": 2**20}, "8 TiB"),
        ("performer", {"head_dim": 2**14, "features": 2**20}, "128 GiB"),
        ("nystrom", {"heads": 512, "conv_kernel_size": 2**23 + 1}, "16 GiB"),
        ("reformer", {"hashes": 2**22, "heads": 512}, "128 GiB"),
    ],
)
def test_tensor_that_exceeds_memory_is_refused_before_it_is_created(
    name, sizes, needed, monkeypatch
):
    monkeypatch.setattr(space, "available_memory", lambda: 2**30)
    message = f"a tensor of {name} needs {needed} of memory, and 1 GiB are available"
    with pytest.raises(NoMemoryError, match=message):
        build(name, **{**GIVEN, **sizes})


def test_seed_is_no_size():
    assert build("performer", **GIVEN, seed=2**40) is not None
    with pytest.raises(OptionError, match=r"seed must be between -2\^42 and 2\^42"):
        build("performer", **GIVEN, seed=2**42)


def test_tensor_that_fits_is_created(monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: 2**30)
    conv = build("nystrom", heads=32, conv_kernel_size=2**21 + 1)
    assert sum(x.numel() for x in conv.parameters()) == 32 * (2**21 + 1)


@pytest.mark.parametrize("trainable", [False, True])
def test_sizes_alone_take_no_memory(trainable, monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: 2**30)
    with sizes_alone(), initial_values():
        large = build(
            "synthesizer", heads=64, head_dim=16, max_length=2**20, scores="random",
            trainable=trainable,
        )  # fmt: skip
        small = build("performer", **GIVEN)
    assert [x.shape for x in tensors_of(large).values()] == [(64, 2**20, 2**20)]
    assert {x.device.type for x in tensors_of(large).values()} == {"meta"}
    assert all(
        x.equal(y)
        for x, y in zip(small.buffers(), build("performer", **GIVEN).buffers(), strict=True)
    )
    with pytest.raises(NoMemoryError):
        build("synthesizer", heads=64, head_dim=16, max_length=2**20, scores="random")


def test_mechanisms_that_read_large_tensors_have_their_values():
    def make():
        made.append(torch.ones(2**27))
        return float(made[-1].sum())

    made = []
    with sizes_alone(), initial_values():
        assert build_within_memory("own", make) == 2**27
    assert [x.device.type for x in made] == ["meta", "cpu"]


def test_allocator_that_has_no_memory_is_named(monkeypatch):
    monkeypatch.setattr(space, "available_memory", lambda: None)
    with pytest.raises(NoMemoryError, match="synthesizer needs more memory than there is; choose"):
        build("synthesizer", heads=1024, head_dim=16, max_length=2**24, scores="random")


def layer_input(T, width=24):
    return LayerInput(torch.ones(3, T, width).double(), lambda p: p, lambda p: p)


def reads_states(name, options):
    """Return whether the states of a layer input are read, and not only its positions."""
    reads = MECHANISMS[name].traits.needs_layer_input
    return reads and (name, options) not in [("longformer", {}), ("position_infused", {})]


def has_parts_of(name, options, size):
    """Return whether tensors of a mechanism, or an option by head, have this size."""
    shapes = []
    for value in (BUILT[size], OTHER[size]):
        try:
            attention = build_small(name, **{**BUILT, **options, size: value})
        except OptionError:
            return True
        shapes.append([x.shape for x in tensors_of(attention).values()])
    return shapes[0] != shapes[1] or size in attention.built_for


@every_call
def test_inputs_of_other_sizes_than_built_are_refused(name, options):
    attention = build_small(name, **BUILT, **options)
    for size, value in OTHER.items():
        letter = {"heads": "H", "head_dim": "D"}.get(size)
        q, k, v = qkv(9, **{letter: value}) if letter else qkv(value)
        more = {"layer_input": layer_input(q.shape[2])} if reads_states(name, options) else {}
        if has_parts_of(name, options, size):
            message = "as built; got|S=33 exceeds max_length=32"
            with pytest.raises(InputError, match=message):
                attention(q, k, v, **more)
        else:
            assert attention(q, k, v, **more).shape == v.shape


@every_call
def test_values_of_another_width_are_served_or_refused(name, options):
    attention, (q, k, v) = build_small(name, **BUILT, **options), qkv(9, E=5)
    more = {"layer_input": layer_input(9)} if reads_states(name, options) else {}
    if (name, options) in VALUES_LIKE_KEYS:
        with pytest.raises(InputError, match="the width of values must be 8, as built; got 5"):
            attention(q, k, v, **more)
    else:
        assert attention(q, k, v, **more).shape == v.shape


@pytest.mark.parametrize("name", [x for x in MECHANISMS if MECHANISMS[x].traits.causal])
def test_steps_beyond_the_longest_input_are_refused(name):
    attention = build_small(name, True, **BUILT)
    _, cache = attention.step(*qkv(31))
    _, cache = attention.step(*qkv(1), cache)
    if has_parts_of(name, {}, "max_length"):
        with pytest.raises(InputError, match="S=33 exceeds max_length=32"):
            attention.step(*qkv(1), cache)
    else:
        assert attention.step(*qkv(1), cache)[0].isfinite().all()


@pytest.mark.parametrize(("name", "options"), [x for x in CALLS if reads_states(*x)])
def test_layer_inputs_of_another_width_are_refused(name, options):
    attention = build_small(name, **BUILT, **options)
    with pytest.raises(InputError, match="states must be 24 wide, as built; got 25"):
        attention(*qkv(7), layer_input=layer_input(7, 25))
    if name == "longformer":
        return
    attention = build_small(name, **BUILT, width=30, **options)
    assert attention(*qkv(7), layer_input=layer_input(7, 30)).isfinite().all()
    with pytest.raises(InputError, match="the gates read 30 numbers of a token, its keys have 24"):
        attention(*qkv(7))
