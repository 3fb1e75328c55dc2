"""`longspan longify` on the command line."""

import json

import pytest
from transformers import AutoConfig, AutoModelForMaskedLM

import short_sources


@pytest.fixture
def source(tmp_path):
    short_sources.make("roberta").save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def command(source, *more):
    return [
        *("longify", source, "--attention", "longformer", "--max-length", "50"),
        *("--out", source.parent / "out", "--set", "window=4"),
        *("--set", "global_projections=true", *more),
    ]


def test_prints_one_row_for_all_layers(cli, source):
    code, out, err = cli(*command(source))
    assert (code, "Traceback" in err) == (0, False)
    rows = [line.split() for line in out.splitlines()]
    query = "roberta.encoder.layer.*.attention.self.query.weight"
    target = "model.layers.*.attention.query.weight"
    assert [query, target, "16", "x", "16", "2", "copied"] in rows
    layer = "model.layers.*.attention"
    own = f"{layer}.mechanism.projections.query.weight"
    action = f"started from {layer}.query.weight"
    assert ["-", own, "16", "x", "16", "2", *action.split()] in rows
    assert "tiled, 20 to 50 rows, without the first 2 (padding)" in out
    model = "LongspanForMaskedLM for 50 tokens, no tokenizer: the source has none"
    assert f"{model}: {source.parent / 'out'}" in out
    config = AutoModelForMaskedLM.from_pretrained(source.parent / "out").config
    assert config.attention_options == {"window": 4, "global_projections": True}


def test_prints_every_weight_as_json(cli, source):
    code, out, _ = cli(*command(source, "--json"))
    made = json.loads(out)
    assert code == 0
    assert made["class"] == "LongspanForMaskedLM"
    assert made["output"] == str(source.parent / "out")
    state = AutoModelForMaskedLM.from_pretrained(made["output"]).state_dict()
    assert {row["target"] for row in made["weights"]} == set(state)


def test_refusal_is_one_line(cli, source):
    (source.parent / "out").mkdir()
    code, out, err = cli(*command(source))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error:")
    assert "Traceback" not in err


def test_decoder_of_an_encoder_decoder_is_extended_on_request(cli, source):
    short_sources.make_encoder_decoder("bart").save_pretrained(source.parent / "bart")
    code, out, _ = cli(*command(source.parent / "bart", "--decoder-max-length", "30"))
    assert code == 0
    assert "LongspanForConditionalGeneration for 50 tokens" in out
    config = AutoConfig.from_pretrained(source.parent / "out")
    assert config.decoder_overrides["max_position_embeddings"] == 30
