"""BigBird of transformers: its blocks at all lengths, its heads, longer models."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import short_sources
from longspan.models import LongspanForMaskedLM, LongspanModel, convert, longify

VOCABULARY = short_sources.VOCABULARY
LENGTH, SHORT = 72, 36  # inputs of up to SHORT tokens have full attention
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
FORMS = {
    "sparse": {},
    "full": {"attention_type": "original_full"},
    "without biases": {"use_bias": False, "rescale_embeddings": True},
}


def make(name="BigBirdForMaskedLM", **fields):
    """Return a model of transformers in float64."""
    return short_sources.make_both_ways(name, **fields).double()


def make_inputs(length, shape=(3,)):
    """Return ids, mask and types; rows are padded on the right and on the left."""
    torch.manual_seed(length)
    ids = torch.randint(3, VOCABULARY, (*shape, length))
    mask = torch.ones_like(ids)
    mask[1, ..., length - length // 3 :] = 0
    mask[-1, ..., : length // 3] = 0
    types = (torch.arange(length) > length // 2).long().expand_as(ids).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def assert_equal_states(ours, theirs, inputs, atol=1e-10):
    """Compare all states, and the logits if there are any, at real tokens."""
    real = inputs["attention_mask"].bool()
    mine, other = (short_sources.forward(x, inputs) for x in (ours, theirs))
    pairs = [*zip(mine.hidden_states, other.hidden_states, strict=True)]
    if "logits" in other:
        pairs.append((mine.logits, other.logits))
    for a, b in pairs:
        # transformers returns states that are padded to blocks.
        expected = b[:, : real.shape[1]][real]
        torch.testing.assert_close(a[real], expected, atol=atol, rtol=atol)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_hidden_states_equal_source(form, training, tmp_path):
    theirs = make(**FORMS[form], **dict.fromkeys(DROPOUTS, 0.0))
    theirs.save_pretrained(tmp_path)
    ours = convert(tmp_path).model
    assert type(ours) is LongspanForMaskedLM
    for length in (1, SHORT, SHORT + 1, 60, LENGTH):
        inputs = make_inputs(length)
        assert_equal_states(ours.train(training), theirs.train(training), inputs)


def test_model_without_head_equals_source(tmp_path):
    theirs = make("BigBirdModel")
    theirs.save_pretrained(tmp_path / "source")
    made = convert(tmp_path / "source", out=tmp_path / "out")
    assert type(made.model) is LongspanModel
    loaded = AutoModel.from_pretrained(tmp_path / "out")
    for length in (20, 61):
        for ours in (made.model, loaded.double().eval()):
            assert_equal_states(ours, theirs, make_inputs(length))
    # The blocks of training are no weights, and are computed again.
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert not [name for name in names if "draws" in name]
    for layer in (0, 1):
        tables = [x.layers[layer].attention.mechanism.draws for x in (made.model, loaded)]
        assert torch.equal(*tables)
        assert tables[0].max() > 0


def test_head_of_pretraining_keeps_masked_tokens(tmp_path):
    theirs = make("BigBirdForPreTraining")
    theirs.save_pretrained(tmp_path)
    made = convert(tmp_path)
    inputs = make_inputs(60)
    real = inputs["attention_mask"].bool()
    logits = short_sources.forward(theirs, inputs).prediction_logits
    torch.testing.assert_close(short_sources.forward(made.model, inputs).logits[real], logits[real])
    dropped = {x.source: x.action for x in made.weights if x.target is None}
    assert dropped["cls.seq_relationship.bias"] == "dropped: next-sentence head, which is not used"


def test_head_of_another_form_is_dropped_with_reason(tmp_path):
    theirs = make("BigBirdForQuestionAnswering")
    theirs.save_pretrained(tmp_path)
    made = convert(tmp_path)
    assert type(made.model) is LongspanModel
    actions = [x.action for x in made.weights if (x.source or "").startswith("qa_classifier.")]
    assert len(actions) == 8
    expected = "dropped: feed-forward network with a residual connection, where ours is one linear"
    assert all(x.startswith(expected) for x in actions)
    assert_equal_states(made.model, theirs.bert, make_inputs(60))


def test_longer_model_keeps_the_blocks_of_the_source(tmp_path):
    theirs = make("BigBirdModel")
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, max_length=3 * LENGTH, positions="keep").model
    for length in (20, 60):
        assert_equal_states(made, theirs, make_inputs(length))
    local = longify(tmp_path, max_length=3 * LENGTH, attention="local", positions="keep").model
    assert local.config.attention == "local"
    assert_equal_states(local, theirs, make_inputs(20))
