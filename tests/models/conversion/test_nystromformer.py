"""transformers' Nystromformer in our classes: landmarks, padding, longer models."""

import pytest
import torch

import short_sources
from longspan.models import LongspanModel, convert, longify

LENGTH, VOCABULARY = 36, short_sources.VOCABULARY
FORMS = {
    "landmarks": {"num_landmarks": 6, "segment_means_seq_len": LENGTH},
    "exact": {"num_landmarks": 8, "segment_means_seq_len": 8},
}


def make(form="landmarks", **fields):
    """Return a model of transformers in float64."""
    return short_sources.make_both_ways("NystromformerModel", **FORMS[form], **fields).double()


def make_inputs(length=LENGTH, shape=(3,)):
    """Return ids, mask and types; rows are padded on the right, on the left and inside."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (*shape, length))
    mask = torch.ones_like(ids)
    mask[0, ..., 4:6], mask[1, ..., 2 * length // 3 :], mask[2, ..., : length // 3] = 0, 0, 0
    types = (torch.arange(length) > length // 2).long().expand_as(ids).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def assert_equal_states(ours, theirs, inputs):
    """Compare all states at real tokens, and those before the last layer at padding too."""
    real = inputs["attention_mask"].bool()
    mine, other = (short_sources.forward(model, inputs).hidden_states for model in (ours, theirs))
    for a, b in zip(mine[:-1], other[:-1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(mine[-1][real], other[-1][real], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_hidden_states_equal_source(form, training, tmp_path):
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    theirs = make(form=form, **dict.fromkeys(dropouts, 0.0))
    theirs.save_pretrained(tmp_path)
    ours = convert(tmp_path).model
    assert type(ours) is LongspanModel
    for length in (LENGTH,) if form == "landmarks" else (9, 20, LENGTH):
        inputs = make_inputs(length)
        assert_equal_states(ours.train(training), theirs.train(training), inputs)
        whole = {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])}
        assert_equal_states(ours, theirs, whole)


@pytest.mark.parametrize("form", FORMS)
def test_padding_is_read_as_by_the_source(form, tmp_path):
    theirs = make(form=form)
    theirs.save_pretrained(tmp_path)
    ours, inputs = convert(tmp_path).model, make_inputs()
    padded = inputs["attention_mask"] == 0
    changed = inputs | {"input_ids": inputs["input_ids"].masked_fill(padded, 7)}
    effects = []
    for model in (ours, theirs):
        before, after = (
            short_sources.forward(model, x).last_hidden_state[~padded] for x in (inputs, changed)
        )
        effects.append(after - before)
    assert effects[0].abs().max() > 1e-3
    torch.testing.assert_close(*effects, atol=1e-10, rtol=0)


def test_longer_model_takes_other_mechanisms(tmp_path):
    theirs = make(form="exact", conv_kernel_size=1)
    with torch.no_grad():
        for layer in theirs.encoder.layer:
            layer.attention.self.conv.weight.zero_()
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, max_length=3 * LENGTH, attention="full")
    assert made.model.config.max_position_embeddings == 3 * LENGTH
    inputs = make_inputs() | {"attention_mask": torch.ones(3, LENGTH).int()}
    out, expected = (
        short_sources.forward(x, inputs).last_hidden_state for x in (made.model, theirs)
    )
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    actions = [x.action for x in made.weights if "conv" in (x.source or "")]
    assert actions == ["dropped: the mechanism has no such projection"] * 2
