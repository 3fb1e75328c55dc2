"""Wrong arguments of every door are refused with InputError, never with a raw error."""

import jaxtyping
import numpy as np
import torch

from longspan.attention import MECHANISMS, LayerInput, build
from longspan.errors import InputError

B, H, T, D = 2, 2, 9, 8
BOUNDS = torch.tensor([0, 4, T])
X, REAL, STATES = torch.randn(B, H, T, D), torch.ones(B, T, dtype=torch.bool), torch.randn(B, T, 16)


def project(p):
    return torch.zeros(H, p.shape[0], D)


WRONG = {
    "None": None,
    "a number": 3,
    "a text": "x",
    "a list": [1, 2],
    "a dictionary": {},
    "an array": np.zeros((B, H, T, D), np.float32),
    "True": True,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a huge integer": 10**400,
    "no dimension": torch.tensor(1.0),
    "one dimension": torch.arange(T),
    "two dimensions": X[0, 0],
    "five dimensions": X[None],
    "integers": X.long(),
    "booleans": X > 0,
    "complex numbers": X.to(torch.complex64),
    "float64": X.double(),
    "meta": X.to("meta"),
    "no token": X[:, :, :0],
    "no row": X[:0],
    "no width": X[..., :0],
    "fewer tokens": X[:, :, :5],
    "other heads": X[:, :1].repeat(1, 3, 1, 1),
    "other width": X[..., :3],
    "other batch": X[:1].repeat(5, 1, 1, 1),
    "sparse": X.to_sparse(),
    "nested": torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged),
    "mask": REAL,
    "mask on meta": REAL.to("meta"),
    "mask of integers": REAL.long(),
    "mask of one row": REAL[0],
    "longer mask": torch.ones(B, T + 1, dtype=torch.bool),
    "broadcast mask": REAL[:, :1],
    "sparse mask": REAL.to_sparse(),
    "bounds of floats": BOUNDS.float(),
    "bounds that fall": torch.tensor([0, T, 4]),
    "bounds in two dimensions": BOUNDS[None],
    "bounds on meta": BOUNDS.to("meta"),
}
WRONG_LAYER_INPUTS = {
    "None": (None, project, project),
    "two dimensions": (STATES[0], project, project),
    "four dimensions": (X, project, project),
    "no functions": (STATES, None, 3),
    "another width": (STATES[..., :3], project, project),
    "integers": (STATES.long(), project, project),
    "meta": (STATES.to("meta"), project, project),
    "another shape": (STATES, lambda p: p, lambda p: p),
    "no tensor": (STATES, str, str),
}


def packed(tensors):
    return [x[0].transpose(0, 1) for x in tensors]


def calls(attention, causal, more, wrong):
    """Yield doors, arguments and calls in which one argument is wrong."""
    good = [X, X.clone(), X.clone()]
    rows = {n: LayerInput(x.states[:1], x.query, x.key) for n, x in more.items()}
    for place, letter in enumerate("qkv"):
        changed = [wrong if n == place else x for n, x in enumerate(good)]
        laid = [wrong if n == place else x for n, x in enumerate(packed(good))]
        yield "forward", letter, lambda x=changed: attention(*x, **more)
        yield "packed", letter, lambda x=laid: attention.packed(*x, BOUNDS, **rows)
        if causal is not None:
            yield "step", letter, lambda x=changed: causal.step(*x, **more)
    yield "forward", "q, k, v", lambda: attention(wrong, wrong, wrong, **more)
    masks = "mask", "key_mask", "query_mask", "global_mask"
    for name in (*masks, "layer_input", "shared", "scale", "bias", "relative"):
        yield "forward", name, lambda n=name: attention(*good, **more | {n: wrong})
    yield "packed", "cu_seqlens", lambda: attention.packed(*packed(good), wrong, **rows)
    for name in ("global_mask", "layer_input", "scale"):
        changed = rows | {name: wrong}
        yield "packed", name, lambda x=changed: attention.packed(*packed(good), BOUNDS, **x)
    if causal is None:
        return
    for name in ("cache", "mask", "layer_input", "scale", "bias", "relative"):
        yield "step", name, lambda n=name: causal.step(*good, **more | {n: wrong})
    cache = causal.step(*good, **more)[1]
    yield "reset", "cache", lambda: causal.reset(wrong, torch.tensor([True, False]))
    yield "reset", "rows", lambda: causal.reset(cache, wrong)


def raw_refusals():
    """Yield the calls that raise something else than InputError, and count all calls."""
    count = 0
    layer_inputs = {f"layer input: {x}": LayerInput(*own) for x, own in WRONG_LAYER_INPUTS.items()}
    for name, cls in MECHANISMS.items():
        kinds = [({}, {})]
        if cls.traits.needs_layer_input:
            kinds.append(({}, {"layer_input": LayerInput(STATES, project, project)}))
        if cls.traits.needs_layer_input and cls.traits.global_tokens:
            kinds[-1] = ({"global_projections": True}, kinds[-1][1])
        for options, more in kinds:
            options = {**cls.small_options, **options, "heads": H, "head_dim": D, "max_length": 32}
            attention = build(name, **options)
            causal = build(name, causal=True, **options) if cls.traits.causal else None
            for label, wrong in (WRONG | layer_inputs).items():
                for door, argument, call in calls(attention, causal, more, wrong):
                    count += 1
                    try:
                        call()
                    except InputError:
                        pass
                    except Exception as error:
                        yield f"{name}.{door}, {argument} = {label}: {error!r:.100}"
    yield count


def test_wrong_arguments_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    *found, count = raw_refusals()
    assert count > 20_000
    assert not found, "\n".join(found[:20])
