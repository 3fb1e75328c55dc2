"""Options: a record can store them; size options take integers and enlarge the receptive field."""

import json

import pytest

from longspan.attention import MECHANISMS, build, options_of

SIZE_OPTIONS = {
    name: cls.size_option for name, cls in MECHANISMS.items() if cls.size_option is not None
}
T = 2048


def receptive_field(name, size):
    """Return the number of query-key pairs, or FLOPs where pairs are not counted."""
    options = {**MECHANISMS[name].small_options, SIZE_OPTIONS[name]: size}
    attention = build(name, heads=2, head_dim=8, max_length=T, **options)
    pairs = attention.pairs(T)
    pairs = attention.flops(T, 8) if pairs is None else pairs
    return sum(pairs) if isinstance(pairs, tuple) else pairs


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_options_have_defaults_that_json_can_store(name):
    options = options_of(name)
    assert json.loads(json.dumps(options)) == options
    assert not {"args", "kwargs", "self", "causal"} & set(options)


@pytest.mark.parametrize("name", sorted(SIZE_OPTIONS))
def test_size_option_exists_and_takes_integers(name):
    assert SIZE_OPTIONS[name] in options_of(name)
    assert build(name, heads=2, head_dim=8, max_length=T, **{SIZE_OPTIONS[name]: 16}) is not None


@pytest.mark.parametrize("name", sorted(SIZE_OPTIONS))
def test_larger_size_gives_larger_receptive_field(name):
    """Sizes start near sqrt(T): below it, a smaller size may create many more blocks."""
    fields = [receptive_field(name, size) for size in (64, 128, 256, 512)]
    assert fields == sorted(fields)
    assert len(set(fields)) == 4


@pytest.mark.parametrize("name", sorted(MECHANISMS.keys() - SIZE_OPTIONS))
def test_mechanism_without_size_option_has_no_integer_option(name):
    assert not [x for x in options_of(name).values() if type(x) is int]
