"""Classification models with every mechanism."""

import pytest
import torch

from longspan.attention import MECHANISMS, Attention
from longspan.errors import OptionError
from longspan.models import LongspanForSequenceClassification, LongspanModel

WITH_GLOBAL_TOKENS = [n for n, cls in MECHANISMS.items() if cls.traits.global_tokens]


@pytest.mark.parametrize(
    ("name", "pooling"),
    [*((name, "mean") for name in MECHANISMS), *((name, "cls") for name in WITH_GLOBAL_TOKENS)],
)
def test_model_trains_and_ignores_padding(small, name, pooling):
    config = small(attention=name, pooling=pooling, num_labels=3)
    model = LongspanForSequenceClassification(config).double()
    ids = torch.randint(1, 50, (3, 19))
    mask = torch.ones(3, 19, dtype=torch.bool)
    mask[1, 13:], mask[2, :] = False, False
    out = model(ids, mask, labels=torch.tensor([0, 1, 2]))
    out.loss.backward()
    assert out.logits.isfinite().all()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    other = torch.where(mask, ids, torch.randint(1, 50, (3, 19)))
    torch.testing.assert_close(model(other, mask).logits, out.logits)
    changed = ids.clone()
    changed[0, 0] = ids[0, 0] % 49 + 1
    assert not torch.allclose(model(changed, mask).logits[0], out.logits[0])


@pytest.mark.parametrize("name", [x for x in MECHANISMS if x not in WITH_GLOBAL_TOKENS])
def test_layers_without_global_tokens_train_as_ever_beside_others(small, name):
    """A layer before any with global tokens computes what it does without a mask of them."""
    options = [{}, {"window": 1}]
    config = small(attention=[name, "local"], attention_options=options, position="none")
    model, ids = LongspanModel(config).double(), torch.randint(1, 50, (2, 19))
    is_global = torch.zeros(2, 19, dtype=torch.bool)
    is_global[:, 4] = True
    found, plain = (
        model(ids, global_attention_mask=x, output_hidden_states=True) for x in (is_global, None)
    )
    torch.testing.assert_close(found.hidden_states[1], plain.hidden_states[1])
    assert not torch.allclose(found.last_hidden_state, plain.last_hidden_state)


@pytest.mark.parametrize(
    ("name", "options", "has_unused_parameters"),
    [
        *((name, {}, name == "indexed") for name in sorted(MECHANISMS)),
        ("longformer", {"global_projections": True}, True),
        ("compressive", {"autoencoder": True}, True),
        *(("compressive", {"compression": x}, True) for x in ("conv", "dilated")),
        ("compressive", {"compression": "most_used"}, False),
    ],
)
def test_mechanisms_declare_parameters_without_gradient(
    small, name, options, has_unused_parameters
):
    """Check the trait that DistributedDataParallel needs: parameters may receive no gradient.

    The shortest and the longest inputs are among those that run.
    """
    model = LongspanForSequenceClassification(small(attention=name, attention_options=options))
    assert {x.has_unused_parameters for x in model.modules() if isinstance(x, Attention)} == {
        has_unused_parameters
    }
    without = set()
    for length, real in ((1, 1), (1, 0), (19, 19), (40, 40), (40, 20), (40, 0)):
        model.zero_grad()
        mask = None if real == 40 else (torch.arange(length) < real).expand(2, -1)
        logits = model(torch.ones(2, length, dtype=torch.long), mask).logits
        assert logits.isfinite().all()
        logits.sum().backward()
        without |= {n for n, parameter in model.named_parameters() if parameter.grad is None}
    assert bool(without) == has_unused_parameters, without


AUXILIARY = [
    *((name, {}) for name in sorted(MECHANISMS)),
    ("linear", {"feature_map": "hedgehog", "distillation": True}),
    *(("compressive", {"compression": "conv", "compressed_memory": n}) for n in (0, 2)),
]


@pytest.mark.parametrize(("name", "options"), AUXILIARY)
def test_mechanisms_declare_auxiliary_losses(small, name, options):
    model = LongspanModel(small(attention=name, attention_options=options)).train()
    found = {x.has_auxiliary_loss for x in model.modules() if isinstance(x, Attention)}
    assert found == {model(torch.ones(2, 19, dtype=torch.long)).auxiliary_loss is not None}


@pytest.mark.parametrize(
    ("name", "options"), [("indexed", {}), ("linear", AUXILIARY[-3][1]), AUXILIARY[-1]]
)
def test_autocast_rounds_no_auxiliary_loss(small, name, options):
    """The sum over the queries of a batch is beyond float16."""
    model = LongspanModel(small(attention=name, attention_options=options)).train()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(2, 19, dtype=torch.long)).auxiliary_loss
    assert loss.dtype == torch.float32


def test_auxiliary_losses_are_refused_where_nothing_computes_them(small):
    """They are those of self-attention to whole sequences."""
    options = {"feature_map": "hedgehog", "distillation": True}
    with pytest.raises(OptionError, match="auxiliary loss reads whole sequences"):
        LongspanModel(small(attention="linear", attention_options=options)).enable_context_parallel(
            None
        )
    crossed = {"cross_attention": "linear", "cross_attention_options": options}
    with pytest.raises(OptionError, match="cross-attention has no auxiliary loss, which linear"):
        LongspanModel(small(is_decoder=True, **crossed))


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in sorted(MECHANISMS)), ("longformer", {"global_projections": True})],
)
def test_model_trains_under_bfloat16_autocast(small, name, options):
    torch.manual_seed(1)
    model = LongspanForSequenceClassification(small(attention=name, attention_options=options))
    ids = torch.randint(1, 50, (3, 19))
    mask = torch.arange(19) < torch.tensor([19, 13, 1])[:, None]
    labels = torch.tensor([0, 1, 0])
    expected = model(ids, mask, labels=labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, mask, labels=labels).loss
    torch.testing.assert_close(loss.float(), expected, atol=0.05, rtol=0)
    loss.backward()
    # Without global tokens, Longformer's projections for them receive no gradient.
    assert all(
        x.grad.isfinite().all() for x in model.parameters() if x.grad is not None or not options
    )


@pytest.mark.parametrize("name", WITH_GLOBAL_TOKENS)
def test_maximum_of_global_tokens_needs_no_values(small, name):
    fields = {"attention": name, "pooling": "cls", "max_global_tokens": 2}
    torch.manual_seed(0)
    model = LongspanModel(small(**fields)).eval()
    ids = torch.randint(1, 50, (2, 19))
    global_mask = torch.zeros(2, 19, dtype=torch.bool)
    global_mask[0, 3], global_mask[1, :2] = True, True
    counted = LongspanModel(small(**{**fields, "max_global_tokens": None})).eval()
    counted.load_state_dict(model.state_dict())
    expected = counted(ids, global_attention_mask=global_mask).pooler_output
    found = model(ids, global_attention_mask=global_mask).pooler_output
    torch.testing.assert_close(found, expected)
    out = model.to("meta")(ids.to("meta"), global_attention_mask=global_mask.to("meta"))
    assert out.pooler_output.shape == expected.shape


def test_maximum_is_refused_without_global_tokens(small):
    with pytest.raises(OptionError, match="linformer does not support global tokens"):
        small(attention="linformer", max_global_tokens=1)


@pytest.mark.parametrize("field", ["initializer_range", "layer_norm_eps"])
def test_numbers_of_configuration_are_finite(small, field):
    with pytest.raises(OptionError, match=f"{field} must be at least 0, got nan"):
        small(**{field: float("nan")})
