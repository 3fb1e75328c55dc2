"""The text of a mechanism: one line, from which it can be built again."""

import ast

import pytest
from contract import HEAD_DIM, HEADS

from longspan.attention import MECHANISMS, build

SIZES = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}


def parse_call(text):
    """Return the name and the keyword arguments of a call."""
    call = ast.parse(text, mode="eval").body
    return call.func.id, {x.arg: ast.literal_eval(x.value) for x in call.keywords}


def build_again(text):
    class_name, arguments = parse_call(text)
    (name,) = (name for name, cls in MECHANISMS.items() if cls.__name__ == class_name)
    return build(name, **arguments)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_text_is_one_line_that_builds_the_same_mechanism(name, small):
    cls = MECHANISMS[name]
    for causal in (False, True) if cls.traits.causal else (False,):
        attention = build(name, causal=causal, **SIZES, **(cls.small_options if small else {}))
        text = repr(attention)
        assert "\n" not in text
        assert len(text) <= 180
        assert build_again(text).signature == attention.signature
        _, arguments = parse_call(text)
        assert cls.size_option is None or cls.size_option in arguments
        assert arguments.get("causal", False) is causal


def test_text_shows_what_differs_from_the_default():
    assert repr(build("local", window=16)) == "LocalAttention(window=16)"
    attention = build(
        "longformer", **SIZES, causal=True, first_global=True, backend="torch", weight_dropout=0.1
    )
    sizes = f"heads={HEADS}, head_dim={HEAD_DIM}, layer=0, window=256"
    own = "first_global=True, causal=True, backend='torch', weight_dropout=0.1"
    assert repr(attention) == f"LongformerAttention({sizes}, {own})"


def test_text_of_an_instance_made_without_build_is_its_signature():
    attention = MECHANISMS["local"](window=4)
    assert repr(attention) == f"<{attention.signature}>"
