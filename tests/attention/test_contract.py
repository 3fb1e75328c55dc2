"""Contract of every registered mechanism. Registering a mechanism runs these tests on it."""

import pytest
import torch
from contract import (
    HEAD_DIM,
    HEADS,
    TOLERANCE,
    assert_equals_reference,
    assert_near,
    build_small,
    change_after,
    check_contract,
    every_mechanism,
    global_masks,
    gradients,
    key_masks,
    mechanisms_where,
    qkv,
    reference_copy,
    run_or_skip,
    second_derivatives,
    tiled,
    with_layer_input,
)

from longspan.attention import MECHANISMS, LayerInput

# Scattered padding ends rows like ragged padding: a length has one of both.
LENGTHS = {
    "none": (1, 2, 7, 8, 9, 16, 17, 33, 64, 100),
    "ragged": (2, 9, 33, 100),
    "holes": (1, 7, 8, 16, 17, 64),
}
# Query and key lengths of cross-attention; causal=True requires T <= S.
CROSS = ((1, 9), (7, 8), (16, 33), (33, 64), (33, 33), (100, 130), (9, 7), (64, 1))


@every_mechanism
@pytest.mark.parametrize("kind", LENGTHS)
def test_output_and_gradients_equal_the_reference(name, causal, backend, kind):
    attention = build_small(name, causal, backend)
    for T in LENGTHS[kind]:
        for global_mask in global_masks(name, T):
            masks = {"mask": key_masks(T)[kind], "global_mask": global_mask}
            label = f"T={T}, global tokens {global_mask is not None}"
            assert_equals_reference(attention, qkv(T), label, **masks)


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged", "holes"])
def test_cross_attention_equals_the_reference(name, causal, backend, kind):
    if not MECHANISMS[name].traits.cross:
        pytest.skip("no cross-attention (trait)")
    attention = build_small(name, causal, backend, max_length=130)
    for T, S in CROSS:
        if causal and T > S:
            continue
        masks = {"key_mask": key_masks(S)[kind], "query_mask": key_masks(T)["holes"]}
        assert_equals_reference(attention, qkv(T, S), f"T={T}, S={S}", **masks)


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_is_near_the_float64_reference(name, causal, backend, dtype):
    attention = build_small(name, causal, backend).to(dtype)
    for T in (1, 100):
        rounded = qkv(T, dtype=dtype)
        for mask in (None, key_masks(T)["ragged"]):
            out = run_or_skip(attention, *rounded, mask)
            assert out.dtype == dtype
            exact = reference_copy(attention).double()(*(x.double() for x in rounded), mask)
            assert_near(out.double(), exact, f"T={T}", TOLERANCE[dtype])


@every_mechanism
def test_gradients_equal_finite_differences_on_transposed_views(name, causal, backend):
    attention = build_small(name, causal, backend, head_dim=4)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv(7, D=4)]
    assert not views[0].is_contiguous()
    for mask in (None, key_masks(7)["holes"]):

        def function(*inputs, mask=mask):
            return run_or_skip(attention, *inputs, mask)

        inputs = [x.requires_grad_() for x in views]
        assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


ENDS = (0, 6, 42, 62, 63, 64, 98)  # last tokens of the past


@every_mechanism
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_causal_output_ignores_the_future(name, causal, backend, dtype):
    attention = build_small(name, causal, backend).to(dtype)
    T = 100
    # Small weights in the past and large ones in the future, and vice versa.
    for size, other, kind in ((1, 50, "none"), (1, 50, "holes"), (12, 0, "none")):
        mask = key_masks(T)[kind]
        inputs = [size * x for x in qkv(T, dtype=dtype)]
        others = [other * x for x in qkv(T, seed=1, dtype=dtype)]
        before = run_or_skip(attention, *inputs, mask)
        after = run_or_skip(attention, *change_after(ENDS, inputs, others), tiled(mask, len(ENDS)))
        for t, rows in zip(ENDS, after.split(3), strict=True):
            if causal:
                # What is lost to large weights of the future is lost whole, beyond any rounding.
                atol = {torch.float64: 1e-10, torch.float32: 2e-4}[dtype]
                past = slice(None, t + 1)
                assert_near(rows[:, :, past], before[:, :, past], f"rows up to {t}", atol)
            elif not torch.allclose(rows[:, :, : t + 1], before[:, :, : t + 1], atol=1e-3):
                return
    assert causal, "the future changes no mechanism here: the test proves nothing"


@every_mechanism
def test_causal_rows_send_no_gradient_to_the_future(name, causal, backend):
    if not causal:
        pytest.skip("not causal")
    attention = build_small(name, causal, backend)
    inputs = [x.requires_grad_() for x in qkv(80)]
    for t in (0, 40, 66):
        out = run_or_skip(attention, *inputs)[:, :, t].square().sum()
        grads = torch.autograd.grad(out, inputs, allow_unused=True, materialize_grads=True)
        assert all(not x[:, :, t + 1 :].any() for x in grads), t
        assert grads[2][:, :, : t + 1].any()


def project(x):
    """Split states into heads, as maps of a layer to queries and keys do."""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(-3, -2)


# Without its global projections Longformer reads none; its own tests check them.
@mechanisms_where(lambda x, *_: MECHANISMS[x].traits.needs_layer_input and x != "longformer")
def test_layer_input_keeps_the_contract_and_changes_the_output(name, causal, backend):
    attention, inputs = build_small(name, causal, backend), qkv(20)
    plain, states = attention(*inputs), qkv(20, H=1, D=HEADS * HEAD_DIM, seed=1)[0][:, 0]
    out = attention(*inputs, layer_input=LayerInput(states, project, project))
    assert not torch.allclose(out, plain, atol=1e-3)
    # Gates read the keys in place of a layer input; the indexer reads queries as well.
    if "width" in attention.built_for and name != "indexed":
        keys = inputs[1].transpose(1, 2).flatten(2)
        same = attention(*inputs, layer_input=LayerInput(keys, project, project))
        assert_near(same, plain, "keys as the layer input")
    check_contract(with_layer_input(attention, project, project), lengths=(1, 9, 33))


@every_mechanism
def test_inputs_of_zeros_give_finite_rows_and_gradients(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs = [torch.zeros_like(x).requires_grad_() for x in qkv(70)]
    out = run_or_skip(attention, *inputs)
    assert all(x.isfinite().all() for x in (out, *gradients(out, inputs, attention)))


GARBAGE = {
    "large": lambda x: 50 * x,
    "nan": lambda x: torch.full_like(x, torch.nan),
    "inf": lambda x: torch.full_like(x, torch.inf),
}
# Padded positions and what they hold: whole blocks of the last, and of NaN, which hides maxima.
PADDING = ((1, "inf"), (7, "nan"), (17, "nan"), (17, "large"))


@every_mechanism
def test_padding_has_no_influence(name, causal, backend):
    attention = build_small(name, causal, backend)
    T = 33
    short = [x.requires_grad_() for x in qkv(T)]
    for global_mask in global_masks(name, T):
        expected = run_or_skip(attention, *short, global_mask=global_mask)
        expected_grads = gradients(expected, short, attention)
        for p, garbage in PADDING:
            ends = [GARBAGE[garbage](x) for x in qkv(p, seed=p)]
            padded = [
                torch.cat([x.detach(), y], 2).requires_grad_()
                for x, y in zip(short, ends, strict=True)
            ]
            key_mask = (torch.arange(T + p) < T).expand(3, -1)
            extra = None
            if global_mask is not None:
                # Global padding has no influence either.
                extra = torch.cat([global_mask, torch.ones(3, p, dtype=torch.bool)], 1)
            out = run_or_skip(attention, *padded, key_mask, global_mask=extra)
            assert_near(out[:, :, :T], expected, f"real positions, {p} padded")
            assert not out[:, :, T:].any()
            grads = gradients(out[:, :, :T], padded, attention)
            for x, y in zip(grads[:3], expected_grads[:3], strict=True):
                assert_near(x[:, :, :T], y, f"gradient, {p} padded")
                assert not x[:, :, T:].any()
            assert_near(grads[3:], expected_grads[3:], f"gradient of a parameter, {p} padded")


@every_mechanism
def test_padded_keys_of_cross_attention_have_no_influence(name, causal, backend):
    if not MECHANISMS[name].traits.cross or causal:
        pytest.skip("no cross-attention (trait), or queries aligned to the end of the keys")
    attention = build_small(name, causal, backend)
    q, k, v = qkv(20, 33)
    ends = [torch.full_like(x[:, :, :9], torch.nan) for x in (k, v)]
    padded = [torch.cat([x, y], 2) for x, y in zip((k, v), ends, strict=True)]
    key_mask = (torch.arange(42) < 33).expand(3, -1)
    out = run_or_skip(attention, q, *padded, key_mask=key_mask)
    assert_near(out, run_or_skip(attention, q, k, v), "output")


@every_mechanism
@pytest.mark.parametrize("kind", ["ragged", "holes"])
def test_key_mask_hides_no_query_when_lengths_are_equal(name, causal, backend, kind):
    attention = build_small(name, causal, backend)
    inputs, real = qkv(33), key_masks(33)[kind]
    out = run_or_skip(attention, *inputs, key_mask=real)
    every_query = run_or_skip(attention, *inputs, key_mask=real, query_mask=torch.ones_like(real))
    assert torch.equal(out, every_query)
    assert_near(out, reference_copy(attention)(*inputs, key_mask=real), "the reference")
    if MECHANISMS[name].traits.cross and not causal:
        longer = run_or_skip(attention, torch.cat([inputs[0]] * 2, 2), *inputs[1:], key_mask=real)
        assert_near(out, longer[:, :, :33], "more queries than keys")
        assert out.movedim(1, 2)[~real].any()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("longformer", {"first_global": 2}),
        ("long_short", {"first_global": True}),
        ("bigbird", {}),
        ("bigbird", {"form": "etc", "global_tokens": 3}),
        ("bigbird", {"repeats": True}),
    ],
)
def test_hidden_keys_of_fixed_global_tokens_leave_their_rows(name, options):
    """A token that is global by the options attends to all, whether others see it or not."""
    attention, inputs = build_small(name, **options), [x.requires_grad_() for x in qkv(33)]
    hidden = (torch.arange(33) < 3).expand(3, -1)
    nan = [inputs[0], *(x.masked_fill(hidden[:, None, :, None], torch.nan) for x in inputs[1:])]
    for global_mask in (None, torch.arange(33).expand(3, -1) % 8 == 2):
        masks = {"key_mask": ~hidden, "global_mask": global_mask}
        assert_equals_reference(attention, inputs, "hidden global tokens", **masks)
        out = attention(*inputs, **masks)
        assert_near(attention(*nan, **masks), out, "content of hidden keys")
        (read,) = torch.autograd.grad(out[:, :, 0].square().sum(), inputs[2])
        assert read.any(-1).equal(~hidden[:, None].expand(-1, HEADS, -1)), "not all keys are read"


@every_mechanism
def test_mask_hides_keys_and_queries(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs, real = qkv(33), key_masks(33)["holes"]
    out = run_or_skip(attention, *inputs, real)
    assert torch.equal(out, run_or_skip(attention, *inputs, key_mask=real, query_mask=real))
    assert not out.movedim(1, 2)[~real].any()
    assert out.movedim(1, 2)[real].any()


@every_mechanism
def test_masks_hold_for_scores_of_any_size(name, causal, backend):
    """Masking by a finite penalty fails here: real scores are lower than any penalty."""
    if not MECHANISMS[name].traits.exact:
        pytest.skip("no softmax scores (trait exact)")
    attention = build_small(name, causal, backend)
    q, k, v = qkv(40)
    # Scores of real pairs are large and negative.
    q, k = 100 * q.abs(), -1000 * k.abs()
    for kind, mask in key_masks(40).items():
        for global_mask in global_masks(name, 40):
            masks = {"mask": mask, "global_mask": global_mask}
            out = run_or_skip(attention, q, k, v, **masks)
            assert_near(out, reference_copy(attention)(q, k, v, **masks), kind, 1e-8)


@every_mechanism
def test_batch_rows_are_independent(name, causal, backend):
    attention = build_small(name, causal, backend)
    T = 50
    # Rows of different scale reveal any maximum or mean over the batch.
    size = torch.tensor([1.0, 4.0, 0.1], dtype=torch.float64)[:, None, None, None]
    inputs = [size * x for x in qkv(T)]
    for kind, mask in key_masks(T).items():
        for global_mask in global_masks(name, T):
            out = run_or_skip(attention, *inputs, mask, global_mask=global_mask)
            for b in range(3):
                row = slice(b, b + 1)
                own = [None if m is None else m[row] for m in (mask, global_mask)]
                alone = run_or_skip(
                    attention, *(x[row] for x in inputs), own[0], global_mask=own[1]
                )
                assert_near(out[row], alone, f"row {b}, mask {kind}")


@every_mechanism
def test_rows_without_keys_give_zeros_and_zero_gradients(name, causal, backend):
    attention = build_small(name, causal, backend)
    T = 20
    some, none = torch.ones(3, T, dtype=torch.bool), torch.zeros(3, T, dtype=torch.bool)
    padded_row = some.clone()
    padded_row[1] = False
    cases = {
        "padded row": {"mask": padded_row},
        "masked queries": {"query_mask": padded_row},
        "masked keys": {"key_mask": padded_row},
        "real queries, masked keys": {"key_mask": none, "query_mask": some},
        "disjoint masks": {"key_mask": padded_row, "query_mask": ~padded_row},
    }
    for label, masks in cases.items():
        inputs = [x.requires_grad_() for x in qkv(T)]
        out = run_or_skip(attention, *inputs, **masks)
        q_real, k_real = (masks.get("mask", masks.get(f"{x}_mask", some)) for x in ("query", "key"))
        has_keys = q_real & k_real.any(1, keepdim=True)
        assert not out.movedim(1, 2)[~has_keys].any(), label
        assert out.movedim(1, 2)[has_keys].any() == has_keys.any(), label
        grads = gradients(out, inputs, attention)
        assert all(x.isfinite().all() for x in grads), label
        if not attention.traits.mixes_queries:
            assert not grads[0].movedim(1, 2)[~has_keys].any(), label
        for x in grads:
            assert has_keys.any() or not x.any(), label


@every_mechanism
def test_masked_query_remains_a_key(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs, real = qkv(30), torch.arange(30) % 3 > 0
    unmasked = run_or_skip(attention, *inputs)
    out = run_or_skip(attention, *inputs, query_mask=real.expand(3, -1))
    assert_near(out[:, :, real], unmasked[:, :, real], "remaining queries")
    assert not out[:, :, ~real].any()


@every_mechanism
def test_masked_query_has_no_influence_unless_queries_are_mixed(name, causal, backend):
    attention = build_small(name, causal, backend)
    inputs, real = [x.requires_grad_() for x in qkv(30)], torch.arange(30) % 3 > 0
    query_mask = real.expand(3, -1)
    expected = run_or_skip(attention, *inputs, query_mask=query_mask)
    if attention.traits.mixes_queries:
        other = inputs[0].where(real[:, None], 1.0)
        changed = run_or_skip(attention, other, *inputs[1:], query_mask=query_mask)
        assert not torch.allclose(changed, expected)
        return
    other = inputs[0].where(real[:, None], torch.nan)
    out = run_or_skip(attention, other, *inputs[1:], query_mask=query_mask)
    assert torch.equal(out, expected)
    assert_near(
        gradients(out, inputs, attention), gradients(expected, inputs, attention), "gradient"
    )


@every_mechanism
def test_query_with_only_padding_in_its_past_gives_zeros(name, causal, backend):
    if not causal:
        pytest.skip("not causal")
    attention, T = build_small(name, causal, backend), 20
    key_mask = (torch.arange(T) >= 9).expand(3, -1)
    inputs = [x.requires_grad_() for x in qkv(T)]
    out = run_or_skip(attention, *inputs, key_mask=key_mask)
    assert not out[:, :, :9].any()
    assert out[:, :, 9:].any()
    assert all(x.isfinite().all() for x in gradients(out, inputs, attention))


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged"])
def test_second_derivatives_equal_the_reference_or_raise(name, causal, backend, kind):
    attention = build_small(name, causal, backend)
    for global_mask in global_masks(name, 33):
        masks = {"mask": key_masks(33)[kind], "global_mask": global_mask}
        inputs = [x.requires_grad_() for x in qkv(33)]
        try:
            actual = second_derivatives(attention, inputs, **masks)
        except RuntimeError as error:
            if "scaled_dot_product" in str(error):
                continue  # torch's kernel has none, and says so
            raise
        expected = second_derivatives(reference_copy(attention), inputs, **masks)
        assert_near(actual, expected, "second derivative", 1e-8)


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged"])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own operators
def test_torch_func_transforms_equal_plain_calls(name, causal, backend, kind):
    attention = build_small(name, causal, backend)
    inputs, key_mask = qkv(33), key_masks(33)[kind]

    def call(*x):
        return run_or_skip(attention, *x, mask=key_mask)

    def loss(*x):
        return call(*x).pow(2).sum()

    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(loss(*leaves), leaves, materialize_grads=True)
    assert_near(torch.func.grad(loss, (0, 1, 2))(*inputs), expected, "torch.func.grad")
    batches = [torch.stack([x, x.flip(0)]) for x in inputs]
    expected = torch.stack([call(*(x[i] for x in batches)) for i in (0, 1)])
    assert_near(torch.func.vmap(call)(*batches), expected, "torch.func.vmap")


@every_mechanism
@pytest.mark.filterwarnings("ignore")  # torch's own, on the performance of its operators
def test_gradients_of_each_sample_have_its_own_masks(name, causal, backend):
    attention = build_small(name, causal, backend)

    def loss(*sample):
        q, k, v, mask, *own = (x[None] for x in sample)
        more = dict(zip(["global_mask"], own, strict=False))
        return run_or_skip(attention, q, k, v, mask, **more).pow(2).sum()

    for global_mask in global_masks(name, 33):
        leaves, real = [x.requires_grad_() for x in qkv(33)], key_masks(33)["holes"]
        total = run_or_skip(attention, *leaves, real, global_mask=global_mask).pow(2).sum()
        expected = torch.autograd.grad(total, leaves, materialize_grads=True)
        masks = [real] if global_mask is None else [real, global_mask]
        of_sample = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))
        for attention.max_global_tokens in (None, 33)[: len(masks)]:
            assert_near(of_sample(*qkv(33), *masks), expected, "gradient of a sample")


@every_mechanism
@pytest.mark.parametrize("kind", ["none", "ragged"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own use
def test_forward_mode_equals_the_reference_or_raises(name, causal, backend, kind):
    attention, key_mask = build_small(name, causal, backend), key_masks(33)[kind]
    inputs, tangents = tuple(qkv(33)), tuple(qkv(33, seed=9))

    def derivative(one):
        return torch.func.jvp(lambda *x: one(*x, key_mask), inputs, tangents)[1]

    run_or_skip(attention, *inputs, mask=key_mask)
    try:
        actual = derivative(attention)
    except NotImplementedError as error:
        if "scaled_dot_product" in str(error):
            return  # torch's kernel has none, and says so
        raise
    assert_near(actual, derivative(reference_copy(attention)), "derivative")
