"""Every mechanism refuses in words the sizes and options that it cannot be built with."""

import math
from typing import get_type_hints

import pytest
import torch

from longspan import space
from longspan.attention import MECHANISMS, build, options_of
from longspan.attention.allocation import build_within_memory, sizes_alone
from longspan.attention.build import SIZES
from longspan.attention.initial_values import initial_values, tensors_of
from longspan.errors import NoMemoryError, OptionError

GIVEN = {"heads": 2, "head_dim": 16, "max_length": 64}
NOT_MEANT = (0, -1, 2**31 - 1, 2**31, 10**12, 2**63 - 1, 2**63, 1e300, -1.5, math.nan)
HUGE = (2**31 - 1, 10**12, 2**63 - 1)


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
