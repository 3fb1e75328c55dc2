"""`longspan convert` and `longspan longify` on the command line."""

import json

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM, LongformerForMaskedLM

import long_sources
import short_sources
from longspan.models import LongspanForMaskedLM

NO_TOKENIZER = "no tokenizer: the source has none"
LONGIFY = (
    *("--mechanism", "longformer", "--max-length", "50"),
    *("--set", "window=4", "--set", "global_projections=true"),
)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def longformer(tmp_path):
    long_sources.make_longformer().save_pretrained(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def roberta(tmp_path):
    short_sources.make("roberta").save_pretrained(tmp_path / "short")
    return tmp_path / "short"


def printed(result):
    """Return the output of a command that succeeds, and its lines as words."""
    code, text, err = result
    assert (code, "Traceback" in err) == (0, False)
    return text, [line.split() for line in text.splitlines()]


def test_converts_there_and_back(cli, longformer, out, tmp_path):
    back = tmp_path / "back"
    text, rows = printed(cli("convert", longformer, "--output", out))
    layer = "longformer.encoder.layer.*.attention.self.query_global.weight"
    own = "model.layers.*.attention.mechanism.projections.query.weight"
    assert [layer, own, "16", "x", "16", "2", "copied"] in rows
    assert f"LongspanForMaskedLM for 64 tokens, {NO_TOKENIZER}: {out}" in text
    assert type(AutoModelForMaskedLM.from_pretrained(out)) is LongspanForMaskedLM

    text, rows = printed(cli("convert", out, "--to", "longformer", "--output", back))
    assert [own, layer, "16", "x", "16", "2", "copied"] in rows
    assert "copied, after 2 rows of zeros (padding)" in text
    assert f"LongformerForMaskedLM, {NO_TOKENIZER}: {back}" in text
    assert type(AutoModelForMaskedLM.from_pretrained(back)) is LongformerForMaskedLM


def test_longify_prints_one_row_for_all_layers(cli, roberta, out):
    text, rows = printed(cli("longify", roberta, "--output", out, *LONGIFY))
    query = "roberta.encoder.layer.*.attention.self.query.weight"
    target = "model.layers.*.attention.query.weight"
    assert [query, target, "16", "x", "16", "2", "copied"] in rows
    layer = "model.layers.*.attention"
    own = f"{layer}.mechanism.projections.query.weight"
    action = f"started from {layer}.query.weight"
    assert ["-", own, "16", "x", "16", "2", *action.split()] in rows
    assert "tiled, 20 to 50 rows, without the first 2 (padding)" in text
    assert f"LongspanForMaskedLM for 50 tokens, {NO_TOKENIZER}: {out}" in text
    config = AutoModelForMaskedLM.from_pretrained(out).config
    assert config.attention_options == {"window": 4, "global_projections": True}


@pytest.mark.parametrize(
    ("command", "source", "more"), [("convert", "longformer", ()), ("longify", "roberta", LONGIFY)]
)
def test_json_has_every_weight(cli, request, out, command, source, more):
    source = request.getfixturevalue(source)
    made = json.loads(printed(cli(command, source, "--output", out, "--json", *more))[0])
    assert (made["class"], made["output"]) == ("LongspanForMaskedLM", str(out))
    state = AutoModelForMaskedLM.from_pretrained(out).state_dict()
    assert {row["target"] for row in made["weights"]} == set(state)


def test_longify_keeps_the_attention_of_a_long_source(cli, longformer, out):
    printed(cli("longify", longformer, "--max-length", "100", "--output", out))
    config = AutoModelForMaskedLM.from_pretrained(out).config
    assert config.max_position_embeddings == 100
    assert [x["window"] for x in config.attention_options] == [2, 4]


def test_decoder_of_an_encoder_decoder_is_extended_on_request(cli, out, tmp_path):
    short_sources.make_encoder_decoder("bart").save_pretrained(tmp_path / "bart")
    extended = (*LONGIFY, "--decoder-max-length", "30")
    text, _ = printed(cli("longify", tmp_path / "bart", "--output", out, *extended))
    assert "LongspanForConditionalGeneration for 50 tokens" in text
    config = AutoConfig.from_pretrained(out)
    assert config.decoder_overrides["max_position_embeddings"] == 30


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        ("convert", ("--to", "longformer"), "has model_type 'longformer', expected 'longspan'"),
        ("convert", ("--to", "longformr"), "did you mean longformer"),
        ("convert", ("--to", "longformer", "--drop", "x"), "are of sources of transformers"),
        ("longify", ("--max-length", "99", "--set", "window=3"), "options are those of an attent"),
        ("longify", LONGIFY, "exists; remove it"),
    ],
)
def test_refusal_is_one_line(cli, longformer, out, command, more, message):
    if exists := more == LONGIFY:
        out.mkdir()
    code, text, err = cli(command, longformer, "--output", out, *more)
    assert (code, text) == (2, "")
    assert err.splitlines()[-1].startswith("error:")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert out.exists() == exists
