"""`longspan convert` on the command line."""

import json

import pytest
from transformers import AutoModelForMaskedLM, LongformerForMaskedLM

import long_sources
from longspan.models import LongspanForMaskedLM


@pytest.fixture
def source(tmp_path):
    long_sources.make_longformer().save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_converts_there_and_back(cli, source):
    ours, back = source.parent / "ours", source.parent / "back"
    code, out, err = cli("convert", source, "--out", ours)
    assert (code, "Traceback" in err) == (0, False)
    rows = [line.split() for line in out.splitlines()]
    layer = "longformer.encoder.layer.*.attention.self.query_global.weight"
    own = "model.layers.*.attention.mechanism.projections.query.weight"
    assert [layer, own, "16", "x", "16", "2", "copied"] in rows
    last = "LongspanForMaskedLM for 64 tokens, no tokenizer: the source has none"
    assert f"{last}: {ours}" in out
    assert type(AutoModelForMaskedLM.from_pretrained(ours)) is LongspanForMaskedLM

    code, out, err = cli("convert", ours, "--to", "longformer", "--out", back)
    assert (code, "Traceback" in err) == (0, False)
    assert [own, layer, "16", "x", "16", "2", "copied"] in [x.split() for x in out.splitlines()]
    assert "copied, after 2 rows of zeros (padding)" in out
    assert f"LongformerForMaskedLM, no tokenizer: the source has none: {back}" in out
    assert type(AutoModelForMaskedLM.from_pretrained(back)) is LongformerForMaskedLM


def test_prints_every_weight_as_json(cli, source):
    code, out, _ = cli("convert", source, "--out", source.parent / "out", "--json")
    made = json.loads(out)
    assert (code, made["class"]) == (0, "LongspanForMaskedLM")
    state = AutoModelForMaskedLM.from_pretrained(made["output"]).state_dict()
    assert {row["target"] for row in made["weights"]} == set(state)


def test_longify_keeps_the_attention_of_a_long_source(cli, source):
    out = source.parent / "long"
    code, _, _ = cli("longify", source, "--max-length", "100", "--out", out)
    config = AutoModelForMaskedLM.from_pretrained(out).config
    assert (code, config.max_position_embeddings) == (0, 100)
    assert [x["window"] for x in config.attention_options] == [2, 4]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--to", "longformer"], "has model_type 'longformer', expected 'longspan'"),
        (["--to", "longformr"], "did you mean longformer"),
        (["--to", "longformer", "--drop", "x"], "are of sources of transformers"),
    ],
)
def test_refusal_is_one_line(cli, source, more, message):
    code, out, err = cli("convert", source, "--out", source.parent / "out", *more)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error:")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert not (source.parent / "out").exists()


def test_options_without_attention_are_refused(cli, source):
    out = source.parent / "out"
    code, _, err = cli("longify", source, "--max-length", "99", "--out", out, "--set", "window=3")
    assert code == 2
    assert "options are those of an attention" in " ".join(err.split())
