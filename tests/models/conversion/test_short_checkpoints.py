"""Short families that go both ways: equal outputs, equal weights, refusals, longer models."""

import json
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    MT5Config,
    MT5EncoderModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.longt5.modeling_longt5 import LongT5LayerNorm
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

import short_sources
from longspan.errors import DataError, OptionError
from longspan.models import LongspanConfig, LongspanModel, convert, longify, to_transformers
from longspan.models.conversion.families import FAMILIES

LENGTH, VOCABULARY, PADDING, SEPARATOR = short_sources.LENGTH, short_sources.VOCABULARY, 1, 2
# Every class that a family of `short_sources.BOTH_WAYS` has in transformers, and other forms of it.
CLASSES = [
    *(
        (kind, name, {})
        for kind in short_sources.BOTH_WAYS
        for name in FAMILIES[kind].architectures.values()
    ),
    *(
        ("big_bird", name, fields)
        for name in ("BigBirdModel", "BigBirdForMaskedLM")
        for fields in (
            {"attention_type": "original_full"},
            {"use_bias": False, "rescale_embeddings": True},
        )
    ),
    (
        "nystromformer",
        "NystromformerForMaskedLM",
        {"num_landmarks": 6, "segment_means_seq_len": 36},
    ),
]
LENGTHS = {"big_bird": (LENGTH, 60), "nystromformer": (36,)}  # of inputs, of others LENGTH
HEADS = {
    "SequenceClassification": {"num_labels": 3, "problem_type": "regression"},
    "TokenClassification": {"id2label": {0: "B", 1: "I", 2: "O"}},
}
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
# Their softmax is rounded to float32.
ROUNDED = {kind: {"atol": 1e-5, "rtol": 1e-5} for kind in ("longt5", "longformer")}


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch):
    """Let T5's norms compute in float64, as the rest of the source does; they round to float32."""

    def forward(self, states):
        variance = states.square().mean(-1, keepdim=True)
        return self.weight * states * (variance + self.variance_epsilon).rsqrt()

    for cls in (T5LayerNorm, LongT5LayerNorm):
        monkeypatch.setattr(cls, "forward", forward)


def make(name, **fields):
    """Return a model of transformers in float64, of a class or of the base class of a family."""
    if name in short_sources.BOTH_WAYS:
        name = FAMILIES[name].architectures[LongspanModel]
    own = next((x for head, x in HEADS.items() if name.endswith(head)), {})
    return short_sources.make_both_ways(name, **own, **fields).double()


def make_inputs(model, shape=(3,), length=LENGTH):
    """Return ids and mask, padded on the right, inside and on the left, and types if there are."""
    torch.manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (*shape, length))
    ids[..., [10, 11, 12]] = SEPARATOR
    mask = torch.ones_like(ids)
    mask[0, ..., length - 7 :], mask[1, ..., 4:9], mask[2, ..., :6] = 0, 0, 0
    ids[0][mask[0] == 0] = ids[2][mask[2] == 0] = PADDING
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "type_vocab_size", 0):
        types = (torch.arange(length) >= length // 2).long().expand_as(ids).contiguous()
        inputs["token_type_ids"] = types
    return inputs


def assert_equal_outputs(model, theirs, inputs):
    """Compare the states of all layers, and what a head computes, at real tokens."""
    real = inputs["attention_mask"].bool()
    found, expected = (short_sources.forward(x, inputs) for x in (model, theirs))
    tokens, tolerance = real.flatten(0, -2), ROUNDED.get(theirs.config.model_type, TOLERANCE)
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        # BigBird returns states that are padded to blocks.
        torch.testing.assert_close(a[tokens], b[:, : a.shape[1]][tokens], **tolerance)
    for key in [key for key in expected if key.endswith("logits")]:
        a, b = found[key], expected[key]
        if a.shape[: real.ndim] == real.shape:
            a, b = a[real], b[real]
        elif theirs.config.model_type != "gpt2":  # these read the first token, padding or not
            a, b = a[:2], b[:2]
        torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize(("kind", "name", "fields"), CLASSES)
def test_outputs_and_weights_equal_source_both_ways(kind, name, fields, tmp_path):
    source, ours, back = (tmp_path / x for x in ("source", "ours", "back"))
    theirs = make(name, **fields)
    theirs.save_pretrained(source)
    made = convert(source, out=ours)
    classes = {x: y.__name__ for y, x in FAMILIES[kind].architectures.items()}
    assert type(made.model).__name__ == classes[name]
    result = to_transformers(ours, back, to=kind)
    again = result.model
    assert {row.source for row in result.weights} == made.model.state_dict().keys()
    assert {row.target for row in result.weights} <= again.state_dict().keys()
    assert type(again) is type(theirs)
    assert again.config.id2label == theirs.config.id2label
    shape = (3, 2) if name.endswith("MultipleChoice") else (3,)
    for length in LENGTHS.get(kind, (LENGTH,)):
        inputs = make_inputs(theirs, shape, length)
        for model in (made.model, again):
            assert_equal_outputs(model, theirs, inputs)
    assert_equal_weights(made, kind, source, back)
    contents = [json.loads((x / "config.json").read_text()) for x in (source, back)]
    assert contents[1] == contents[0] | unused_fields(theirs.config)


def assert_equal_weights(made, kind, source, back):
    """Check that every weight has a row, and comes back as it was."""
    before, after = (load_file(x / "model.safetensors") for x in (source, back))
    parts = {"c_attn": 3}
    assert Counter(row.source for row in made.weights if row.source) == {
        key: parts.get(key.split(".")[-2], 1) for key in before
    }
    assert {row.target for row in made.weights if row.target} == made.model.state_dict().keys()
    assert "new" not in {row.action for row in made.weights}
    dropped = {row.source for row in made.weights if row.target is None}
    assert before.keys() - after.keys() == dropped
    assert all("pooler" in key for key in dropped)
    for key, tensor in after.items():
        # No token has the first positions.
        first = FAMILIES[kind].rows_before(made.model.config) if "position_emb" in key else 0
        assert torch.equal(tensor[first:], before[key][first:]), key


def unused_fields(config):
    """Return the fields of a source that have no effect, as they come back."""
    if config.model_type == "big_bird" and config.attention_type == "block_sparse":
        return {"attention_probs_dropout_prob": 0.0}
    if config.model_type == "big_bird":
        return {"block_size": 64, "num_random_blocks": 3}
    if config.model_type == "nystromformer" and config.num_landmarks == 8:
        return {"num_landmarks": 64, "segment_means_seq_len": 64}
    return {}


@pytest.mark.parametrize(
    "kind", [x for x in short_sources.BOTH_WAYS if x not in ("longformer", "nystromformer")]
)
@pytest.mark.parametrize("attention", ["full", "local"])
def test_longer_model_equals_source_on_short_inputs(kind, attention, tmp_path):
    theirs = make(kind, **({"local_radius": LENGTH} if kind == "longt5" else {}))
    theirs.save_pretrained(tmp_path)
    options = {"window": LENGTH} if attention == "local" else {}
    ours = longify(tmp_path, max_length=4 * LENGTH, attention=attention, options=options).model
    assert ours.config.max_position_embeddings == 4 * LENGTH
    assert_equal_outputs(ours, theirs, make_inputs(theirs))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id must be 1, which transformers reads"),
        (
            "mpnet",
            {"relative_attention_num_buckets": 16},
            "relative_attention_num_buckets must be 32, which transformers reads",
        ),
        (
            "longt5",
            {"encoder_attention_type": "transient-global"},
            "encoder_attention_type='transient-global', whose global tokens are means of blocks",
        ),
        ("albert", {"inner_group_num": 2}, "inner_group_num must be 1, got 2"),
        ("albert", {"num_hidden_groups": 9}, "num_hidden_groups=9 exceeds num_hidden_layers=4"),
        ("albert", {"embedding_size": 16}, "embedding_size=16 is hidden_size"),
        ("albert", {"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
        ("big_bird", {"is_decoder": True}, "is_decoder=True"),
        ("big_bird", {"attention_type": "sparse"}, "attention_type='sparse'"),
        ("big_bird", {"num_random_blocks": 0}, "num_random_blocks=0, which transformers does not"),
        ("big_bird", {"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
        (
            "nystromformer",
            {"num_landmarks": 5},
            "segment_means_seq_len=8 is no multiple of num_landmarks=5",
        ),
        (
            "nystromformer",
            {"segment_means_seq_len": 72},
            "segment_means_seq_len=72 exceeds max_position_embeddings=36",
        ),
        ("nystromformer", {"conv_kernel_size": 4}, "conv_kernel_size must be odd, got 4"),
        (
            "nystromformer",
            {"inv_coeff_init_option": True},
            "inv_coeff_init_option=True, which transformers cannot",
        ),
        ("nystromformer", {"add_cross_attention": True}, "add_cross_attention=True"),
        ("nystromformer", {"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
    ],
)
def test_source_of_another_form_is_refused(kind, fields, message, tmp_path):
    make(kind).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(OptionError, match=f"cannot be converted: {message}"):
        convert(tmp_path)


# Forms that transformers has, but for one change.
FORMS = {
    "distilbert": {"norm": "post", "pooling": "first", "layer_norm_eps": 1e-12},
    "mpnet": {
        **{"norm": "post", "pooling": "first", "positions_skip_padding": True},
        **{"has_relative_attention_bias": True, "pad_token_id": PADDING},
    },
    "albert": {
        **{"norm": "post", "pooling": "first", "type_vocab_size": 2},
        **{"num_hidden_groups": 1, "embedding_size": 12},
    },
    "gpt2": {"is_decoder": True, "pooling": "last", "pad_token_id": PADDING},
    "t5": {"norm_type": "rms_norm", "linear_bias": False, "position": "t5"},
    "longt5": {
        **{"norm_type": "rms_norm", "linear_bias": False, "position": "t5"},
        **{"attention": "local", "attention_options": {"window": 3}},
        **{"feed_forward": "gated", "hidden_act": "gelu_new"},
    },
    "big_bird": {
        **{"norm": "post", "pooling": "first", "type_vocab_size": 2, "position": "learned"},
        **{"max_position_embeddings": 72, "attention_dropout": 0.0, "attention": "bigbird"},
        "attention_options": {
            **{"block": 4, "num_random_blocks": 2, "sampling": "transformers", "repeats": True},
            **{"padded_blocks": True, "full_up_to": 36},
        },
    },
    "nystromformer": {
        **{"norm": "post", "pooling": "first", "type_vocab_size": 2, "position": "learned"},
        **{"max_position_embeddings": 36, "attention": "nystrom"},
        "attention_options": {
            **{"landmarks": 6, "conv_kernel_size": 3},
            **{"reads_padding": True, "inverse_scale": "batch"},
        },
    },
}


def make_ours(kind, **fields):
    """Return a model of a form, with changed fields and options of its attention."""
    form = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, **FORMS[kind]}
    options = fields.pop("options", {})
    if options:
        fields["attention_options"] = form["attention_options"] | options
    return LongspanModel(LongspanConfig(**{**form, **fields}))


@pytest.mark.parametrize("kind", FORMS)
def test_model_of_this_form_is_expressed(kind, tmp_path):
    ours = make_ours(kind).double().eval()
    back = to_transformers(ours, tmp_path / "back", to=kind).model
    for length in LENGTHS.get(kind, (LENGTH,)):
        assert_equal_outputs(ours, back, make_inputs(ours, length=length))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps must be 1e-12, got 1e-05"),
        (
            "distilbert",
            {"attention": "linear"},
            "attention of layer 0 must be 'full', got 'linear'",
        ),
        ("mpnet", {"relative_attention_max_distance": 64}, "must be 128, got 64"),
        ("mpnet", {"has_relative_attention_bias": False}, "must be True, got False"),
        ("albert", {"num_hidden_groups": None}, "must be numbers, got None and 12"),
        ("t5", {"norm_type": "layer_norm"}, "norm_type must be 'rms_norm', got 'layer_norm'"),
        ("t5", {"position": "learned"}, "position must be 't5' in an encoder, got 'learned'"),
        ("t5", {"is_decoder": True}, "with is_decoder=True"),
        ("t5", {"feed_forward": "gated"}, "hidden_act must be 'gelu_new', got 'gelu'"),
        ("longt5", {"attention": "full", "attention_options": {}}, "must be local in every layer"),
        ("gpt2", {"is_decoder": False}, "is_decoder must be True, got False"),
        ("gpt2", {"norm": "post"}, "norm must be 'pre', got 'post'"),
        ("gpt2", {"linear_bias": False}, "linear_bias must be True, got False"),
        (
            "big_bird",
            {"attention": "local", "attention_options": {}},
            "must be one of bigbird, full in all",
        ),
        (
            "big_bird",
            {"attention": ["bigbird", "full"], "attention_options": [{}, {}]},
            "got bigbird and full",
        ),
        *(
            ("big_bird", {"options": {name: value}}, f"option {name} of 'bigbird' must be {usual}")
            for name, value, usual in [
                ("sampling", "uniform", "'transformers', got 'uniform'"),
                ("repeats", False, "True, got False"),
                ("padded_blocks", False, "True, got False"),
                ("full_up_to", 0, "36, got 0"),
                ("seed", 1, "0, got 1"),
            ]
        ),
        ("big_bird", {"attention_dropout": 0.1}, "attention_dropout must be 0.0, got 0.1"),
        ("big_bird", {"type_vocab_size": 0}, "type_vocab_size=0, expected 1 or more"),
        ("big_bird", {"pooling": "cls", "norm": "pre"}, "norm must be 'post', got 'pre'"),
        ("big_bird", {"linear_bias": False}, "linear_bias must be True, got False"),
        (
            "nystromformer",
            {"attention": "full", "attention_options": {}},
            "must be nystrom in every layer, got full",
        ),
        (
            "nystromformer",
            {"max_position_embeddings": 40},
            "segment_means_seq_len=40 is no multiple of num_landmarks=6",
        ),
        *(
            ("nystromformer", {"options": {name: value}}, message)
            for name, value, message in [
                ("iterations", None, "option iterations of 'nystrom' must be 6, got None"),
                ("reads_padding", False, "option reads_padding of 'nystrom' must be True, got"),
                ("inverse_scale", "matrix", "option inverse_scale of 'nystrom' must be 'batch'"),
                ("conv_kernel_size", 0, "conv_kernel_size must be odd, got 0"),
            ]
        ),
        ("nystromformer", {"norm": "pre"}, "norm must be 'post', got 'pre'"),
        (
            "nystromformer",
            {"positions_skip_padding": True},
            "positions_skip_padding must be False, got True",
        ),
    ],
)
def test_model_of_another_form_is_refused(kind, fields, message, tmp_path):
    model = make_ours(kind, **fields)
    with pytest.raises(OptionError, match=message):
        to_transformers(model, tmp_path / "back", to=kind)
    assert not (tmp_path / "back").exists()


# T5


def test_decoder_is_dropped_on_request(tmp_path):
    fields = short_sources.BOTH_WAYS["t5"] | {"is_encoder_decoder": True, "use_cache": False}
    theirs = short_sources.draw(T5ForConditionalGeneration(T5Config(**fields))).double()
    theirs.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"has decoder.*; name weights that shall be dropped with"):
        convert(tmp_path)
    ours = convert(tmp_path, drop=["decoder.*", "lm_head.*"]).model
    inputs = make_inputs(theirs)
    assert_equal_outputs(ours, theirs.encoder, inputs)


def test_multilingual_encoder_equals_source(tmp_path):
    fields = short_sources.BOTH_WAYS["t5"]
    theirs = short_sources.draw(MT5EncoderModel(MT5Config(**fields))).double()
    for module in theirs.modules():
        if isinstance(module, MT5LayerNorm):
            module.__class__ = T5LayerNorm
    theirs.save_pretrained(tmp_path)
    assert_equal_outputs(convert(tmp_path).model, theirs, make_inputs(theirs))


# GPT-2


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("attention", ["full", "local"])
def test_texts_equal_source(attention, options, tmp_path):
    theirs = make("GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path / "source")
    window = {"window": LENGTH} if attention == "local" else {}
    out = tmp_path / "out"
    longify(tmp_path / "source", max_length=40, attention=attention, options=window, out=out)
    ours = AutoModelForCausalLM.from_pretrained(out).eval()
    inputs = {name: x[[1, 2], :12] for name, x in make_inputs(theirs).items()}
    inputs["attention_mask"][0] = 1
    fixed = {"max_new_tokens": 8, "do_sample": False}
    found, expected = (model.generate(**inputs, **fixed, **options) for model in (ours, theirs))
    assert found.equal(expected)
    assert len({tuple(row) for row in found[:, 12:].tolist()}) == 2


def test_constants_of_first_checkpoints_are_dropped(tmp_path):
    """They have no prefix, and the mask as a weight."""
    make("GPT2LMHeadModel").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = {key.removeprefix("transformer."): x for key, x in load_file(path).items()}
    masks = {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.1.attn.masked_bias": torch.ones(1)}
    save_file(weights | masks, path)
    rows = convert(tmp_path).weights
    dropped = {row.source: row.action for row in rows if row.target is None}
    assert dropped == dict.fromkeys(masks, "dropped: constant of the mask")


# ALBERT


def test_groups_of_unequal_numbers_of_layers_equal_source(tmp_path):
    """Layer 9 of 18 is in group 7 of 14 by fractions, and in group 6 as transformers rounds."""
    theirs = make("albert", num_hidden_layers=18, num_hidden_groups=14)
    theirs.save_pretrained(tmp_path)
    assert_equal_outputs(convert(tmp_path).model, theirs, make_inputs(theirs))


def test_layers_of_a_group_are_one_module(tmp_path):
    theirs = make("albert")
    theirs.save_pretrained(tmp_path)
    ours = convert(tmp_path).model
    assert len(ours.layers) == 2
    first, second = ours.layers
    assert ours.layers_in_order == [first, first, second, second]
    used = {name: x for name, x in theirs.named_parameters() if "pooler" not in name}
    assert ours.num_parameters() == sum(x.numel() for x in used.values())
    inputs = make_inputs(theirs)
    for model in (ours, theirs):
        states = model(**inputs).last_hidden_state
        (states * inputs["attention_mask"][..., None]).square().sum().backward()
    found = first.feed_forward.output.weight.grad
    layer = theirs.encoder.albert_layer_groups[0].albert_layers[0]
    torch.testing.assert_close(found, layer.ffn_output.weight.grad, atol=1e-8, rtol=1e-8)
