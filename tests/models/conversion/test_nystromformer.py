"""transformers' Nystromformer in our classes and back: equal outputs, equal weights, refusals."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, NystromformerConfig

from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanModel, convert, longify, to_transformers

LENGTH, VOCABULARY = 36, 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "conv_kernel_size": 5,
}
FORMS = {
    "landmarks": {"num_landmarks": 6, "segment_means_seq_len": LENGTH},
    "exact": {"num_landmarks": 8, "segment_means_seq_len": 8},
}
HEADS = {
    "NystromformerForMaskedLM": {},
    "NystromformerForSequenceClassification": {"num_labels": 3, "problem_type": "regression"},
    "NystromformerForTokenClassification": {"id2label": {0: "B", 1: "I", 2: "O"}},
    "NystromformerForQuestionAnswering": {},
    "NystromformerForMultipleChoice": {},
}


def make(name="NystromformerModel", form="landmarks", **fields):
    """Return a model of transformers in float64 whose every parameter affects the outputs."""
    torch.manual_seed(0)
    config = NystromformerConfig(**{**SIZES, **FORMS[form], **fields})
    model = getattr(transformers, name)(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_inputs(length=LENGTH, shape=(3,)):
    """Return ids, mask and types; rows are padded on the right, on the left and inside."""
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (*shape, length))
    mask = torch.ones_like(ids)
    mask[0, ..., 4:6], mask[1, ..., 2 * length // 3 :], mask[2, ..., : length // 3] = 0, 0, 0
    types = (torch.arange(length) > length // 2).long().expand_as(ids).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def forward(model, inputs):
    """Call a model. With landmarks, transformers 5 takes padding in a mask of four axes alone."""
    mask, config = inputs["attention_mask"], model.config
    is_theirs = isinstance(config, NystromformerConfig)
    if is_theirs and config.num_landmarks != config.segment_means_seq_len:
        bias = torch.zeros(len(mask), 1, 1, mask.shape[1], dtype=torch.float64)
        inputs = inputs | {"attention_mask": bias.masked_fill(mask[:, None, None] == 0, -1e300)}
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True)


def assert_equal_states(ours, theirs, inputs):
    """Compare all states at real tokens, and those before the last layer at padding too."""
    real = inputs["attention_mask"].bool()
    mine, other = (forward(model, inputs).hidden_states for model in (ours, theirs))
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
        before, after = (forward(model, x).last_hidden_state[~padded] for x in (inputs, changed))
        effects.append(after - before)
    assert effects[0].abs().max() > 1e-3
    torch.testing.assert_close(*effects, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", HEADS)
def test_heads_equal_source_both_ways(name, tmp_path):
    theirs = make(name, "exact", **HEADS[name])
    theirs.save_pretrained(tmp_path / "source")
    ours = convert(tmp_path / "source", out=tmp_path / "ours").model
    assert type(ours).__name__ == name.replace("Nystromformer", "Longspan")
    back = to_transformers(tmp_path / "ours", tmp_path / "back").model
    assert type(back) is type(theirs)
    assert back.config.id2label == theirs.config.id2label
    inputs = make_inputs(shape=(3, 2) if name.endswith("Choice") else (3,))
    real = inputs["attention_mask"].bool()
    expected = forward(theirs, inputs)
    for model in (ours, back):
        found = forward(model, inputs)
        for key in [key for key in expected if key.endswith("logits")]:
            a, b = found[key], expected[key]
            per_token = a.shape[:2] == real.shape
            # The first token of the last text is padding, whose state the source reads.
            a, b = (a[real], b[real]) if per_token else (a[:2], b[:2])
            torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_way_back_is_bit_for_bit(form, tmp_path):
    source, ours, back = (tmp_path / x for x in ("source", "ours", "back"))
    theirs = make("NystromformerForMaskedLM", form)
    theirs.save_pretrained(source)
    convert(source, out=ours)
    to_transformers(ours, back, to="nystromformer")
    before, after = (load_file(x / "model.safetensors") for x in (source, back))
    assert before.keys() == after.keys()
    # No token has the first two positions.
    table = "nystromformer.embeddings.position_embeddings.weight"
    before[table][:2] = 0
    for key, tensor in after.items():
        assert torch.equal(tensor, before[key]), key
    loaded = AutoModelForMaskedLM.from_pretrained(back).eval()
    assert_equal_states(loaded, theirs, make_inputs())
    contents = [json.loads((x / "config.json").read_text()) for x in (source, back)]
    unused = {"num_landmarks": 64, "segment_means_seq_len": 64} if form == "exact" else {}
    assert contents[1] == contents[0] | unused


def test_longer_model_takes_other_mechanisms(tmp_path):
    theirs = make(form="exact", conv_kernel_size=1)
    with torch.no_grad():
        for layer in theirs.encoder.layer:
            layer.attention.self.conv.weight.zero_()
    theirs.save_pretrained(tmp_path)
    made = longify(tmp_path, max_length=3 * LENGTH, attention="full")
    assert made.model.config.max_position_embeddings == 3 * LENGTH
    inputs = make_inputs() | {"attention_mask": torch.ones(3, LENGTH).int()}
    out, expected = (forward(x, inputs).last_hidden_state for x in (made.model, theirs))
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    actions = [x.action for x in made.weights if "conv" in (x.source or "")]
    assert actions == ["dropped: the mechanism has no such projection"] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_landmarks": 5}, "segment_means_seq_len=36 is no multiple of num_landmarks=5"),
        ({"segment_means_seq_len": 72}, "segment_means_seq_len=72 exceeds max_position_embeddin"),
        ({"conv_kernel_size": 4}, "conv_kernel_size must be odd, got 4"),
        ({"inv_coeff_init_option": True}, "inv_coeff_init_option=True, which transformers cannot"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
    ],
)
def test_source_of_another_form_is_refused(fields, message, tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(OptionError, match=f"cannot be converted: {message}"):
        convert(tmp_path)


# A form that transformers has, but for one change.
OPTIONS = {
    **{"landmarks": 6, "conv_kernel_size": 3, "reads_padding": True, "inverse_scale": "batch"}
}
EXPRESSIBLE = {
    **{"vocab_size": VOCABULARY, "type_vocab_size": 2, "max_position_embeddings": LENGTH},
    **{"norm": "post", "pooling": "first", "position": "learned"},
    **{"attention": "nystrom", "attention_options": OPTIONS},
}


def test_model_of_this_form_is_expressed(tmp_path):
    ours = LongspanModel(LongspanConfig(**EXPRESSIBLE)).double().eval()
    back = to_transformers(ours, tmp_path / "back").model
    assert_equal_states(ours, back, make_inputs())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "full", "attention_options": {}}, "must be nystrom in every layer, got ful"),
        ({"max_position_embeddings": 40}, "segment_means_seq_len=40 is no multiple of num_landma"),
        ({"iterations": None}, "option iterations of 'nystrom' must be 6, got None"),
        ({"reads_padding": False}, "option reads_padding of 'nystrom' must be True, got False"),
        ({"inverse_scale": "matrix"}, "option inverse_scale of 'nystrom' must be 'batch'"),
        ({"conv_kernel_size": 0}, "conv_kernel_size must be odd, got 0"),
        ({"norm": "pre"}, "norm must be 'post', got 'pre'"),
        ({"positions_skip_padding": True}, "positions_skip_padding must be False, got True"),
    ],
    ids=str,
)
def test_model_of_another_form_is_refused(fields, message, tmp_path):
    options = {key: fields[key] for key in fields if key in OPTIONS or key == "iterations"}
    rest = {key: x for key, x in fields.items() if key not in options}
    changed = EXPRESSIBLE | {"attention_options": OPTIONS | options} | rest
    model = LongspanModel(LongspanConfig(**changed))
    with pytest.raises(OptionError, match=message):
        to_transformers(model, tmp_path / "back", to="nystromformer")
