"""transformers' LED in our classes and back: states, texts, weights and refusals."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    LEDConfig,
    LEDForConditionalGeneration,
    LEDForQuestionAnswering,
    LEDModel,
)

import short_sources
from longspan.errors import OptionError
from longspan.models import (
    LongspanConfig,
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
    convert,
    longify,
    to_transformers,
)

LENGTH, TARGETS = 32, 24  # tokens of the encoder and of the decoder
PARTS = {
    **{x: y for x, y in short_sources.PARTS.items() if x != "max_position_embeddings"},
    "max_encoder_position_embeddings": LENGTH,
    "max_decoder_position_embeddings": TARGETS,
    "attention_window": [4, 8],  # of both sides
}
GENERATION = {"num_beams": 3, "length_penalty": 2.0, "no_repeat_ngram_size": 2, "max_length": 12}
# transformers computes LED's softmax in float32.
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


def make(**fields):
    """Return LED whose every parameter, and bias of the logits, affects the outputs."""
    model = short_sources.draw(LEDForConditionalGeneration(LEDConfig(**{**PARTS, **fields})))
    model.final_logits_bias.normal_()
    model.generation_config.update(**GENERATION)
    return model


@pytest.fixture
def led(tmp_path):
    """LED with a tokenizer, and its folder."""
    model = make()
    model.save_pretrained(tmp_path / "source")
    short_sources.save_tokenizer(tmp_path / "source")
    return model, tmp_path / "source"


def make_inputs(length=29):
    """Return ids, masks and labels of three rows; one has no padding, one no global token."""
    torch.manual_seed(1)
    ids = torch.randint(5, short_sources.VOCABULARY, (3, length))
    mask, global_mask = torch.ones_like(ids), torch.zeros_like(ids)
    mask[1, length - 9 :] = mask[2, :6] = 0
    global_mask[0, 0] = global_mask[1, [0, 5, length - 10]] = 1
    labels = torch.randint(5, short_sources.VOCABULARY, (3, 9))
    labels[1, 6:] = -100
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "global_attention_mask": global_mask,
        "labels": labels,
    }


@pytest.mark.parametrize("masks", ["none", "padding", "padding and global"])
def test_outputs_equal_source(led, masks):
    made = convert(led[1])
    assert type(made.model) is LongspanForConditionalGeneration
    inputs = make_inputs()
    if masks != "padding and global":
        del inputs["global_attention_mask"]
    if masks == "none":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    short_sources.assert_equal_parts(made.model, led[0], inputs)


def test_outputs_equal_source_in_double_precision(led):
    """LED's softmax is in float32, but nothing else is."""
    model = convert(led[1]).model.double()
    short_sources.assert_equal_parts(model, copy.deepcopy(led[0]).double(), make_inputs())


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"num_beams": 1}], ids=["beams", "greedy"])
def test_written_folder_generates_as_the_source(led, options, tmp_path):
    convert(led[1], out=tmp_path / "out")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    inputs = make_inputs()
    del inputs["labels"]
    found, expected = ours.generate(**inputs, **options), led[0].generate(**inputs, **options)
    assert found.equal(expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == LENGTH
    del inputs["global_attention_mask"]
    assert not ours.generate(**inputs, **options).equal(found)


def test_windows_are_those_of_one_side_and_lengths_those_of_each_part(led):
    config = convert(led[1]).model.config
    assert config.attention == "longformer"
    assert [x["window"] for x in config.attention_options] == [2, 4]
    assert config.max_position_embeddings == LENGTH
    assert config.decoder_overrides["max_position_embeddings"] == TARGETS


def test_model_without_head_equals_source(led, tmp_path):
    led[0].led.save_pretrained(tmp_path / "base")
    made = convert(tmp_path / "base").model
    assert type(made) is LongspanEncoderDecoderModel
    inputs = make_inputs()
    inputs["decoder_input_ids"] = inputs.pop("labels").clamp(min=1)
    with torch.no_grad():
        found, expected = made(**inputs), led[0].led(**inputs)
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, **TOLERANCE)


def test_head_for_questions_is_dropped_with_reason(led, tmp_path):
    other = LEDForQuestionAnswering(led[0].config)
    other.save_pretrained(tmp_path / "other")
    made = convert(tmp_path / "other")
    assert type(made.model) is LongspanEncoderDecoderModel
    dropped = {row.source: row.action for row in made.weights if row.target is None}
    reason = "dropped: head of a task; train a new one"
    assert dropped == dict.fromkeys(("qa_outputs.weight", "qa_outputs.bias"), reason)


def test_every_weight_has_one_row(led):
    made = convert(led[1])
    saved = load_file(led[1] / "model.safetensors").keys()
    assert sorted(row.source for row in made.weights if row.source) == sorted(saved)
    targets = {row.target: row.action for row in made.weights}
    assert targets.keys() == made.model.state_dict().keys()
    others = {name for name, x in targets.items() if not x.startswith("copied")}
    assert others == {"lm_head.weight", "model.decoder.embeddings.words.weight"}


# Longer sources


def test_longer_led_keeps_its_attention(led):
    made = longify(led[1], max_length=2 * LENGTH).model
    table = led[0].led.encoder.embed_positions.weight
    new = made.model.encoder.embeddings.positions.weight
    assert torch.equal(new, torch.cat((table, table)))
    short_sources.assert_equal_parts(made, led[0], make_inputs())


def test_led_with_another_attention_drops_its_global_projections(led):
    made = longify(led[1], attention="full", max_length=LENGTH)
    reason = "dropped: the mechanism has no such projection"
    dropped = {row.source for row in made.weights if row.action == reason}
    assert len(dropped) == 2 * 6
    assert all("_global." in name for name in dropped)


# The way back


@pytest.mark.parametrize("tied", [True, False])
def test_way_back_is_exact(tmp_path, tied):
    theirs = make(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path / "source")
    short_sources.save_tokenizer(tmp_path / "source")
    convert(tmp_path / "source", out=tmp_path / "ours")
    made = to_transformers(tmp_path / "ours", tmp_path / "back", to="led")
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("source", "back"))
    if not tied:
        # Nothing reads it: both parts and the logits have embeddings of their own.
        del before["led.shared.weight"], after["led.shared.weight"]
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    again = LEDForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    inputs = make_inputs()
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, theirs(**inputs).logits)
    skipped = {"_name_or_path", "transformers_version"}
    fields, others = (x.config.to_dict() for x in (again, theirs))
    assert {x: y for x, y in fields.items() if others.get(x) != y and x not in skipped} == {}
    assert {x: getattr(again.generation_config, x) for x in GENERATION} == GENERATION
    assert AutoTokenizer.from_pretrained(tmp_path / "back")("7").input_ids == [0, 12, 2]
    targets = [row.target for row in made.weights]
    assert len(set(targets)) == len(targets)


def test_generation_defaults_of_the_configuration_survive_both_ways(led, tmp_path):
    """Published checkpoints have them there, from before `generation_config.json`."""
    _, folder = led
    short_sources.move_generation_defaults(folder)
    convert(folder, out=tmp_path / "ours")
    to_transformers(tmp_path / "ours", tmp_path / "back")
    for name in ("ours", "back"):
        made = GenerationConfig.from_pretrained(tmp_path / name)
        assert {x: getattr(made, x) for x in GENERATION} == GENERATION


def test_model_without_head_goes_back(led, tmp_path):
    led[0].led.save_pretrained(tmp_path / "base")
    convert(tmp_path / "base", out=tmp_path / "ours")
    made = to_transformers(tmp_path / "ours", tmp_path / "back").model
    assert type(made) is LEDModel
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("base", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def test_longified_bart_becomes_led(tmp_path):
    """The road of the paper: BART's weights in LED's class, with equal texts."""
    short_sources.make_encoder_decoder("bart").save_pretrained(tmp_path / "bart")
    options = {"window": 4, "global_projections": True}
    source, long = tmp_path / "bart", tmp_path / "long"
    ours = longify(source, attention="longformer", options=options, max_length=64, out=long).model
    led = to_transformers(ours, tmp_path / "led").model
    assert type(led) is LEDForConditionalGeneration
    short_sources.assert_equal_parts(ours, led, make_inputs())


@pytest.fixture
def expressible():
    """Return the fields of a model that LED can express."""
    return {
        **{"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "norm": "post"},
        **{"attention": "longformer", "position": "learned", "is_encoder_decoder": True},
        "attention_options": {"window": 4, "global_projections": True},
        "max_position_embeddings": 32,
        "decoder_start_token_id": 2,
    }


def test_model_of_the_same_form_goes_back_with_defaults(expressible, tmp_path):
    model = LongspanForConditionalGeneration(LongspanConfig(**expressible)).eval()
    led = to_transformers(model, tmp_path / "led").model
    assert led.config.max_decoder_position_embeddings == 32
    short_sources.assert_equal_parts(model, led, make_inputs())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "local", "attention_options": {}}, "longformer in every layer, got local"),
        ({"attention_options": {"window": 4}}, "option global_projections of 'longformer' must"),
        ({"norm": "pre"}, "led: norm must be 'post', got 'pre'$"),
        ({"scale_embedding": True}, "scale_embedding must be False, got True"),
        ({"decoder_overrides": {"position": "rotary"}}, "decoder: position must be 'learned', got"),
        ({"decoder_overrides": {"attention": "local"}}, "decoder: attention of layer 0 must be"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id must be a number, got None"),
        ({"decoder_start": "last"}, "decoder_start must be 'token', got 'last'"),
    ],
)
def test_other_forms_are_refused(expressible, tmp_path, fields, message):
    model = LongspanForConditionalGeneration(LongspanConfig(**{**expressible, **fields}))
    with pytest.raises(OptionError, match=message):
        to_transformers(model, tmp_path / "led", to="led")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_window": [4]}, "attention_window has 1 numbers for 2 layers"),
        ({"attention_window": 3}, "attention_window must be even and positive, got 3"),
    ],
)
def test_windows_that_led_does_not_have_are_refused(tmp_path, fields, message):
    LEDConfig(**{**PARTS, **fields}).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=message):
        convert(tmp_path)
