"""Benchmark of the error of random features: estimates against softmax and its known variance."""

import itertools
import math

import pytest
import torch

from longspan.attention import build

LENGTH, WIDTH, SCALE = 6, 8, 0.15  # large norms have errors of heavy tails
SEEDS = 400


@pytest.fixture(scope="module")
def script(import_script):
    return import_script("feature_error")


@pytest.fixture(scope="module")
def inputs(script):
    q, k, v = script.draw_inputs(0, LENGTH, WIDTH, SCALE)
    return q + 0.15, k + 0.15, v  # a mean of zero would hide a bias of the directions


def estimates(script, inputs, name, orthogonal, features):
    q, k, _ = inputs
    for seed in range(SEEDS):
        options = {"feature_map": name, "orthogonal": orthogonal, "features": features}
        attention = build("performer", heads=1, head_dim=WIDTH, seed=seed, **options).double()
        yield script.estimate_kernel(attention, q, k)[0, 0]


def variance_of_one_row(name, x, y):
    """Return the variance of the estimate of exp(x . y) from one normal row, in closed form.

    E exp(w . z) = exp(|z|^2 / 2) of w ~ N(0, I); cos is the real part of an exponential.
    """
    plus, minus = (x + y).square().sum(), (x - y).square().sum()
    kernel = (x @ y).exp()
    if name == "trigonometric":
        squares = x.square().sum() + y.square().sum()
        return squares.exp() * (1 - (-minus).exp()) ** 2 / 2
    positive = kernel.square() * (plus.exp() - 1)
    return positive if name == "softmax" else positive * (1 - (-plus).exp()) / 2


def exact(inputs):
    q, k = (x[0, 0] for x in inputs[:2])
    return torch.tensor(
        [[math.exp(sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(WIDTH))
          for y in k.tolist()] for x in q.tolist()], dtype=torch.float64
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "orthogonal"),
    list(itertools.product(["softmax", "hyperbolic", "trigonometric"], [True, False])),
)
def test_estimates_have_no_bias_and_the_known_variance(script, inputs, name, orthogonal):
    features = 16
    draws = torch.stack(list(estimates(script, inputs, name, orthogonal, features)))
    kernel = exact(inputs)
    error = draws.std(0) / SEEDS**0.5
    assert ((draws.mean(0) - kernel).abs() < 4.5 * error).all()
    rows = features if name == "softmax" else features // 2
    q, k = (x[0, 0] / WIDTH**0.25 for x in inputs[:2])
    expected = torch.stack(
        [torch.stack([variance_of_one_row(name, x, y) for y in k]) for x in q]
    ) / rows  # fmt: skip
    measured = (draws - kernel).square().mean().item()
    if orthogonal:
        assert measured < 0.95 * expected.mean()
    else:
        assert measured == pytest.approx(expected.mean().item(), rel=0.3)


def test_errors_decrease_with_the_number_of_features(script):
    rows = script.measure(24, WIDTH, [SCALE], [8, 512], draws=5)
    assert len(rows) == 3 * 2 * 2
    for few, many in zip(rows[::2], rows[1::2], strict=True):
        assert (few["features"], many["features"]) == (8, 512)
        for error in ("output", "kernel"):
            assert many[error]["median"] < few[error]["median"] / 10
            assert many[error]["lowest"] < many[error]["median"] < many[error]["highest"]


def test_errors_of_a_draw_are_those_of_softmax_in_float64(script):
    (row,) = [
        x
        for x in script.measure_draw(3, 12, WIDTH, SCALE, [32])
        if x["feature_map"] == "softmax" and x["orthogonal"]
    ]
    q, k, v = script.draw_inputs(3, 12, WIDTH, SCALE)
    attention = build("performer", heads=1, head_dim=WIDTH, features=32, seed=3).double()
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    squares = (attention(q, k, v) - output).square().sum() / output.square().sum()
    assert row["output"] == pytest.approx(squares.item())


def test_numbers_that_maps_refuse_are_named(script, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["feature_error.py", "--features", "16", "7"])
    with pytest.raises(SystemExit):
        script.main()
    assert "--features must be even and at least 2 for pairs of features, got [7]" in (
        capsys.readouterr().err
    )
