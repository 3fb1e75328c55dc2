"""BigBird of transformers in and out: equal outputs, equal weights, and refusals."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel, BigBirdConfig

from longspan.errors import OptionError
from longspan.models import (
    LongspanConfig,
    LongspanForMaskedLM,
    LongspanForMultipleChoice,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
    convert,
    longify,
    to_transformers,
)

LENGTH, VOCABULARY, SHORT = 72, 80, 36  # inputs of up to SHORT tokens have full attention
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "block_size": 4,
    "num_random_blocks": 2,
    "sep_token_id": 3,
}
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
FORMS = {
    "sparse": {},
    "full": {"attention_type": "original_full"},
    "without biases": {"use_bias": False, "rescale_embeddings": True},
}


def make(name="BigBirdForMaskedLM", **fields):
    """Return a model of transformers in float64 whose every parameter affects the outputs."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(BigBirdConfig(**{**SIZES, **fields})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_inputs(length, shape=(3,)):
    """Return ids, mask and types; rows are padded on the right and on the left."""
    torch.manual_seed(length)
    ids = torch.randint(3, VOCABULARY, (*shape, length))
    mask = torch.ones_like(ids)
    mask[1, ..., length - length // 3 :] = 0
    mask[-1, ..., : length // 3] = 0
    types = (torch.arange(length) > length // 2).long().expand_as(ids).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def forward(model, inputs):
    """Call a model; transformers reseeds numpy, and keeps full attention after a short input."""
    base = getattr(model, "bert", model)
    if hasattr(base, "set_attention_type"):
        base.set_attention_type(model.config.attention_type)
    state = np.random.get_state()
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    np.random.set_state(state)
    return output


def assert_equal_states(ours, theirs, inputs, atol=1e-10):
    """Compare all states, and the logits if there are any, at real tokens."""
    real = inputs["attention_mask"].bool()
    mine, other = forward(ours, inputs), forward(theirs, inputs)
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
    logits = forward(theirs, inputs).prediction_logits
    torch.testing.assert_close(forward(made.model, inputs).logits[real], logits[real])
    dropped = {x.source: x.action for x in made.weights if x.target is None}
    assert dropped["cls.seq_relationship.bias"] == "dropped: next-sentence head, which is not used"


@pytest.mark.parametrize(
    ("name", "expected", "shape"),
    [
        ("BigBirdForSequenceClassification", LongspanForSequenceClassification, (3,)),
        ("BigBirdForTokenClassification", LongspanForTokenClassification, (3,)),
        ("BigBirdForMultipleChoice", LongspanForMultipleChoice, (3, 2)),
    ],
)
def test_heads_of_tasks_equal_source_both_ways(name, expected, shape, tmp_path):
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}} if "Choice" not in name else {}
    theirs = make(name, **labels)
    theirs.save_pretrained(tmp_path / "source")
    ours = convert(tmp_path / "source", out=tmp_path / "ours").model
    assert type(ours) is expected
    back = to_transformers(tmp_path / "ours", tmp_path / "back").model
    assert type(back) is type(theirs)
    for model in (ours, back):
        assert model.config.id2label == theirs.config.id2label
    for length in (20, 60):
        # The first token of the last row is padding, whose state the source reads.
        inputs = {key: x[:2] for key, x in make_inputs(length, shape).items()}
        logits = forward(theirs, inputs).logits
        real = inputs["attention_mask"].bool() if "Token" in name else ...
        for model in (ours, back):
            made = forward(model, inputs).logits
            torch.testing.assert_close(made[real], logits[real], atol=1e-10, rtol=0)


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["BigBirdModel", "BigBirdForMaskedLM"])
def test_way_back_is_bit_for_bit(form, name, tmp_path):
    source, ours, back = (tmp_path / x for x in ("source", "ours", "back"))
    theirs = make(name, **FORMS[form])
    theirs.save_pretrained(source)
    convert(source, out=ours)
    to_transformers(ours, back, to="big_bird")
    before, after = (load_file(x / "model.safetensors") for x in (source, back))
    assert before.keys() - after.keys() == {x for x in before if "pooler" in x}
    for key, tensor in after.items():
        assert torch.equal(tensor, before[key]), key
    loaded = getattr(transformers, name).from_pretrained(back).double().eval()
    for length in (20, 60):
        assert_equal_states(loaded, theirs, make_inputs(length))
    contents = [json.loads((x / "config.json").read_text()) for x in (source, back)]
    # Sparse attention has no dropout, and full attention has no blocks.
    unused = {"block_size": 64, "num_random_blocks": 3}
    unused = unused if form == "full" else {"attention_probs_dropout_prob": 0.0}
    assert contents[1] == contents[0] | unused


def test_longer_model_keeps_the_blocks_of_the_source(tmp_path):
    theirs = make("BigBirdModel")
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, max_length=3 * LENGTH, positions="keep").model
    for length in (20, 60):
        assert_equal_states(made, theirs, make_inputs(length))
    local = longify(tmp_path, max_length=3 * LENGTH, attention="local", positions="keep").model
    assert local.config.attention == "local"
    assert_equal_states(local, theirs, make_inputs(20))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_decoder": True}, "is_decoder=True"),
        ({"attention_type": "sparse"}, "attention_type='sparse'"),
        ({"num_random_blocks": 0}, "num_random_blocks=0, which transformers does not compute"),
        ({"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
    ],
)
def test_source_of_another_form_is_refused(fields, message, tmp_path):
    make("BigBirdModel").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(OptionError, match=f"cannot be converted: {message}"):
        convert(tmp_path)


# A form that transformers has, but for one change.
EXPRESSIBLE = {
    **{"vocab_size": VOCABULARY, "type_vocab_size": 2, "max_position_embeddings": LENGTH},
    **{"norm": "post", "pooling": "first", "position": "learned", "attention_dropout": 0.0},
    "attention": "bigbird",
    "attention_options": {
        **{"block": 4, "num_random_blocks": 2, "sampling": "transformers", "repeats": True},
        **{"padded_blocks": True, "full_up_to": SHORT},
    },
}


def options(**changed):
    return {"attention_options": EXPRESSIBLE["attention_options"] | changed}


def test_model_of_this_form_is_expressed(tmp_path):
    ours = LongspanModel(LongspanConfig(**EXPRESSIBLE)).double().eval()
    back = to_transformers(ours, tmp_path / "back").model
    for length in (20, 60):
        assert_equal_states(ours, back, make_inputs(length))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "local", "attention_options": {}}, "must be one of bigbird, full in all"),
        ({"attention": ["bigbird", "full"], "attention_options": {}}, "got bigbird and full"),
        (options(sampling="uniform"), "option sampling of 'bigbird' must be 'transformers'"),
        (options(repeats=False), "option repeats of 'bigbird' must be True, got False"),
        (options(padded_blocks=False), "option padded_blocks of 'bigbird' must be True"),
        (options(full_up_to=0), "option full_up_to of 'bigbird' must be 36, got 0"),
        (options(seed=1), "option seed of 'bigbird' must be 0, got 1"),
        ({"attention_dropout": 0.1}, "attention_dropout must be 0.0, got 0.1"),
        ({"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
        ({"pooling": "cls", "norm": "pre"}, "norm must be 'post', got 'pre'"),
        ({"linear_bias": False}, "linear_bias must be True, got False"),
    ],
)
def test_model_of_another_form_is_refused(fields, message, tmp_path):
    fields = EXPRESSIBLE | fields
    if isinstance(fields["attention"], list):
        fields["attention_options"] = [{}, {}]
    model = LongspanModel(LongspanConfig(**fields))
    with pytest.raises(OptionError, match=message):
        to_transformers(model, tmp_path / "back", to="big_bird")
    assert not (tmp_path / "back").exists()
