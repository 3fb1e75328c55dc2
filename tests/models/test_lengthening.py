"""Trained models rebuilt for longer inputs."""

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.errors import OptionError
from longspan.models import LongspanForSequenceClassification, lengthen

LONG = 150
# Mechanisms with a learned parameter for each position.
FIXED = {"linformer": "attention.mechanism.projection", "synthesizer": "attention.mechanism.parts."}
# Sizes that default to a function of the maximum length, with values that keep them.
SIZES = {
    "reformer": {"buckets": 4, "chunk": 8},
    "sinkhorn": {"block": 8},
    "sparse_transformer": {"stride": 8},
    "strided_local": {"length": "real"},
}


def build_model(small, mechanism, **fields):
    options = {**MECHANISMS[mechanism].small_options, **SIZES.get(mechanism, {})}
    config = small(attention=mechanism, attention_options=options, **fields)
    return LongspanForSequenceClassification(config).eval()


@pytest.mark.parametrize("mechanism", sorted(set(MECHANISMS) - set(FIXED)))
def test_longer_model_computes_the_same_on_inputs_of_trained_length(small, mechanism):
    model = build_model(small, mechanism, position="none")
    longer = lengthen(model, LONG).eval()
    inputs = torch.randint(1, 50, (2, 40))
    assert longer is not model
    assert (longer.config.max_position_embeddings, model.config.max_position_embeddings) == (
        LONG,
        40,
    )
    torch.testing.assert_close(longer(inputs).logits, model(inputs).logits)
    assert longer(torch.randint(1, 50, (2, LONG))).logits.isfinite().all()


@pytest.mark.parametrize("mechanism", FIXED)
def test_parameters_for_each_position_are_refused_by_name(small, mechanism):
    model = build_model(small, mechanism, position="rotary")
    with pytest.raises(OptionError) as caught:
        lengthen(model, LONG)
    message = str(caught.value)
    assert f"{mechanism} attention has parameters for inputs of up to 40 tokens" in message
    assert FIXED[mechanism] in message
    positions = "sinusoidal, rotary, t5, relative or none"
    assert f"150 are needed; train one with model.position={positions}" in message


def test_learned_sorting_is_refused(small):
    options = {"sorting": "linear", "block": 8}
    config = small(attention="sinkhorn", attention_options=options, position="none")
    with pytest.raises(OptionError, match="sinkhorn attention has parameters"):
        lengthen(LongspanForSequenceClassification(config), LONG)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_learned_positions_are_refused_and_others_are_not(small, position, pooling):
    model = build_model(small, "full", position=position, pooling=pooling)
    assert lengthen(model, 40) is lengthen(model, 7) is model
    if position == "learned":
        with pytest.raises(OptionError, match=r"\(model\.embeddings\.positions\.weight\)"):
            lengthen(model, 41)
        return
    inputs = torch.randint(1, 50, (2, 40))
    torch.testing.assert_close(lengthen(model, 41).eval()(inputs).logits, model(inputs).logits)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("linformer", {"rank": 8, "projection": "random"}), ("synthesizer", {"trainable": False})],
)
def test_fixed_random_numbers_of_each_position_are_refused(small, mechanism, options):
    config = small(attention=mechanism, attention_options=options, position="none")
    with pytest.raises(OptionError, match=f"{mechanism} attention has parameters"):
        lengthen(LongspanForSequenceClassification(config), LONG)


@pytest.mark.parametrize("training", [True, False])
def test_longer_model_has_dtype_mode_and_frozen_parameters_of_the_model(small, training):
    model = build_model(small, "local", position="none").bfloat16().train(training)
    model.classifier.requires_grad_(False)
    longer = lengthen(model, LONG)
    assert all(module.training == training for module in longer.modules())
    for (name, x), y in zip(longer.named_parameters(), model.parameters(), strict=True):
        assert (x.dtype, x.requires_grad) == (y.dtype, y.requires_grad), name


def test_lengthening_keeps_random_state(small):
    model = build_model(small, "local", position="none")
    state = torch.get_rng_state()
    lengthen(model, LONG)
    assert torch.equal(torch.get_rng_state(), state)
