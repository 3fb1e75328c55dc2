"""Building and calling: validation, error messages, kernels and recorded backends."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from contract import qkv, run_steps
from jaxtyping import TypeCheckError

import longspan
from longspan.attention import (
    MECHANISMS,
    Attention,
    Inputs,
    LayerInput,
    Traits,
    backends,
    build,
    options_of,
    register,
    register_kernel,
)
from longspan.attention.registry import KERNELS
from longspan.errors import InputError, LongspanError, OptionError, UnknownNameError

SOURCE = Path(longspan.__file__).parents[1]


def join_refusals(*inputs, name="local", causal=False, **masks):
    return "; ".join(build(name, causal=causal).refusals(Inputs(*inputs, **masks)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q.int(), k.int(), v.int()), "one floating dtype, got torch.int32"),
        (lambda q, k, v: (q, k.float(), v), "got torch.float64, torch.float32, torch.float64"),
        (lambda q, k, v: (q, k.to("meta"), v), "one device, got cpu, meta, cpu"),
        (lambda q, k, v: (q, k[:2], v[:2]), r"q \(3, 3, 9, 8\) and k \(2, 3, 9, 8\) differ in B"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), "heads of k must divide those of q, got 2 and 3"),
        (lambda q, k, v: (q, k[..., :4], v), r"and k \(3, 3, 9, 4\) differ in B or D"),
        (lambda q, k, v: (q, k, v[:2]), r"and v \(2, 3, 9, 8\) differ in B, H or S"),
        (lambda q, k, v: (q, k, v[:, :, :5]), r"and v \(3, 3, 5, 8\) differ in B, H or S"),
        (lambda q, k, v: (q[:, :, :0], k, v), "at least one query and one key are required"),
        (lambda q, k, v: (q[:0], k[:0], v[:0]), r"at least 1, got q \(0, 3, 9, 8\) and v \(0, 3,"),
        (lambda q, k, v: (q[:, :0], k[:, :0], v[:, :0]), "B, H, D and E must be at least 1"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v), "B, H, D and E must be at least 1"),
        (lambda q, k, v: (q, k, v[..., :0]), "B, H, D and E must be at least 1"),
        (lambda *x: [y.to(torch.float8_e4m3fn) for y in x], "got torch.float8_e4m3fn"),
        (lambda *x: [y.to(torch.complex128) for y in x], "got torch.complex128"),
        (
            lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]),
            "at least one query and one key are required",
        ),
        (
            lambda q, k, v: (q[:, :, :4], k, v),
            "cross-attention is not supported .*, got T=4 and S=9",
        ),
    ],
)
def test_mismatched_inputs_are_rejected(change, message):
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(join_refusals(*change(*qkv(9))))


def test_inputs_with_three_dimensions_are_rejected():
    with pytest.raises(InputError, match=r"must be \(B, H, T, D\), got shapes \[\(3, 9, 8\)"):
        join_refusals(*(x[:, 0] for x in qkv(9)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "k must be a tensor, got NoneType"),
        ([[1.0]], "k must be a tensor, got list"),
        (qkv(9)[1].to_sparse(), "k must be a dense tensor, got a sparse_coo one; use padding"),
        (
            torch.nested.nested_tensor(list(qkv(9)[1]), layout=torch.jagged),
            "k must be a dense tensor, got a nested one; use padding and a mask",
        ),
    ],
)
def test_inputs_other_than_dense_tensors_are_rejected(x, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    q, k, v = qkv(9)
    with pytest.raises(InputError, match=message):
        build("local")(q, x, v)
    if x is not None:
        with pytest.raises(InputError, match=message.replace("k must", "mask must")):
            build("local")(q, k, v, x)


@pytest.mark.parametrize("mask", ["key_mask", "query_mask", "global_mask"])
def test_mask_on_other_device_is_rejected(mask):
    found = join_refusals(*qkv(9), **{mask: torch.ones(3, 9, dtype=torch.bool, device="meta")})
    assert f"{mask} must be on cpu, got meta" in found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"heads": -3}, "heads must be an integer >= 1, got -3"),
        ({"heads": "3"}, "heads must be an integer >= 1, got '3'"),
        ({"heads": True}, "heads must be an integer >= 1, got True"),
        ({"heads": None}, r"heads is required \(number of heads\)"),
        ({"head_dim": 2.0}, "head_dim must be an integer >= 1, got 2.0"),
        ({"max_length": 0}, "max_length must be an integer >= 1, got 0"),
        ({"layer": -1}, "layer must be an integer >= 0, got -1"),
        ({"layer": None}, "layer is required"),
        ({"causal": "no"}, "causal must be true or false, got 'no'"),
        ({"causal": None}, "causal must be true or false, got None"),
        ({"backend": None}, "no backend of 'synthesizer' called None; there are: auto, reference"),
        ({"name": 5}, "no mechanism called 5; there are: based"),
        ({"seed": 2**62}, r"seed must be between -2\^42 and 2\^42, got 46116"),
        ({"seed": -(2**42)}, r"seed must be between -2\^42 and 2\^42, got -43980"),
    ],
)
def test_invalid_arguments_of_build_are_rejected(arguments, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    valid = {"name": "synthesizer", "heads": 2, "head_dim": 4, "max_length": 8}
    with pytest.raises((OptionError, UnknownNameError), match=message):
        build(**{**valid, **arguments})


@pytest.mark.parametrize("mask", ["key_mask", "query_mask", "global_mask"])
def test_masks_of_wrong_dtype_or_shape_are_rejected(mask):
    wrong = torch.ones(3, 9)
    found = join_refusals(*qkv(9), **{mask: wrong})
    assert f"{mask} must be boolean (True = real), got torch.float32; use mask.bool()" in found
    # These shapes would broadcast silently.
    for shape in ((1, 9), (3, 1), (3, 8), (3, 1, 9)):
        found = join_refusals(*qkv(9), **{mask: torch.ones(shape, dtype=torch.bool)})
        assert f"{mask} must have shape (3, 9), got {shape}" in found


@pytest.mark.parametrize("name", ["mask", "key_mask", "query_mask", "global_mask"])
def test_masks_reveal_inputs_of_another_layout(name, monkeypatch):
    """Inputs (B, T, H, D) are valid inputs of T heads, but their masks do not fit them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    inputs, mask = [x.transpose(1, 2) for x in qkv(9, S=9)], torch.ones(3, 9, dtype=torch.bool)
    message = (
        "local does not support these inputs: the layout is (B, H, T, D), got q (3, 9, 3, 8), "
        "k (3, 9, 3, 8) and a mask (3, 9); use x.transpose(1, 2)"
    )
    local = build("local", causal=True)
    with pytest.raises(InputError, match=re.escape(message) + "$"):
        local(*inputs, **{name: mask})
    if name == "mask":
        with pytest.raises(InputError, match=r"this step: the layout is \(B, H, T, D\), got q"):
            local.step(*inputs, mask=mask)
    assert local(*(x.transpose(1, 2) for x in inputs), **{name: mask}) is not None


def test_as_many_heads_as_tokens_are_no_other_layout(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert build("local")(*qkv(5, H=5), torch.ones(3, 5, dtype=torch.bool)) is not None
    with pytest.raises(InputError, match=r"inputs: mask must have shape \(3, 5\), got \(3, 6\)"):
        build("local")(*qkv(5, H=5), torch.ones(3, 6, dtype=torch.bool))


def test_key_mask_and_query_mask_have_separate_lengths():
    masks = {m: torch.ones(3, 5, dtype=torch.bool) for m in ("key_mask", "query_mask")}
    found = join_refusals(*qkv(5, 9), name="full", **masks)
    assert found == "key_mask must have shape (3, 9), got (3, 5)"


def test_padding_mask_is_refused_where_it_is_ambiguous():
    (q, k, v), mask = qkv(5, 9), torch.ones(3, 5, dtype=torch.bool)
    full = build("full")
    message = "mask requires as many queries as keys; pass key_mask= and query_mask=, got T=5 and"
    with pytest.raises(InputError, match=message):
        full(q, k, v, mask)
    for other in ("key_mask", "query_mask"):
        with pytest.raises(InputError, match="mask excludes key_mask and query_mask"):
            full(q, q, q, mask, **{other: mask})


def test_causal_requires_a_key_for_each_query():
    found = join_refusals(*qkv(9, 5), name="full", causal=True)
    assert found == "causal=True requires T <= S, got T=9 and S=5"
    assert not join_refusals(*qkv(9, 5), name="full")


def test_error_lists_every_reason():
    masks = {"key_mask": torch.ones(3, 9), "global_mask": torch.ones(3, 8, dtype=torch.bool)}
    reasons = build("linear", causal=True).refusals(Inputs(*qkv(9, 7), **masks))
    assert len(reasons) == 5
    q, k, v = qkv(9)
    message = (
        "^local does not support these inputs: q, k, v must have one .*; cross-attention is not"
    )
    with pytest.raises(InputError, match=message):
        build("local")(q[:, :, :4].float(), k, v)


def test_forward_rejects_what_refusals_reports():
    q, k, v = qkv(9)
    with pytest.raises((InputError, TypeCheckError)):
        build("local")(q, k, v, torch.ones(1, 9, dtype=torch.bool))
    with pytest.raises(
        InputError, match="local does not support these inputs: q, k, v must have one floating"
    ):
        build("local")(q.float(), k, v)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "linea"}, "no mechanism called 'linea'; did you mean linear"),
        ({"name": "qqq"}, "no mechanism called 'qqq'; there are: .*full"),
        ({"name": "local", "widow": 3}, "no option of 'local' called 'widow'; did you mean window"),
        ({"name": "linformer", "num_heads": 4}, "called 'num_heads'; did you mean heads"),
        ({"name": "full", "window": 3}, "no option of 'full' called 'window'; .*sink_logit"),
        ({"name": "full", "backend": "torhc"}, "no backend of 'full' called 'torhc'; .* torch"),
    ],
)
def test_unknown_names_are_rejected_with_suggestions(arguments, message):
    with pytest.raises(UnknownNameError, match=message) as caught:
        build(**arguments)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, LongspanError)


def test_sizes_and_causal_are_not_options():
    with pytest.raises(UnknownNameError, match="no option of 'local' called 'self'"):
        build("local", **{"self": 1})
    assert options_of("local") == {"window": 128, "sink_tokens": 0, "sink_logit": False}
    options = {"features", "feature_map", "orthogonal", "norms", "redraw_every", "seed"}
    assert set(options_of("performer")) == options
    with pytest.raises(UnknownNameError, match="no mechanism called 'loca'"):
        options_of("loca")
    with pytest.raises(UnknownNameError, match="no mechanism called 'loca'"):
        backends("loca")


def test_error_names_all_missing_sizes():
    message = "heads is required .number of heads.; max_length is required .longest input."
    with pytest.raises(OptionError, match=message):
        build("linformer")


def test_registering_a_name_twice_is_rejected():
    with pytest.raises(
        OptionError, match="mechanism 'full' is already registered, by FullAttention"
    ):
        register("full")(Attention)
    assert MECHANISMS["full"].__name__ == "FullAttention"
    assert Attention.__dict__.get("name") is None


class Undefined(Attention):
    """Mechanism without any method."""

    name = "undefined"
    traits = Traits(paper="none", family="kernel", cost="T", exact=False)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_error_names_the_missing_method(backend):
    undefined = Undefined()
    undefined.backend = backend
    method = {"torch": "attend", "reference": "reference"}[backend]
    with pytest.raises(TypeError, match=f"Undefined does not define {method}"):
        undefined(*qkv(3))
    with pytest.raises(TypeError, match="Undefined does not define flops"):
        undefined.flops(3, 8)
    assert undefined.pairs(3) is None


@pytest.fixture
def register_zeros(monkeypatch):
    """Return a function that registers a kernel of "full": zeros, for at most four queries."""
    cls = MECHANISMS["full"]
    monkeypatch.setitem(KERNELS, cls, {})

    def find_reasons(attention, x):
        return [f"T={x.q.shape[2]} is beyond 4"] if x.q.shape[2] > 4 else []

    def register(automatic):
        register_kernel(cls, "zeros", find_reasons, automatic=automatic)(
            lambda attention, x: torch.zeros_like(x.v)
        )

    return register


def test_kernel_selected_by_name_runs_or_raises(register_zeros):
    register_zeros(automatic=False)
    assert backends("full") == ["auto", "torch", "reference", "zeros"]
    attention = build("full", backend="zeros")
    assert not attention(*qkv(4)).any()
    assert attention.backend_used == "zeros"
    with pytest.raises(
        InputError, match="full: kernel 'zeros' does not support these inputs: T=5 is beyond 4"
    ):
        attention(*qkv(5))


def test_auto_uses_automatic_kernel_for_supported_inputs(register_zeros):
    register_zeros(automatic=True)
    attention = build("full")
    for T, expected in ((4, "zeros"), (5, "torch")):
        attention(*qkv(T))
        assert attention.backend_used == expected
    for backend in ("torch", "reference"):
        attention = build("full", backend=backend)
        assert attention(*qkv(4)).any()
        assert attention.backend_used == backend


def test_auto_ignores_kernels_that_are_not_automatic(register_zeros):
    register_zeros(automatic=False)
    attention = build("full")
    attention(*qkv(4))
    assert attention.backend_used == "torch"


def test_kernel_is_unknown_to_other_mechanisms(register_zeros):
    register_zeros(automatic=True)
    with pytest.raises(UnknownNameError, match="no backend of 'local' called 'zeros'"):
        build("local", backend="zeros")


TORCH_ALONE = """
import sys, torch
allowed = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names)
allowed |= {"longspan", "torch", "sympy", "mpmath", "networkx", "jinja2", "fsspec", "filelock"}
allowed.add("triton")  # looked for, not imported
allowed -= {"jaxtyping", "beartype", "transformers"}

class BlockImports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"blocked: {name}")

sys.meta_path.insert(0, BlockImports())
import longspan, longspan.nn
local = longspan.build("local")
if "torch._dynamo" in sys.modules:
    raise SystemExit("the compiler is imported with the package")
longspan.nn.MultiheadAttention(8, 2)
x = torch.randn(1, 2, 9, 4)
out = local(x, x, x, torch.ones(1, 9, dtype=torch.bool))
for name in ("jaxtyping", "transformers", "datasets", "numba"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} was imported: the test proves nothing")
print(tuple(out.shape))
"""


def test_library_runs_with_torch_alone():
    done = subprocess.run(
        [sys.executable, "-c", TORCH_ALONE],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1, 2, 9, 4)"


def test_package_example_runs():
    q = k = v = torch.randn(1, 8, 1000, 64, generator=torch.Generator().manual_seed(0))
    assert build("local", window=64)(q, k, v).shape == (1, 8, 1000, 64)


class _CausalSum(Attention):
    """Causal sum of values and layer-input states, to test the base class."""

    name = "summed"
    traits = Traits(
        paper="-", family="kernel", cost="T", exact=False, causal=True, needs_layer_input=True
    )
    causal = True

    def attend(self, x):
        states = 0 if x.layer_input is None else x.layer_input.states.sum(-1)[:, None, :, None]
        return (x.v + states).cumsum(2)


def test_steps_cache_layer_input_states():
    attention, inputs = _CausalSum(), qkv(9)
    states, mask = inputs[0][:, 0], torch.arange(9) >= torch.tensor([0, 2, 7])[:, None]
    states = torch.where(mask[..., None], states, torch.nan)
    maps = (torch.nn.Identity(), torch.nn.Identity())
    expected = attention(*inputs, mask, layer_input=LayerInput(states, *maps))
    assert expected.isfinite().all()
    assert not torch.equal(expected, attention(*inputs, mask))
    parts = {"layer_input": lambda rows: LayerInput(states[:, rows], *maps)}
    out, _ = run_steps(attention, inputs, (4, 4, 1), mask, **parts)
    torch.testing.assert_close(out, expected)
    with pytest.raises(InputError, match="this step: layer_input is not supported"):
        build("local", causal=True).step(*inputs, layer_input=LayerInput(states, *maps))


def test_steps_name_their_backend():
    attention = build("linear", causal=True)
    attention.step(*(torch.randn(1, 2, 3, 4) for _ in range(3)))
    assert attention.backend_used == "torch"
