"""Traits: each claim of each mechanism is tested."""

import dataclasses
from typing import get_args

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    assert_near,
    build_small,
    every_mechanism,
    key_masks,
    qkv,
    reference_copy,
    run_or_skip,
    softmax_deviation,
    weights_of,
)
from torch.utils._python_dispatch import TorchDispatchMode

from flop_counter import flop_counter
from longspan.attention import MECHANISMS, LayerInput, RelativeBias, build
from longspan.attention.ops import recurrence
from longspan.attention.traits import Family
from longspan.attention.value_norms import skip_value_norms
from longspan.errors import InputError, OptionError

every_name = pytest.mark.parametrize("name", sorted(MECHANISMS))
SHORT, LONG = 128, 1024
GROWTH = {"T": 8, "T log T": 8 * 10 / 7, "T^1.5": 8**1.5, "T^2": 64}  # from SHORT to LONG


def weights(attention, T):
    """Return the matrix applied to the values, (B, H, T, T), and the softmax logits."""
    q, k, _ = qkv(T)
    return weights_of(attention, q, k), q @ k.mT / q.shape[-1] ** 0.5


@every_mechanism
def test_exact_trait_means_softmax_over_the_support(name, causal, backend):
    attention = build_small(name, causal, backend)
    w, logits = weights(attention, 40)
    if attention.traits.exact:
        assert softmax_deviation(w, logits) < 1e-8
    else:
        assert softmax_deviation(w, logits) > 1e-2, (
            "the mechanism is exact, but its trait says it is not"
        )


@every_mechanism
def test_rows_sum_as_claimed(name, causal, backend):
    """Parameters of any value keep the claim: a gate that starts at one is seen too."""
    attention = build_small(name, causal, backend)
    torch.manual_seed(5)
    for parameter in attention.parameters():
        parameter.data += torch.randn_like(parameter) / 2
    check_row_sums(attention)


def check_row_sums(attention, T=40):
    with skip_value_norms(attention):
        w, _ = weights(attention, T)
        v = qkv(T)[2]
        assert_near(w @ v, attention(*qkv(T)[:2], v), "output against weights times values", 1e-8)
    sums, claim = w.sum(-1), attention.traits.row_sums
    found = f"weights of a row sum to {sums.min():.3f} to {sums.max():.3f}; declare Traits(row_sums"
    is_one = ((sums - 1).abs() < 1e-8).all()
    at_most_one = (w >= 0).all() and (sums < 1 + 1e-8).all()
    match claim:
        case "one":
            remedy = "at most one" if at_most_one else "any"
            assert is_one, f"{found}={remedy!r})"
        case "at most one":
            assert at_most_one, f"{found}='any'), or see that no weight is negative"
            assert not is_one, f"{found}='one')"
        case "any":
            assert not at_most_one, f"{found}={'one' if is_one else 'at most one'!r})"


@pytest.mark.parametrize(
    ("name", "options", "claim"),
    [
        ("linformer", {"projection": "mean"}, "one"),
        ("linformer", {"projection": "random"}, "any"),
        ("compressive", {"compression": "conv"}, "any"),
        ("compressive", {"compression": "dilated"}, "any"),
        ("long_short", {"conv_kernel_size": 3}, "any"),
        ("nystrom", {"conv_kernel_size": 3}, "any"),
    ],
)
def test_options_that_change_row_sums_change_the_trait(name, options, claim):
    torch.manual_seed(5)
    attention = build_small(name, **options)
    for parameter in attention.parameters():
        parameter.data += torch.randn_like(parameter) / 2
    assert attention.traits.row_sums == claim
    if name != "compressive":  # convolutions of its values have a fixed width
        check_row_sums(attention)


@every_name
def test_family_is_visible_in_the_weights(name):
    T, far = 128, 32
    attention = build_small(name)
    assert attention.traits.family in get_args(Family)
    one, other = (weights_of(attention, *qkv(T, seed=seed)[:2]) for seed in (0, 1))
    same_support = torch.equal(one != 0, other != 0)
    # The weights of the last queries on the first keys leave out a convolution over neighbors.
    rank = torch.linalg.matrix_rank(one[..., -far:, :far], rtol=1e-9).max()
    match attention.traits.family:
        case "dense":
            assert (one != 0).all()
        case "fixed pattern" | "recurrence":
            assert same_support
            assert (one == 0).any()
        case "kernel" | "low rank":
            assert 0 < rank < far
        case "linear recurrence":  # what a state of D rows passes on
            assert 0 < rank <= HEAD_DIM
        case "convolution":
            assert same_support
            assert (one == 0).any()
            assert not rank, "no weight is that of a far key"
        case "learned pattern":
            assert not same_support or not attention.traits.exact
        case "hybrid":
            assert not attention.traits.exact


@every_mechanism
def test_mechanisms_that_carry_positions_distinguish_equal_tokens(name, causal, backend):
    attention = build_small(name, causal, backend)
    if not attention.traits.carries_positions:
        pytest.skip("carries no positions")
    q, k, _ = (torch.ones_like(x) for x in qkv(40))
    w = weights_of(attention, q, k).abs()
    support = w > 0
    highest, lowest = w.amax(-1), w.masked_fill(~support, torch.inf).amin(-1)
    assert (highest[:, :, 2:] > 1.001 * lowest[:, :, 2:]).all()


def left_padded(x, count):
    """Return a tensor (B, H, T, D) after positions of padding that hold content."""
    return torch.cat((torch.full_like(x[:, :, :1], 3.0).repeat(1, 1, count, 1), x), 2)


def change_by_left_padding(attention):
    """Return the largest change of an output by padding before the tokens."""
    alone, changes = attention(*qkv(24)), []
    for count in (1, 3, 8, 13):
        mask = torch.arange(24 + count).ge(count).expand(3, -1)
        out = attention(*(left_padded(x, count) for x in qkv(24)), mask)
        changes.append((out[:, :, count:] - alone).abs().max())
    return max(changes)


@every_mechanism
def test_padding_before_the_tokens_changes_anchored_mechanisms_only(name, causal, backend):
    attention = build_small(name, causal, backend)
    assert (change_by_left_padding(attention) > 1e-9) == attention.traits.anchored


def change_by_interior_padding(attention):
    """Return the largest change of an output by padding between the tokens."""
    alone, changes = attention(*qkv(24)), []
    for count in (1, 3, 8, 13):
        mask = torch.ones(24 + count, dtype=torch.bool)
        mask[9 : 9 + count] = False
        spread = [torch.full((*x.shape[:2], len(mask), x.shape[3]), 3.0).to(x) for x in qkv(24)]
        for x, y in zip(spread, qkv(24), strict=True):
            x[:, :, mask] = y
        out = attention(*spread, mask.expand(3, -1))
        changes.append((out[:, :, mask] - alone).abs().max())
    return max(changes)


@every_mechanism
def test_padding_between_the_tokens_changes_all_mechanisms_that_count_it(name, causal, backend):
    attention = build_small(name, causal, backend)
    assert (change_by_interior_padding(attention) <= 1e-9) == attention.traits.ignores_gaps


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("longformer", {"first_global": 2}),
        ("sparse_transformer", {"kind": "fixed", "stride": 6, "summary": 1}),
    ],
)
def test_options_that_count_from_the_first_position_anchor(name, options):
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 64}
    attention = build(name, **sizes, **MECHANISMS[name].small_options | options).double()
    assert attention.traits.anchored
    assert change_by_left_padding(attention) > 1e-9


@every_mechanism
def test_pairs_counts_nonzero_weights(name, causal, backend):
    attention = build_small(name, causal, backend)
    assert not attention.traits.exact or attention.pairs(1) is not None
    for T in (1, 7, 40, 64):
        if attention.pairs(T) is not None:
            counts = (weights(attention, T)[0] != 0).sum((-1, -2))
            assert (counts == torch.tensor(attention.pairs(T))).all(), T


class Allocations(TorchDispatchMode):
    """Bytes of the largest tensor and of all tensors returned by operations.

    A view counts by its own elements, so splitting a tensor adds no bytes.
    """

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                size = min(x.untyped_storage().nbytes(), x.nbytes)
                self.largest, self.total = max(self.largest, size), self.total + size
        return out


def build_masks(name, kind, T):
    if kind != "masked":
        return {}
    masks = {"mask": key_masks(T, B=2)["ragged"]}
    if MECHANISMS[name].traits.global_tokens:
        masks["global_mask"] = (torch.arange(T) % (T // 2) == 3).expand(2, T)
    return masks


def own_size(name, kind):
    """Return the size option with a value that does not follow the length, or no option."""
    option = MECHANISMS[name].size_option
    if kind == "fixed size" and (option is None or option in MECHANISMS[name].small_options):
        pytest.skip("no size follows the length")
    return {option: 8} if kind == "fixed size" else {}


@pytest.fixture
def one_product(monkeypatch):
    """Decays of channels choose the products of recurrences; here it is one for each chunk."""
    monkeypatch.setattr(recurrence, "RANGE", torch.inf)


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "masked", "fixed size"])
@pytest.mark.usefixtures("one_product")
def test_memory_grows_as_claimed(name, causal, backend, kind):
    allocated = {}
    for T in (SHORT, LONG):
        inputs = [x.requires_grad_() for x in qkv(T, B=2)]
        options = own_size(name, kind)
        attention = build_small(name, causal, backend, max_length=T, **options)
        with Allocations() as forward:
            out = run_or_skip(attention, *inputs, **build_masks(name, kind, T))
        with Allocations() as backward:
            out.sum().backward()
        allocated[T] = (forward.largest, forward.total, backward.largest, backward.total)
    claimed = GROWTH[attention.traits.cost]
    for label, short, long in zip(
        ("largest, forward", "total, forward", "largest, backward", "total, backward"),
        allocated[SHORT],
        allocated[LONG],
        strict=True,
    ):
        # The ends of a row, where runs are shorter, are a larger share of a short row.
        assert long <= 1.15 * claimed * short, f"{label}: grew {long / short:.1f} times"


def count_flops(attention, T, masks):
    with flop_counter() as counter:
        run_or_skip(attention, *qkv(T, B=2), **masks)
    return counter.get_total_flops()


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "masked", "fixed size"])
@pytest.mark.usefixtures("one_product")
def test_flops_grow_as_claimed_and_match_counted_flops(name, causal, backend, kind):
    counted = {}
    for T in (SHORT, LONG):
        options = own_size(name, kind)
        attention = build_small(name, causal, backend, max_length=T, **options)
        counted[T] = count_flops(attention, T, build_masks(name, kind, T))
        if kind == "none":
            claimed = 2 * HEADS * attention.flops(T, HEAD_DIM)
            assert 0.3 <= claimed / counted[T] <= 3, f"T={T}: {claimed} against {counted[T]}"
    growth = counted[LONG] / counted[SHORT]
    assert growth <= 1.1 * GROWTH[attention.traits.cost], f"grew {growth:.1f} times"


@every_mechanism
@pytest.mark.usefixtures("one_product")
def test_sizes_beyond_the_length_add_no_flops(name, causal, backend):
    """Default sizes are those of long inputs."""
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 20}
    attention = build(name, causal=causal, backend=backend, **sizes).double()
    assert HEADS * attention.flops(20, HEAD_DIM) <= 1.5 * count_flops(attention, 20, {}) / 2


@every_mechanism
def test_values_may_be_wider_or_narrower_than_keys(name, causal, backend):
    attention = build_small(name, causal, backend)
    for E in (1, 5, 13):
        for mask in (None, key_masks(33)["holes"]):
            inputs = qkv(33, E=E)
            out = run_or_skip(attention, *inputs, mask)
            assert out.shape == (3, HEADS, 33, E)
            assert_near(out, reference_copy(attention)(*inputs, mask), f"E={E}")


@every_name
def test_cross_attention_is_rejected_without_the_trait(name):
    if MECHANISMS[name].traits.cross:
        return
    with pytest.raises(InputError, match=r"cross-attention is not supported .*, got T=7 and S=9"):
        build_small(name)(*qkv(7, 9))


@every_mechanism
def test_query_subset_gives_the_same_rows(name, causal, backend):
    """Distributed inference splits queries of mechanisms that support cross-attention."""
    attention = build_small(name, causal, backend)
    q, k, v = qkv(33)
    mask = key_masks(33)["ragged"]
    if causal or not attention.traits.cross:
        return
    expected = run_or_skip(attention, q, k, v, mask)
    for rows in (slice(0, 16), slice(16, 33), slice(32, 33)):
        out = run_or_skip(attention, q[:, :, rows], k, v, key_mask=mask, query_mask=mask[:, rows])
        assert_near(out, expected[:, :, rows], f"rows {rows}")


@every_mechanism
def test_undeclared_inputs_have_no_influence(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs = dict(zip("qkv", qkv(33), strict=True))
    out = run_or_skip(attention, *inputs.values())
    for letter in inputs:
        other = {**inputs, letter: inputs[letter] + 1}
        same = torch.equal(run_or_skip(attention, *other.values()), out)
        assert same == (letter not in attention.traits.inputs), letter


# Inputs that need a trait, and its name.
INPUTS = {
    "bias": (torch.zeros(1, 1, 7, 7, dtype=torch.float64), "bias"),
    "relative": (RelativeBias(lambda distance: distance[None].double()), "relative"),
    "scale": (0.5, "scale"),
    "global_mask": (torch.zeros(3, 7, dtype=torch.bool), "global_tokens"),
    "layer_input": (
        LayerInput(torch.zeros(3, 7, 24, dtype=torch.float64), *[torch.nn.Identity()] * 2),
        "needs_layer_input",
    ),
}
# Options whose scores are no products, or that compute the rows of global tokens separately.
WITHOUT = [
    ("performer", {"feature_map": "relu"}, "scale"),
    ("synthesizer", {"scores": "dot+dense"}, "scale"),
    *(("longformer", {"global_projections": True}, x) for x in ("scale", "bias", "relative")),
]


def assert_is_refused(attention, name):
    with pytest.raises(InputError, match=rf"{name} is not supported \(traits\.{INPUTS[name][1]}\)"):
        attention(*qkv(7), **{name: INPUTS[name][0]})


@every_name
@pytest.mark.parametrize("given", INPUTS)
def test_inputs_are_refused_without_their_trait(name, given):
    if not getattr(MECHANISMS[name].traits, INPUTS[given][1]):
        assert_is_refused(build_small(name), given)


@pytest.mark.parametrize(("name", "options", "given"), WITHOUT)
def test_inputs_are_refused_with_options_that_lack_their_trait(name, options, given):
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 7}
    assert_is_refused(build(name, **sizes, **options).double(), given)


@pytest.mark.parametrize("name", [x for x, c in MECHANISMS.items() if c.traits.needs_layer_input])
def test_layer_input_of_another_length_is_rejected(name):
    with pytest.raises(InputError, match=r"layer_input.states must be .* \(3, 9\), got \(3, 7"):
        build_small(name)(*qkv(9), layer_input=INPUTS["layer_input"][0])


@every_name
def test_shared_parameter_is_rejected_without_the_trait(name):
    attention = build_small(name)
    assert attention.traits.shares_parameter or attention.release_shared() is None
    message = r"shared (is not supported|must be None)"
    with pytest.raises(InputError, match=message):
        attention(*qkv(7), shared=torch.zeros(1, dtype=torch.float64))


@every_name
def test_causal_is_rejected_without_the_trait(name):
    if MECHANISMS[name].traits.causal:
        assert build_small(name, causal=True).causal
        with pytest.raises(InputError, match=r"causal=True requires T <= S|cross-attention is not"):
            build_small(name, causal=True)(*qkv(9, 7))
        return
    with pytest.raises(OptionError, match=f"{name} cannot be built: causal=True is not supported"):
        build_small(name, causal=True)


@every_name
def test_step_is_rejected_without_causal(name):
    with pytest.raises(
        InputError, match=f"{name} does not support this step: .*requires causal=True"
    ):
        build_small(name).step(*qkv(7))


@every_name
def test_exactly_the_declared_sizes_are_required(name):
    traits = MECHANISMS[name].traits
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "max_length": 32}
    declared = {size: value for size, value in sizes.items() if size in traits.sizes}
    build(name, **declared, **MECHANISMS[name].small_options)
    for size in declared:
        others = {key: value for key, value in declared.items() if key != size}
        with pytest.raises(OptionError, match=f"{size} is required "):
            build(name, **others, **MECHANISMS[name].small_options)


@every_name
def test_class_traits_equal_those_of_default_options(name):
    with_defaults = build(name, heads=HEADS, head_dim=HEAD_DIM, max_length=32)
    assert with_defaults.traits == MECHANISMS[name].traits


@every_name
def test_traits_are_frozen_and_cite_a_paper_if_there_is_one(name):
    traits = MECHANISMS[name].traits
    assert traits.paper is None or "https://" in traits.paper
    with pytest.raises(dataclasses.FrozenInstanceError):
        traits.exact = not traits.exact
