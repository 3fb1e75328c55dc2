"""Options: a record can store them, their declaration bounds and describes them.

Size options take integers and enlarge the receptive field.
"""

import json
import re
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import pytest

from longspan.attention import MECHANISMS, build, options_of
from longspan.attention.build import SHARED_OPTIONS
from longspan.errors import OptionError

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


def wrong_values(hint, wrap=lambda x: x):
    """Yield a value just outside of each part of a declaration, and the bound or choices."""
    origin, inner = get_origin(hint), get_args(hint)
    assert hint is not int, "an integer without a least value"
    if origin is Annotated:
        yield wrap(inner[1].value - 1), f">= {inner[1].value}"
    elif origin is Literal:
        yield wrap("?"), ", ".join(inner)
    else:
        nested = (lambda x: wrap([x])) if origin is list else wrap
        for part in inner:
            yield from wrong_values(part, nested)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_options_outside_of_their_declaration_are_refused(name):
    hints = get_type_hints(MECHANISMS[name].__init__, include_extras=True)
    for option in options_of(name).keys() - {"seed"}:
        for value, bound in wrong_values(hints[option]):
            message = rf"{option} must be .*{bound}.*got {re.escape(repr(value))}"
            with pytest.raises(OptionError, match=message):
                build(name, heads=2, head_dim=8, max_length=T, **{option: value})


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_option_is_described(name):
    described = re.findall(r"^ +(\w+): .", MECHANISMS[name].__init__.__doc__, re.MULTILINE)
    assert set(options_of(name)) <= {*described, *SHARED_OPTIONS}


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
