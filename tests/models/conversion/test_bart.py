"""Conversion of BART and mBART: equal states and texts, positions, and a row for each weight."""

from collections import Counter

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
)

import short_sources
from longspan.errors import DataError, OptionError
from longspan.models import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
    convert,
    longify,
)

LENGTH, LONG = short_sources.LENGTH, 50
# Attention of the encoder to all pairs of a short input.
COVERING = {
    "full": {},
    "local": {"window": LENGTH},
    "longformer": {"window": LENGTH, "global_projections": True},
}
GENERATION = {
    "num_beams": 3,
    "length_penalty": 2.0,
    "no_repeat_ngram_size": 2,
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 2,
    "max_length": 12,
    "min_length": 4,
}
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(params=short_sources.ENCODER_DECODERS)
def source(request, tmp_path):
    """Every encoder-decoder with generation defaults, and its folder."""
    return save(short_sources.make_encoder_decoder(request.param), tmp_path)


@pytest.fixture
def bart(tmp_path):
    """BART with generation defaults and a tokenizer, and its folder."""
    made = save(short_sources.make_encoder_decoder("bart"), tmp_path)
    short_sources.save_tokenizer(made[1])
    return made


def save(model, tmp_path):
    model.generation_config.update(**GENERATION)
    model.save_pretrained(tmp_path / "source")
    return model, tmp_path / "source"


def make_inputs(padding="right"):
    """Return ids, mask and labels of three rows, padded on a side."""
    torch.manual_seed(1)
    ids = torch.randint(5, short_sources.VOCABULARY, (3, LENGTH))
    mask = torch.ones_like(ids)
    for row, real in enumerate((LENGTH, LENGTH - 7, 1)):
        mask[row, slice(real, None) if padding == "right" else slice(0, LENGTH - real)] = 0
    ids[mask == 0] = 1
    labels = torch.randint(5, short_sources.VOCABULARY, (3, 9))
    labels[1, 6:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("attention", COVERING)
@pytest.mark.parametrize("padding", ["right", "left"])
def test_outputs_equal_source(source, attention, padding):
    theirs, folder = source
    made = longify(folder, attention=attention, options=COVERING[attention], max_length=LONG)
    assert type(made.model) is LongspanForConditionalGeneration
    short_sources.assert_equal_parts(made.model, theirs, make_inputs(padding))


@pytest.mark.parametrize("padding", ["right", "left"])
def test_converted_model_equals_source_in_float64(source, padding):
    theirs, folder = source
    theirs.double().save_pretrained(folder)
    made = convert(folder).model
    short_sources.assert_equal_parts(made, theirs, make_inputs(padding), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("attention", COVERING)
def test_gradients_equal_source(source, attention):
    theirs, folder = source
    theirs.double().save_pretrained(folder)
    made = longify(folder, attention=attention, options=COVERING[attention], max_length=LENGTH)
    inputs = make_inputs()
    short_sources.assert_equal_parts(made.model, theirs, inputs, atol=1e-10, rtol=1e-10)
    for model in (made.model, theirs):
        model(**inputs).loss.backward()
    ours, others = (dict(x.named_parameters()) for x in (made.model, theirs))
    rows = {x.target: x.source for x in made.weights if x.target in ours and x.source in others}
    trained = {x: y for x, y in rows.items() if others[y].grad is not None}
    assert trained.keys() >= {x for x in rows if "positions" not in x and "projections" not in x}
    for target, name in trained.items():
        found, expected = ours[target].grad, others[name].grad
        # Two rows of positions are not ours, and the source does not train the padding token.
        first = len(expected) - len(found)
        kept = torch.arange(len(found)) != 1 if "words" in target else slice(None)
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(found[kept], expected[first:][kept], rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 2}, {"use_cache": False}],
    ids=["defaults", "greedy", "several beams", "no cache"],
)
def test_written_folder_generates_as_the_source(source, options, tmp_path):
    theirs, folder = source
    window = {"window": LENGTH}
    longify(folder, attention="local", options=window, max_length=LONG, out=tmp_path / "out")
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    carried = ours.generation_config.to_dict()
    assert {name: carried[name] for name in GENERATION} == GENERATION
    inputs = make_inputs()
    del inputs["labels"]
    found, expected = ours.generate(**inputs, **options), theirs.generate(**inputs, **options)
    assert found.equal(expected)
    assert found[:, 1].tolist() == [7] * len(found)
    assert len({tuple(row) for row in found.tolist()}) > 1


def test_damaged_or_contradictory_generation_defaults_are_refused(bart):
    """transformers loads the second kind, but refuses to save it."""
    (bart[1] / "generation_config.json").write_text('{"length_penalty": 2.0, "num_beams": 1}')
    with pytest.raises(DataError, match=r"generation_config.json cannot be saved again: .*beam"):
        longify(bart[1], attention="full", max_length=LONG)
    (bart[1] / "generation_config.json").write_text("[]")
    with pytest.raises(DataError, match=r"generation_config.json holds no generation defaults"):
        longify(bart[1], attention="full", max_length=LONG)


def test_tokenizer_has_the_length_of_the_encoder(bart, tmp_path):
    out = tmp_path / "out"
    longify(bart[1], attention="full", max_length=LONG, decoder_max_length=30, out=out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.model_max_length == LONG
    assert tokenizer("7 8").input_ids == AutoTokenizer.from_pretrained(bart[1])("7 8").input_ids


# Positions


def position_tables(source, part, **options):
    """Return the rows of a part's source that tokens have, and those of its conversion."""
    model, folder = source
    old = getattr(model.model, part).embed_positions.weight.detach()[2:]
    made = longify(folder, attention="full", max_length=LONG, **options).model
    new = getattr(made.model, part).embeddings.positions.weight.detach()
    return old, new, made.config


def test_encoders_positions_are_tiled_and_the_decoders_stay(bart):
    old, new, _ = position_tables(bart, "encoder")
    assert torch.equal(new, torch.cat((old, old, old))[:LONG])
    old, new, config = position_tables(bart, "decoder")
    assert torch.equal(new, old)
    assert config.decoder_overrides["max_position_embeddings"] == LENGTH


@pytest.mark.parametrize("method", ["tile", "keep", "interpolate"])
def test_decoders_positions_are_extended_on_request(bart, method):
    old, new, config = position_tables(bart, "decoder", decoder_max_length=30, positions=method)
    assert config.decoder_overrides["max_position_embeddings"] == len(new) == 30
    assert torch.equal(new[0], old[0])
    assert torch.equal(new[:LENGTH], old) == (method != "interpolate")
    assert torch.equal(new[LENGTH:], old[:10]) == (method == "tile")
    assert torch.equal(new[-1], old[-1]) == (method == "interpolate")


@torch.no_grad()
def test_sinusoids_are_computed_and_continued(tmp_path):
    """The model is a longer one of the source, whose checkpoint need not contain them."""
    fields = {"max_position_embeddings": LONG}
    long = short_sources.make_encoder_decoder("pegasus", **fields)
    short = short_sources.make_encoder_decoder("pegasus")
    for part in (long.model.encoder, long.model.decoder):
        part.embed_positions.weight.copy_(part.embed_positions.create_weight())
    state = {x: y for x, y in long.state_dict().items() if "embed_positions" not in x}
    short.load_state_dict(state, strict=False)
    short.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({x: y for x, y in load_file(path).items() if "embed_positions" not in x}, path)
    lengths = {"max_length": LONG, "decoder_max_length": LONG}
    made = longify(tmp_path, attention="full", **lengths)
    assert [x.action for x in made.weights if "positions" in (x.target or "")] == ["computed"] * 2
    ids = torch.randint(5, 40, (2, LONG), generator=torch.Generator().manual_seed(1))
    found, expected = (x(ids, decoder_input_ids=ids).logits for x in (made.model, long))
    torch.testing.assert_close(found, expected, **TOLERANCE)


# Weights


# The encoder has the attention, as the encoders of test_longify.py.
SOURCES = [
    (kind, name)
    for kind in short_sources.ENCODER_DECODERS
    for name in ("full", "linformer", "longformer", "performer", "reformer")
]


@pytest.mark.parametrize(("source", "attention"), SOURCES, indirect=["source"])
def test_table_accounts_for_every_weight(source, attention):
    _, folder = source
    made = longify(folder, attention=attention, max_length=LONG)
    saved = load_file(folder / "model.safetensors").keys()
    assert Counter(row.source for row in made.weights if row.source) == Counter(saved)
    targets = {row.target: row for row in made.weights if row.target}
    state = made.model.state_dict()
    assert targets.keys() == state.keys()
    for name, row in targets.items():
        assert row.shape == tuple(state[name].shape)
        assert row.action != "new" or ".mechanism." in name or "shared" in name
    tied = {name for name, row in targets.items() if row.action.startswith("tied to")}
    assert tied == {"lm_head.weight", "model.decoder.embeddings.words.weight"}


def test_global_projections_start_from_local_ones(bart):
    options = COVERING["longformer"]
    made = longify(bart[1], attention="longformer", options=options, max_length=LONG)
    layer = made.model.model.encoder.layers[1].attention
    assert torch.equal(layer.mechanism.projections.value.weight, layer.value.weight)
    actions = {row.target: row.action for row in made.weights}
    name = "model.encoder.layers.1.attention"
    started = actions[f"{name}.mechanism.projections.value.weight"]
    assert started == f"started from {name}.value.weight"


def test_copies_of_the_word_embeddings_are_dropped_with_reason(bart):
    """Older versions of transformers wrote them all."""
    path = bart[1] / "model.safetensors"
    weights = load_file(path)
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    copies = {name: weights["model.shared.weight"].clone() for name in (*names, "lm_head.weight")}
    save_file(weights | copies, path)
    made = longify(bart[1], attention="full", max_length=LONG)
    assert made.model.config.tie_word_embeddings
    short_sources.assert_equal_parts(made.model, bart[0], make_inputs())
    tied = "dropped: equals the word embeddings, to which it is tied"
    assert {row.source: row.action for row in made.weights if row.target is None} == {
        "model.shared.weight": f"dropped: {names[0]} is used",
        names[1]: tied,
        "lm_head.weight": tied,
    }


def test_embeddings_of_their_own_are_not_tied(tmp_path):
    theirs, folder = save(
        short_sources.make_encoder_decoder("bart", tie_word_embeddings=False), tmp_path
    )
    made = longify(folder, attention="full", max_length=LONG, out=tmp_path / "out")
    words = [
        part.embeddings.words.weight
        for part in (made.model.model.encoder, made.model.model.decoder)
    ]
    assert not torch.equal(*words)
    ours = LongspanForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    short_sources.assert_equal_parts(ours, theirs, make_inputs())


def test_output_matrix_that_differs_from_the_embeddings_is_not_tied(bart):
    """transformers unties it as well, whatever config.json states."""
    path = bart[1] / "model.safetensors"
    weights = load_file(path)
    own = torch.randn_like(weights["model.shared.weight"])
    save_file({**weights, "lm_head.weight": own}, path)
    made = longify(bart[1], attention="full", max_length=LONG).model
    assert torch.equal(made.lm_head.weight, own)
    theirs = BartForConditionalGeneration.from_pretrained(bart[1]).eval()
    short_sources.assert_equal_parts(made, theirs, make_inputs())


# Heads


@pytest.mark.parametrize(
    ("cls", "head"),
    [
        (BartModel, set()),
        (BartForSequenceClassification, {"classification_head"}),
        (BartForQuestionAnswering, {"qa_outputs"}),
    ],
)
def test_other_heads_are_dropped_with_reason(bart, cls, head, tmp_path):
    other = cls(bart[0].config)
    other.base_model.load_state_dict(bart[0].base_model.state_dict())
    other.save_pretrained(tmp_path / "other")
    made = longify(tmp_path / "other", attention="full", max_length=LONG, out=tmp_path / "out")
    assert type(made.model) is LongspanEncoderDecoderModel
    dropped = {row.source.split(".")[0]: row.action for row in made.weights if not row.target}
    assert dropped == dict.fromkeys(head, "dropped: head of a task; train a new one")
    inputs = make_inputs()
    inputs["decoder_input_ids"] = inputs.pop("labels").clamp(min=1)
    with torch.no_grad():
        found, expected = made.model(**inputs), bart[0].base_model(**inputs)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, **TOLERANCE)
        # The folder generates: the output matrix is tied, and its bias zero.
        ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
        bart[0].final_logits_bias.zero_()
        torch.testing.assert_close(ours(**inputs).logits, bart[0](**inputs).logits, **TOLERANCE)


# Refusals


def test_decoder_alone_is_refused(bart, tmp_path):
    BartForCausalLM(bart[0].config).save_pretrained(tmp_path / "decoder")
    with pytest.raises(OptionError, match="is_encoder_decoder=False; is_decoder=True"):
        longify(tmp_path / "decoder", attention="full", max_length=LONG)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 19}, "max_length must be at least the 20 tokens of the source, got 19"),
        ({"decoder_max_length": 19}, "decoder_max_length must be at least the 20 tokens"),
        (
            {"decoder_max_length": 30, "freeze": "all-but-positions", "max_length": LENGTH},
            "max_length=20 adds none",
        ),
    ],
)
def test_request_is_refused(bart, options, message):
    with pytest.raises(OptionError, match=message):
        longify(bart[1], **{"attention": "full", "max_length": LONG, **options})


def test_encoders_have_no_length_of_a_decoder(tmp_path):
    short_sources.make("bert").save_pretrained(tmp_path)
    with pytest.raises(OptionError, match="requires an encoder-decoder, such as BART; bert is no"):
        longify(tmp_path, attention="full", max_length=LONG, decoder_max_length=LONG)


def test_position_table_of_another_length_is_refused(bart):
    path = bart[1] / "model.safetensors"
    save_file(load_file(path) | {"model.decoder.embed_positions.weight": torch.ones(9, 16)}, path)
    with pytest.raises(DataError, match=r"position table has 9 rows, config.json states 22"):
        longify(bart[1], attention="full", max_length=LONG)
