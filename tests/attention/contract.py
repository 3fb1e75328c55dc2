"""Cases, small inputs, tolerances and checks of the contract tests."""

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import longspan
from longspan.attention import MECHANISMS, Attention, LayerInput, backends, build
from longspan.errors import InputError


def import_mechanisms(path: str) -> set[str]:
    """Import a file of mechanisms; return the names that it registers."""
    before = set(MECHANISMS)
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None, f"{path} is no Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return set(MECHANISMS) - before


# A file outside the package, see `--mechanism` in conftest.py.
PLUGINS = import_mechanisms(x) if (x := os.environ.get("LONGSPAN_TEST_MECHANISM")) else set()

HEADS, HEAD_DIM = 3, 8
HERE = Path(__file__).parent
SOURCE = Path(longspan.__file__).parents[1]

# Allowed absolute error from the float64 reference, for inputs of unit size.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}

# Kernels in Triton run on a GPU, or in the interpreter in a process of their own (test_triton.py).
RUNS_TRITON = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"

CASES = [
    pytest.param(name, causal, backend, id=f"{name}-{'causal' if causal else 'full'}-{backend}")
    for name, cls in MECHANISMS.items()
    for causal in ((False, True) if cls.traits.causal else (False,))
    for backend in backends(name)
    # Bodies of short inputs, single diagonals and torch's kernels have tests of their own.
    if backend not in ("auto", "reference", "dense", "diagonals", "flex", "varlen")
    and (backend != "triton" or RUNS_TRITON)
]


def mechanisms_where(condition):
    """Parametrize a test by the cases (name, causal, backend) for which the condition is true."""
    cases = [case for case in CASES if condition(*case.values)]
    return pytest.mark.parametrize(("name", "causal", "backend"), cases)


full_and_causal = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
every_mechanism = mechanisms_where(lambda *_: True)
# step() requires causal=True and has one backend.
every_stepping_mechanism = mechanisms_where(
    lambda _, causal, backend: causal and backend == "torch"
)


def build_small(name, causal=False, backend="torch", max_length=128, **sizes) -> Attention:
    """Build a float64 mechanism whose structure shows within a few dozen tokens."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": max_length, **sizes}
    options = {**MECHANISMS[name].small_options, **sizes}
    return build(name, causal=causal, backend=backend, **options).double()


def reference_copy(attention: Attention) -> Attention:
    """Copy the mechanism, with the backend `reference`."""
    reference = copy.deepcopy(attention)
    reference.backend = "reference"
    return reference


def run_or_skip(attention: Attention | Callable, *inputs, **masks) -> Tensor:
    """Call the mechanism, or its method; skip the test if a kernel does not support the inputs."""
    try:
        return attention(*inputs, **masks)
    except InputError as error:
        owner = getattr(attention, "__self__", attention)
        if owner.backend in ("torch", "reference"):
            raise
        pytest.skip(str(error))


def run_in_new_process(code, *arguments, seed="7"):
    """Run `code` in a new process, without the runtime type checks of the tests."""
    others = filter(None, [os.environ.get("PYTHONPATH")])
    paths = os.pathsep.join([str(SOURCE), str(HERE), str(HERE.parent), *others])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def qkv(T, S=None, B=3, H=HEADS, D=HEAD_DIM, E=None, seed=0, dtype=torch.float64):
    """Draw queries (B, H, T, D), keys (B, H, S, D) and values (B, H, S, E)."""
    g = torch.Generator().manual_seed(seed)
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, H, S, D), (B, H, S, D if E is None else E))
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def key_masks(T, B=3):
    """Return no mask, right padding of a different length in each row, and scattered padding."""
    g = torch.Generator().manual_seed(T)
    lengths = torch.tensor([T, max(1, T - 3), (T + 1) // 2])[:B]
    return {
        "none": None,
        "ragged": torch.arange(T) < lengths[:, None],
        "holes": torch.rand(B, T, generator=g) < 0.6,
    }


def global_masks(name, T, B=3):
    """Return None and, if supported, a mask with 0 or more global tokens in each row.

    The number of global tokens differs between rows; the last row has none.
    """
    masks = [None]
    if MECHANISMS[name].traits.global_tokens:
        g = torch.Generator().manual_seed(T + 1)
        share = torch.tensor([0.1, 0.3, 0.0])[:B, None]
        masks.append(torch.rand(B, T, generator=g) < share)
    return masks


def check_contract(attention: Attention, lengths=(1, 7, 33, 64), atol=1e-10, first_step=1) -> None:
    """Check the core of the contract in float64, for any options.

    Output and gradients equal the reference under every mask, up to `atol`. Padding (NaN) and other
    rows of the batch have no influence, and a row of padding alone is zero. If causal, the future
    has no influence and steps equal forward.
    """
    for T in lengths:
        padding = torch.cat([key_masks(T)[kind] for kind in ("ragged", "holes")])
        for mask, times in ((None, 1), (padding, 2)):
            for global_mask in global_masks(attention.name, T):
                masks = {"mask": mask, "global_mask": tiled(global_mask, times)}
                inputs, label = [tiled(x, times) for x in qkv(T)], f"T={T}, masked {times == 2}"
                assert_equals_reference(attention, inputs, label, atol, **masks)
    T = 33
    inputs = qkv(T)
    output = attention(*inputs)
    check_padding(attention, inputs, atol)
    for b in range(3):
        assert_near(attention(*(x[b : b + 1] for x in inputs))[0], output[b], f"row {b} alone")
    if attention.causal:
        ends = (0, 8, 20)
        after = attention(*change_after(ends, inputs, [50 * x for x in inputs]))
        for t, rows in zip(ends, after.split(3), strict=True):
            assert_near(rows[:, :, : t + 1], output[:, :, : t + 1], f"rows up to {t}")
        out, _ = run_steps(attention, inputs, (first_step,) + (1,) * (T - first_step))
        assert_steps_near(attention, out, output, "none")


def change_after(ends, inputs: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Return the inputs once for each end, one copy after another; others follow the end."""
    future = torch.arange(inputs[0].shape[2]) > torch.tensor(ends)[:, None]
    future = future.repeat_interleave(len(inputs[0]), 0)[:, None, :, None]
    pairs = zip(inputs, others, strict=True)
    return [torch.where(future, tiled(y, len(ends)), tiled(x, len(ends))) for x, y in pairs]


def tiled(x: Tensor | None, times: int) -> Tensor | None:
    """Return the rows of a batch several times, one copy after another; None if there are none."""
    return None if x is None else torch.cat([x] * times)


def check_padding(attention: Attention, inputs: list[Tensor], atol: float) -> None:
    """Check that padding of NaN changes no output and no gradient, and a row of padding is zero."""
    T, p = inputs[0].shape[2], 7
    padded = [torch.cat([x, torch.full_like(x[:, :, :p], torch.nan)], 2) for x in inputs]
    short, longer = ([x.detach().requires_grad_() for x in y] for y in (inputs, padded))
    expected = attention(*short)
    output = attention(*longer, (torch.arange(T + p) < T).expand(3, -1))[:, :, :T]
    assert_near(output, expected, "padding")
    pairs = [gradients(x, y, attention) for x, y in ((output, longer), (expected, short))]
    assert not any(x[:, :, T:].any() for x in pairs[0][:3]), "gradient of padding"
    found = [x[:, :, :T] for x in pairs[0][:3]]
    assert_near(found, list(pairs[1][:3]), "gradient, padding", atol)
    assert_near(pairs[0][3:], pairs[1][3:], "gradient of a parameter, padding", atol)
    mask = torch.arange(3)[:, None].expand(-1, T) != 1
    output, *grads = run_with_gradients(attention, inputs, mask=mask)
    assert not any(x[1].any() for x in (output, *grads[:3])), "a row of padding"
    assert all(x.isfinite().all() for x in grads), "a row of padding"


def with_layer_input(attention: Attention, query: Callable, key: Callable) -> Attention:
    """Let calls and steps read a layer input that is made of their queries, which are mixed."""
    cls, width = type(attention), HEADS * HEAD_DIM
    mixed = torch.randn(width, width, generator=torch.Generator().manual_seed(5)).double()

    def layer_input(q):
        return LayerInput(q.transpose(1, 2).flatten(2) @ mixed / width**0.5, query, key)

    class WithLayerInput(cls):
        def forward(self, q, *more, **masks):
            return cls.forward(self, q, *more, **masks, layer_input=layer_input(q))

        def step(self, q, *more, **masks):
            return cls.step(self, q, *more, **masks, layer_input=layer_input(q))

    attention.__class__ = WithLayerInput
    return attention


def run_steps(attention, inputs, sizes, mask=None, cache=None, **parts):
    """Return the outputs of steps of so many tokens, and the last cache.

    `parts` are arguments of a step as functions of its rows, a slice of the whole sequence.
    """
    outs, start = [], 0 if cache is None else cache.length
    for size in sizes:
        rows = slice(start, start + size)
        own = None if mask is None else mask[:, rows]
        more = {name: part(rows) for name, part in parts.items()}
        out, cache = attention.step(*(x[:, :, rows] for x in inputs), cache, own, **more)
        outs.append(out)
        start += size
    return torch.cat(outs, 2), cache


def steps_of(T: int, size: int) -> list[int]:
    """Return steps of `size` tokens that cover T tokens; the last may be shorter."""
    return [min(size, T - start) for start in range(0, T, size)]


def weights_of(attention, q, k, mask=None, **masks) -> Tensor:
    """Return the matrix applied to the values, (B, H, T, S)."""
    identity = torch.eye(k.shape[2], dtype=k.dtype).expand(len(k), q.shape[1], -1, -1)
    return run_or_skip(attention, q, k, identity, mask, **masks)


def run_with_gradients(attention, inputs, **masks) -> tuple[Tensor, ...]:
    """Return the output and its gradients for the inputs and every parameter."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = run_or_skip(attention, *inputs, **masks)
    return out, *gradients(out, inputs, attention)


def assert_equal_results(one, other, inputs, label, atol=1e-10, **masks) -> None:
    """Assert that two mechanisms have the same output, and the same gradients."""
    found, expected = (run_with_gradients(x, inputs, **masks) for x in (one, other))
    names = ["output", "q", "k", "v", *(n for n, _ in one.named_parameters())]
    for name, a, b in zip(names, found, expected, strict=True):
        assert_near(a, b, f"{label}, {name}", atol)


def assert_equals_reference(attention, inputs, label, atol=1e-10, **masks) -> None:
    """Assert that the output and all gradients equal those of the reference."""
    reference = reference_copy(attention)
    assert_equal_results(attention, reference, inputs, label, atol, **masks)


def gradients(out: Tensor, inputs, attention: Attention, seed=0):
    """Return gradients of a random projection of `out` for the inputs and every parameter."""
    g = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(out.shape, generator=g, dtype=torch.float64).to(out.dtype)
    targets = [*inputs, *attention.parameters()]
    return torch.autograd.grad(out, targets, cotangent, allow_unused=True, materialize_grads=True)


def both_derivatives(out: Tensor, inputs) -> tuple[Tensor, ...]:
    """Return gradients of a nonlinear function of `out`, and gradients of their squares."""
    first = torch.autograd.grad(
        out.square().sum(), inputs, create_graph=True, materialize_grads=True
    )
    total = sum(x.square().sum() for x in first)
    return *first, *torch.autograd.grad(total, inputs, materialize_grads=True)


def run_and_count_saved(attention, *inputs, **masks) -> tuple[Tensor, int]:
    """Return the output, which has a gradient, and the bytes saved for its backward pass."""
    saved = {}

    def pack(x):
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = attention(*inputs, **masks)
    assert out.requires_grad
    return out, sum(saved.values())


def second_derivatives(attention, inputs, **masks):
    """Return the product of the Hessian of a nonlinear function of the output with a vector."""
    out = run_or_skip(attention, *inputs, **masks)
    first = torch.autograd.grad(out.pow(3).sum(), inputs, create_graph=True, materialize_grads=True)
    torch.manual_seed(8)
    directions = [torch.randn(x.shape, dtype=x.dtype) for x in inputs]
    product = sum((x * y).sum() for x, y in zip(first, directions, strict=True))
    return torch.autograd.grad(product, inputs, materialize_grads=True)


def check_higher_derivatives(attention: Attention, key_mask: Tensor | None, T: int = 12):
    """Assert that second derivatives and forward mode equal those of the reference."""
    both, tangents = (attention, reference_copy(attention)), tuple(qkv(T, seed=3))
    second = [
        second_derivatives(x, [y.requires_grad_() for y in qkv(T)], key_mask=key_mask) for x in both
    ]
    assert_near(*second, "second derivative", 1e-8)
    assert_near(*(torch.func.jvp(x, tuple(qkv(T)), tangents) for x in both), "forward mode")


def holed_mask(kind: str, T: int) -> Tensor | None:
    """Return a mask of two rows with holes, of which one may be "only padding"; "none": None."""
    if kind == "none":
        return None
    mask = torch.rand(2, T, generator=torch.Generator().manual_seed(3)) < 0.8
    mask[:, 100:190] &= kind == "ragged"
    mask[1, :] &= kind == "ragged"
    return mask


def all_derivatives(out: Tensor, inputs: list[Tensor]) -> tuple[tuple[Tensor, ...], ...]:
    """Return gradients of a backward pass, of one that can be differentiated, and of the latter."""
    plain = plain_gradients(out, inputs)
    both = both_derivatives(out, inputs)
    return plain, both[: len(inputs)], both[len(inputs) :]


def plain_gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return gradients of a backward pass that leaves the graph for others."""
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad(
        (out * weight).sum(), inputs, retain_graph=True, materialize_grads=True
    )


def assert_derivatives_near(found: tuple, expected: tuple) -> None:
    """Assert that rows and all derivatives equal those of the reference."""
    assert_near(found[0], expected[0], "rows")
    assert_near(found[1:3], expected[1:3], "gradient", 1e-9)
    assert_near(found[3], expected[3], "second derivative", 1e-7)


def assert_near(actual, expected, label: str, atol: float = 1e-10):
    """Assert elementwise equality of tensors, or of sequences of them.

    `atol` is the absolute and the relative tolerance.
    """
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=atol, msg=lambda text: f"{label}: {text}"
    )


def assert_steps_near(attention: Attention, actual: Tensor, expected: Tensor, mask: str):
    """Assert that steps equal forward; `mask` describes the mask."""
    own = "correct" if "advance" in vars(type(attention)) else "override"
    label = f"step() differs from forward() ({'no' if mask == 'none' else mask} mask)"
    assert_near(actual, expected, f"{label}: {own} `advance`")


def softmax_deviation(weights, logits):
    """Return the largest range of log w - q k^T / sqrt(D) over the support of a row."""
    if (weights < 0).any():
        return torch.inf
    excess = weights.log() - logits
    support = weights > 0
    highest = excess.masked_fill(~support, -torch.inf).amax(-1)
    return (highest - excess.masked_fill(~support, torch.inf).amin(-1)).max().item()
