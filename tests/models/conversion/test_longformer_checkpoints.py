"""transformers' Longformer in our classes and back: equal outputs, equal weights, refusals."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import long_sources
import short_sources
from longspan.errors import DataError, OptionError, UnknownNameError
from longspan.models import (
    LongspanConfig,
    LongspanForMaskedLM,
    LongspanForPairClassification,
    LongspanForTokenClassification,
    LongspanModel,
    convert,
    longify,
    to_transformers,
)

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
HEADS = {
    "LongformerForMaskedLM": {},
    "LongformerForSequenceClassification": {"num_labels": 3, "problem_type": "regression"},
    "LongformerForTokenClassification": {"id2label": {0: "B", 1: "I", 2: "O"}},
    "LongformerForQuestionAnswering": {},
    "LongformerForMultipleChoice": {},
}


@pytest.fixture(params=HEADS)
def head(request, tmp_path):
    """Model of transformers with a head, and its folder."""
    model = long_sources.make_longformer(request.param, **HEADS[request.param])
    model.save_pretrained(tmp_path / "source")
    return model, tmp_path / "source"


@pytest.fixture
def source(tmp_path):
    """Model for masked tokens, and its folder with a tokenizer."""
    model = long_sources.make_longformer()
    model.save_pretrained(tmp_path / "source")
    short_sources.save_tokenizer(tmp_path / "source", long_sources.VOCABULARY)
    return model, tmp_path / "source"


def edit_config(folder, **fields):
    """Change fields of a saved configuration."""
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | fields))


def assert_equal_states(ours, theirs, texts, **masks):
    """Compare all states at real tokens."""
    with torch.no_grad():
        mine, other = (
            model(**texts, **masks, output_hidden_states=True).hidden_states
            for model in (ours, theirs)
        )
    real = texts["attention_mask"].bool()
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a[real], b[real], **TOLERANCE)


@pytest.mark.parametrize("padding", ["right", "left", "inside"])
@pytest.mark.parametrize("with_global", [False, True])
def test_states_equal_source(source, padding, with_global):
    theirs, folder = source
    made = convert(folder)
    assert type(made.model) is LongspanForMaskedLM
    texts = long_sources.make_texts(padding)
    mask = long_sources.make_global_mask(texts["attention_mask"]) if with_global else None
    assert_equal_states(made.model, theirs, texts, global_attention_mask=mask)


def test_states_equal_source_where_a_mask_hides_ordinary_tokens(source):
    theirs, folder = source
    texts = long_sources.make_texts("inside")
    texts["input_ids"][texts["attention_mask"] == 0] = 7
    assert_equal_states(convert(folder).model, theirs, texts)


def test_window_counts_one_side(source):
    config = convert(source[1]).model.config
    assert config.attention == "longformer"
    own = {"global_projections": True}
    assert config.attention_options == [{"window": 2, **own}, {"window": 4, **own}]


def test_one_window_gives_one_set_of_options(tmp_path):
    long_sources.make_longformer(attention_window=6).save_pretrained(tmp_path)
    config = convert(tmp_path).model.config
    assert config.attention_options == {"window": 3, "global_projections": True}


def head_inputs(model):
    """Return inputs of a head and a global mask, of candidates for multiple choice."""
    texts = long_sources.make_texts()
    chosen = long_sources.make_global_mask(texts["attention_mask"])
    if "MultipleChoice" in type(model).__name__:
        texts = {name: torch.stack((x, x.flip(0)), 1) for name, x in texts.items()}
        chosen = torch.stack((chosen, chosen.flip(0)), 1)
    return texts, chosen


def test_logits_of_heads_equal_source_with_global_tokens(head):
    theirs, folder = head
    ours = convert(folder).model
    texts, chosen = head_inputs(theirs)
    real = texts["attention_mask"].bool()
    with torch.no_grad():
        mine, other = (x(**texts, global_attention_mask=chosen) for x in (ours, theirs))
    for name in [name for name in other if name.endswith("logits")]:
        a, b = mine[name], other[name]
        a, b = (a[real], b[real]) if a.shape[:2] == real.shape else (a, b)
        torch.testing.assert_close(a, b, **TOLERANCE)


def test_labels_and_problem_are_kept(tmp_path):
    fields = {
        "id2label": {0: "no", 1: "yes"},
        "label2id": {"no": 0, "yes": 1},
        "problem_type": "multi_label_classification",
    }
    model = long_sources.make_longformer("LongformerForSequenceClassification", **fields)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", out=tmp_path / "out")
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config
    assert {name: getattr(config, name) for name in fields} == fields


def test_global_projections_are_those_of_the_source(source):
    theirs, folder = source
    made = convert(folder)
    own = made.model.model.layers[1].attention.mechanism.projections
    layer = theirs.longformer.encoder.layer[1].attention.self
    for name in ("query", "key", "value"):
        for part in ("weight", "bias"):
            expected = getattr(getattr(layer, f"{name}_global"), part)
            assert torch.equal(getattr(getattr(own, name), part), expected)
            assert not torch.equal(getattr(getattr(layer, name), part), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_goes_both_ways(source, tmp_path, dtype):
    theirs, folder = source
    theirs.to(dtype)
    with torch.no_grad():
        theirs.lm_head.dense.weight[0, 0] = 1 / 3  # rounded in float32
    theirs.save_pretrained(folder)
    made = convert(folder)
    assert {x.dtype for x in made.model.parameters()} == {dtype}
    back = to_transformers(made.model, tmp_path / "back").model
    assert {x.dtype for x in back.parameters()} == {dtype}
    assert torch.equal(back.lm_head.dense.weight, theirs.lm_head.dense.weight)


def test_tokenizer_goes_both_ways(source, tmp_path):
    _, folder = source
    made = convert(folder, out=tmp_path / "ours")
    assert made.tokenizer.model_max_length == long_sources.LENGTH
    to_transformers(tmp_path / "ours", tmp_path / "back")
    before, after = (AutoTokenizer.from_pretrained(x) for x in (folder, tmp_path / "back"))
    assert after("7 8 9").input_ids == before("7 8 9").input_ids
    other = to_transformers(made.model, tmp_path / "other", tokenizer=before)
    assert other.tokenizer is before
    assert AutoTokenizer.from_pretrained(tmp_path / "other")("7").input_ids == before("7").input_ids


def test_pipeline_gives_the_scores_of_the_source(tmp_path):
    """A pipeline names no global tokens."""
    source, out = tmp_path / "source", tmp_path / "out"
    model = long_sources.make_longformer("LongformerForSequenceClassification", num_labels=3)
    model.save_pretrained(source)
    short_sources.save_tokenizer(source, long_sources.VOCABULARY)
    convert(source, out=out)
    expected, given = (
        transformers.pipeline("text-classification", str(folder), top_k=None)("7 8 9 " * 9)[0]
        for folder in (source, out)
    )
    assert [x["label"] for x in given] == [x["label"] for x in expected]
    assert [x["score"] for x in given] == pytest.approx([x["score"] for x in expected], abs=1e-5)


def test_longer_longformer_keeps_its_attention(source):
    theirs, folder = source
    made = longify(folder, max_length=200).model
    assert made.config.max_position_embeddings == 200
    assert made.config.attention_options == convert(folder).model.config.attention_options
    texts = long_sources.make_texts()
    chosen = long_sources.make_global_mask(texts["attention_mask"])
    assert_equal_states(made, theirs, texts, global_attention_mask=chosen)
    old, new = (x.model.embeddings.positions.weight for x in (convert(folder).model, made))
    assert torch.equal(new, old.repeat(4, 1)[:200])


def test_longer_longformer_goes_back(source, tmp_path):
    made = longify(source[1], max_length=200).model
    back = to_transformers(made, tmp_path / "back").model
    ids = torch.randint(5, long_sources.VOCABULARY, (2, 190))
    assert_equal_states(made, back, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_other_attention_drops_what_it_has_no_use_for(tmp_path):
    model = long_sources.make_longformer("LongformerForSequenceClassification")
    model.save_pretrained(tmp_path)
    made = longify(tmp_path, attention="performer", max_length=100)
    assert made.model.config.default_global_tokens == "none"
    dropped = {row.source for row in made.weights if row.target is None}
    assert dropped == {name for name in model.state_dict() if "_global." in name}
    made.model(torch.tensor([[5, 6, 7]]))
    kept = longify(tmp_path, attention="local", max_length=100).model
    assert kept.config.default_global_tokens == "first"


def test_longified_roberta_becomes_a_longformer(tmp_path):
    """The procedure of Beltagy et al. 2020, section 5, ends in transformers' class."""
    short_sources.make("roberta").save_pretrained(tmp_path / "source")
    options = {"window": [2, 4], "global_projections": True}
    ours = longify(
        tmp_path / "source", attention="longformer", options=options, max_length=60
    ).model
    back = to_transformers(ours, tmp_path / "back")
    assert back.model.config.attention_window == [4, 8]
    texts = long_sources.make_texts()
    chosen = long_sources.make_global_mask(texts["attention_mask"])
    assert_equal_states(ours, back.model, texts, global_attention_mask=chosen)


def test_pooler_of_an_old_checkpoint_is_dropped(source):
    _, folder = source
    path = folder / "model.safetensors"
    extra = {"longformer.pooler.dense.weight": torch.ones(16, 16)}
    save_file({**load_file(path), **extra}, path)
    (row,) = [x for x in convert(folder).weights if x.source in extra]
    assert row.action == "dropped: the pooled state is that of the first token"


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("TokenClassification", {"num_labels": 1}, "it predicts one number for each token"),
        ("QuestionAnswering", {"num_labels": 3}, "it has 3 numbers for each token, expected 2"),
        ("MaskedLM", {"hidden_act": "relu"}, "the head's activation is gelu, that of the layers "),
    ],
)
def test_head_of_another_form_is_dropped(tmp_path, name, fields, reason):
    long_sources.make_longformer(f"LongformerFor{name}", **fields).save_pretrained(tmp_path)
    made = convert(tmp_path)
    assert type(made.model) is LongspanModel
    actions = [
        x.action for x in made.weights if not (x.source or "longformer.").startswith("longf")
    ]
    assert actions
    assert all(action.startswith(f"dropped: {reason}") for action in actions)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": [4, 7]}, "attention_window must be even and positive, got 7"),
        ({"attention_window": 0}, "attention_window must be even and positive, got 0"),
        ({"attention_window": [4]}, "attention_window has 1 numbers for 2 layers"),
        ({"pad_token_id": None}, "pad_token_id=None"),
    ],
)
def test_source_that_no_class_loads_is_refused(source, fields, message):
    edit_config(source[1], **fields)
    with pytest.raises(OptionError, match=message):
        convert(source[1])


def test_windows_that_do_not_divide_each_other_have_no_way_back(source, tmp_path):
    """transformers pads inputs to a multiple of the largest window alone, and then fails."""
    edit_config(source[1], attention_window=[8, 12])
    ours = convert(source[1]).model
    assert ours(torch.full((1, 30), 7)).logits.isfinite().all()
    with pytest.raises(OptionError, match=r"must divide the largest of them, 12.*; got 8"):
        to_transformers(ours, tmp_path / "back")
    assert not (tmp_path / "back").exists()


LONG = {"attention": "longformer", "attention_options": {"global_projections": True}}
FORM = {
    **LONG,
    "norm": "post",
    "position": "learned",
    "positions_skip_padding": True,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "pooling": "first",
}


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"attention": "local", "attention_options": {}}, ["must be longformer in every layer"]),
        (
            {"pad_token_id": None, "positions_skip_padding": False},
            ["pad_token_id must be a number"],
        ),
        (
            {"norm": "pre", "feed_forward": "gated"},
            ["norm must be 'post', got 'pre'", "feed_forward must be 'plain', got 'gated'"],
        ),
        ({"position": "rotary"}, ["position must be 'learned', got 'rotary'"]),
        ({"positions_skip_padding": False}, ["positions_skip_padding must be True"]),
        ({"embedding_size": 8}, ["embedding_size must be 64, got 8"]),
        ({"type_vocab_size": 0}, ["the model has no embeddings.token_type_embeddings.weight"]),
        ({"attention_options": {}}, ["option global_projections of 'longformer' must be True"]),
        (
            {"attention_options": {"global_projections": True, "dilation": 2, "first_global": 1}},
            ["dilation of 'longformer' must be 1, got 2", "first_global of .* must be False"],
        ),
        (
            {"attention_options": {"global_projections": True, "window": 0}},
            ["must divide the largest"],
        ),
    ],
)
def test_model_of_another_form_has_no_way_back(tmp_path, fields, messages):
    model = LongspanModel(LongspanConfig(**{**FORM, **fields}))
    with pytest.raises(OptionError) as raised:
        to_transformers(model, tmp_path / "back")
    for message in messages:
        raised.match(message)


def test_fields_that_no_output_depends_on_do_not_matter(tmp_path):
    fields = {"pooling": "mean", "freeze": "all-but-positions", "max_global_tokens": 3}
    model = LongspanModel(LongspanConfig(**{**FORM, **fields}))
    to_transformers(model, tmp_path / "back")


def test_head_without_counterpart_has_no_way_back(tmp_path):
    model = LongspanForPairClassification(LongspanConfig(**FORM))
    with pytest.raises(OptionError, match=r"expected one of LongspanModel, .*, got LongspanForPa"):
        to_transformers(model, tmp_path / "back")
    linear = LongspanForTokenClassification(LongspanConfig(**FORM))
    with pytest.raises(OptionError, match="classifier_hidden_size must be 0, got 128"):
        to_transformers(linear, tmp_path / "back")


def test_folder_that_is_not_ours_is_refused(source, tmp_path):
    _, folder = source
    with pytest.raises(OptionError, match="has model_type 'longformer', expected 'longspan'"):
        to_transformers(folder, tmp_path / "back")
    with pytest.raises(UnknownNameError, match="bert"):
        to_transformers(folder, tmp_path / "back", to="bert")
    with pytest.raises(OptionError, match="source exists"):
        to_transformers(folder, folder)
    made = convert(folder, out=tmp_path / "ours").model
    weights = made.state_dict()
    del weights["lm_head.weight"], weights["lm_head.bias"]
    save_file(weights, tmp_path / "ours" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"ours lacks lm_head.bias"):
        to_transformers(tmp_path / "ours", tmp_path / "back")
    (tmp_path / "ours" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="ours cannot be read"):
        to_transformers(tmp_path / "ours", tmp_path / "back")


def test_random_state_is_not_touched(source, tmp_path):
    made = convert(source[1]).model
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    to_transformers(made, tmp_path / "back")
    assert torch.equal(torch.rand(1), expected)
