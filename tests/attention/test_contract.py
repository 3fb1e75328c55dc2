"""What every registered mechanism must satisfy. A new one is tested by being registered."""

import pytest
import torch
from contract import (
    TOLERANCE,
    assert_near,
    built,
    every_mechanism,
    global_masks,
    gradients,
    key_masks,
    qkv,
    run,
    slow_twin,
)

from longspan.attention import MECHANISMS

LENGTHS = (1, 2, 7, 8, 9, 16, 17, 33, 64, 100)
# Query and key lengths of cross attention; a causal form needs T <= S.
CROSS = ((1, 9), (7, 8), (16, 33), (33, 64), (64, 100), (100, 130), (9, 7), (64, 1))
# More than a summand's share of rounding, less than any leak of inputs of unit size.
SINGLE = 2e-5


def both_bodies(attention, inputs, **masks):
    """Output and gradients of the body under test and of the reference."""
    inputs = [x.requires_grad_() for x in inputs]
    fast = run(attention, *inputs, **masks)
    twin = slow_twin(attention)
    slow = twin(*inputs, **masks)
    return (fast, *gradients(fast, inputs, attention)), (slow, *gradients(slow, inputs, twin))


def assert_bodies_agree(attention, inputs, what, **masks):
    names = ["output", "q", "k", "v", *(n for n, _ in attention.named_parameters())]
    for name, a, b in zip(names, *both_bodies(attention, inputs, **masks), strict=True):
        assert_near(a, b, f"{what}, {name}")


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_output_and_gradients_equal_the_reference(name, causal, backend, kind):
    attention = built(name, causal, backend)
    for T in LENGTHS:
        for global_mask in global_masks(name, T):
            masks = {"key_mask": key_masks(T)[kind], "global_mask": global_mask}
            what = f"T={T}, global tokens {global_mask is not None}"
            assert_bodies_agree(attention, qkv(T), what, **masks)


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_cross_attention_equals_the_reference(name, causal, backend, kind):
    if not MECHANISMS[name].traits.cross:
        pytest.skip("no cross attention (trait)")
    attention = built(name, causal, backend, max_length=130)
    for T, S in CROSS:
        if causal and T > S:
            continue
        masks = {"key_mask": key_masks(S)[kind], "query_mask": key_masks(T)["holes"]}
        assert_bodies_agree(attention, qkv(T, S), f"T={T}, S={S}", **masks)


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_the_float64_reference(name, causal, backend, dtype):
    attention = built(name, causal, backend).to(dtype)
    for T in (1, 33, 100):
        rounded = qkv(T, dtype=dtype)
        for mask in (None, key_masks(T)["ragged"]):
            out = run(attention, *rounded, mask)
            assert out.dtype == dtype
            exact = slow_twin(attention).double()(*(x.double() for x in rounded), mask)
            assert_near(out.double(), exact, f"T={T}", TOLERANCE[dtype])


@every_mechanism
def test_gradients_equal_finite_differences_on_transposed_views(name, causal, backend):
    attention = built(name, causal, backend, head_dim=4)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(7, D=4)]
    assert not views[0].is_contiguous()
    for mask in (None, key_masks(7)["holes"]):

        def function(*inputs, mask=mask):
            return run(attention, *inputs, mask)

        inputs = [x.requires_grad_() for x in views]
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_causal_output_ignores_the_future(name, causal, backend, dtype):
    attention = built(name, causal, backend).to(dtype)
    T = 100
    changed = False
    # A past of small weight and a future of large weight, or the other way round.
    for size, other, kind in ((1, 50, "none"), (1, 50, "holes"), (12, 0, "none")):
        mask = key_masks(T)[kind]
        inputs = [size * x for x in qkv(T, dtype=dtype)]
        others = [other * x for x in qkv(T, seed=1, dtype=dtype)]
        before = run(attention, *inputs, mask)
        for t in (0, 6, 42, 62, 63, 64, 98):
            past = (torch.arange(T) <= t)[:, None]
            new = [torch.where(past, x, y) for x, y in zip(inputs, others, strict=True)]
            after = run(attention, *new, mask)[:, :, : t + 1]
            if causal:
                atol = max(TOLERANCE[dtype] / 10, 1e-10)
                assert_near(after, before[:, :, : t + 1], f"rows up to {t}", atol)
            else:
                changed |= not torch.allclose(after, before[:, :, : t + 1], atol=1e-3)
    assert causal or changed, "the test cannot see the future: it would pass on any mechanism"


@every_mechanism
def test_a_causal_row_sends_no_gradient_to_its_future(name, causal, backend):
    if not causal:
        pytest.skip("not causal")
    attention = built(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(80)]
    for t in (0, 40, 66):
        out = run(attention, *inputs)[:, :, t].square().sum()
        found = torch.autograd.grad(out, inputs, allow_unused=True, materialize_grads=True)
        assert all(not x[:, :, t + 1 :].any() for x in found), t
        assert found[2][:, :, : t + 1].any()


GARBAGE = {
    "large": lambda x: 50 * x,
    "nan": lambda x: torch.full_like(x, torch.nan),
    "inf": lambda x: torch.full_like(x, torch.inf),
}


@every_mechanism
@pytest.mark.parametrize("garbage", sorted(GARBAGE))
def test_padding_has_no_influence(name, causal, backend, garbage):
    attention = built(name, causal, backend)
    T = 33
    short = [x.requires_grad_() for x in qkv(T)]
    for global_mask in global_masks(name, T):
        expected = run(attention, *short, global_mask=global_mask)
        wanted = gradients(expected, short, attention)
        for p in (1, 7, 8, 17):
            ends = [GARBAGE[garbage](x) for x in qkv(p, seed=p)]
            padded = [
                torch.cat([x.detach(), y], 2).requires_grad_()
                for x, y in zip(short, ends, strict=True)
            ]
            key_mask = (torch.arange(T + p) < T).expand(3, -1)
            extra = None
            if global_mask is not None:
                # Padding is global in the caller's mask, and still has no influence.
                extra = torch.cat([global_mask, torch.ones(3, p, dtype=torch.bool)], 1)
            out = run(attention, *padded, key_mask, global_mask=extra)
            assert_near(out[:, :, :T], expected, f"real positions, {p} padded")
            assert not out[:, :, T:].any()
            found = gradients(out[:, :, :T], padded, attention)
            for x, y in zip(found[:3], wanted[:3], strict=True):
                assert_near(x[:, :, :T], y, f"gradient, {p} padded")
                assert not x[:, :, T:].any()
            for x, y in zip(found[3:], wanted[3:], strict=True):
                assert_near(x, y, f"gradient of a parameter, {p} padded")


@every_mechanism
def test_padded_keys_of_cross_attention_have_no_influence(name, causal, backend):
    if not MECHANISMS[name].traits.cross or causal:
        pytest.skip("no cross attention (trait), or aligned to the end of the keys")
    attention = built(name, causal, backend)
    q, k, v = qkv(20, 33)
    ends = [torch.full_like(x[:, :, :9], torch.nan) for x in (k, v)]
    padded = [torch.cat([x, y], 2) for x, y in zip((k, v), ends, strict=True)]
    key_mask = (torch.arange(42) < 33).expand(3, -1)
    assert_near(run(attention, q, *padded, key_mask), run(attention, q, k, v), "output")


@every_mechanism
def test_scores_of_any_size_stay_within_the_masks(name, causal, backend):
    """A masked key must not win by a fixed penalty that real scores exceed."""
    if not MECHANISMS[name].traits.exact:
        pytest.skip("no scores of its own (trait)")
    attention = built(name, causal, backend)
    q, k, v = qkv(40)
    # All scores of real pairs are far below zero.
    q, k = 100 * q.abs(), -1000 * k.abs()
    for kind, mask in key_masks(40).items():
        for global_mask in global_masks(name, 40):
            masks = {"key_mask": mask, "global_mask": global_mask}
            out = run(attention, q, k, v, **masks)
            assert_near(out, slow_twin(attention)(q, k, v, **masks), kind, 1e-8)


@every_mechanism
def test_rows_of_a_batch_are_independent(name, causal, backend):
    attention = built(name, causal, backend)
    T = 50
    # Rows of very different size: a maximum or mean over the batch would show.
    size = torch.tensor([1.0, 4.0, 0.1], dtype=torch.float64)[:, None, None, None]
    inputs = [size * x for x in qkv(T)]
    for kind, mask in key_masks(T).items():
        for global_mask in global_masks(name, T):
            out = run(attention, *inputs, mask, global_mask=global_mask)
            for b in range(3):
                row = slice(b, b + 1)
                own = [None if m is None else m[row] for m in (mask, global_mask)]
                alone = run(attention, *(x[row] for x in inputs), own[0], global_mask=own[1])
                assert_near(out[row], alone, f"row {b}, mask {kind}")


@every_mechanism
def test_nothing_to_attend_gives_zeros_and_zero_gradients(name, causal, backend):
    attention = built(name, causal, backend)
    T = 20
    some, none = torch.ones(3, T, dtype=torch.bool), torch.zeros(3, T, dtype=torch.bool)
    padded_row = some.clone()
    padded_row[1] = False
    cases = {
        "an all-padded row": {"key_mask": padded_row},
        "queries that are not real": {"query_mask": padded_row},
        "real queries whose keys are all masked": {"key_mask": none, "query_mask": some},
        "neither": {"key_mask": padded_row, "query_mask": ~padded_row},
    }
    for what, masks in cases.items():
        inputs = [x.requires_grad_() for x in qkv(T)]
        out = run(attention, *inputs, **masks)
        q_real = masks.get("query_mask", masks.get("key_mask"))
        alive = q_real & masks.get("key_mask", some).any(1, keepdim=True)
        assert not out.movedim(1, 2)[~alive].any(), what
        assert out.movedim(1, 2)[alive].any() == alive.any(), what
        found = gradients(out, inputs, attention)
        assert all(x.isfinite().all() for x in found), what
        if "k" in attention.traits.inputs:
            assert not found[0].movedim(1, 2)[~alive].any(), what
        for x in found:
            assert alive.any() or not x.any(), what


@every_mechanism
def test_a_hidden_query_is_still_a_key(name, causal, backend):
    traits = MECHANISMS[name].traits
    if not traits.exact and "k" in traits.inputs:
        pytest.skip("queries may also say what is gathered for others, as landmarks")
    attention = built(name, causal, backend)
    inputs, real = qkv(30), torch.arange(30) % 3 > 0
    whole = run(attention, *inputs)
    out = run(attention, *inputs, query_mask=real.expand(3, -1))
    assert_near(out[:, :, real], whole[:, :, real], "rows of the queries that are left")
    assert not out[:, :, ~real].any()


@every_mechanism
def test_a_real_query_whose_past_is_padding_gets_zeros(name, causal, backend):
    if not causal:
        pytest.skip("not causal")
    attention, T = built(name, causal, backend), 20
    key_mask = (torch.arange(T) >= 9).expand(3, -1)
    inputs = [x.requires_grad_() for x in qkv(T)]
    out = run(attention, *inputs, key_mask, query_mask=torch.ones(3, T, dtype=torch.bool))
    assert not out[:, :, :9].any()
    assert out[:, :, 9:].any()
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))
