"""Longer models of ours: outputs of short inputs stay, positions follow the method."""

import pytest
import torch

from longspan.errors import OptionError, UnknownNameError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanModel,
    longify,
)

SIZES = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SHORT, LONG = 12, 40
TABLE = "embeddings.positions.weight"


def save(folder, cls=LongspanForMaskedLM, **fields):
    torch.manual_seed(1)
    fields = {"max_position_embeddings": SHORT, **SIZES, **fields}
    model = cls(LongspanConfig(**fields)).eval()
    model.save_pretrained(folder)
    return model


def outputs(model, length=SHORT):
    ids = torch.randint(1, 20, (2, length), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return model(input_ids=ids)[0]


@pytest.mark.parametrize("fields", [
    {}, {"pooling": "cls"}, {"position": "rotary"}, {"position": "sinusoidal"}, {"norm": "post"},
    {"tie_word_embeddings": False}, {"position": "none", "attention": "local"},
])  # fmt: skip
@pytest.mark.parametrize("cls", [LongspanForMaskedLM, LongspanModel])
def test_outputs_of_short_inputs_stay(tmp_path, cls, fields):
    short = save(tmp_path / "short", cls, **fields)
    options = {"attention": "local", "options": {"window": SHORT}}
    for attention in ({}, options if "attention" not in fields else {}):
        made = longify(tmp_path / "short", max_length=LONG, **attention)
        assert type(made.model) is cls
        assert made.model.config.max_position_embeddings == LONG
        assert torch.allclose(outputs(made.model), outputs(short), atol=1e-5)
        assert outputs(made.model, LONG).isfinite().all()
        assert {x.target for x in made.weights} >= made.model.state_dict().keys()


def test_positions_follow_the_method(tmp_path):
    """The row of the summary token stays the first."""
    short = save(tmp_path / "short", pooling="cls").model.get_parameter(TABLE)
    for method, rows in (
        ("tile", short[1:].repeat(4, 1)[:LONG]),
        ("interpolate", None),
        ("keep", None),
    ):
        made = longify(tmp_path / "short", max_length=LONG, positions=method)
        table = made.model.model.get_parameter(TABLE)
        assert table.shape == (LONG + 1, 16)
        assert table[0].equal(short[0])
        if method == "interpolate":
            assert torch.allclose(table[[1, LONG]], short[[1, SHORT]])
        else:
            assert table[1 : SHORT + 1].equal(short[1:])
        if rows is not None:
            assert table[1:].equal(rows)


def test_longer_model_is_saved_and_continues_only_its_new_positions(tmp_path):
    save(tmp_path / "short")
    made = longify(
        tmp_path / "short", max_length=LONG, freeze="all-but-positions", out=tmp_path / "long"
    )
    loaded = LongspanForMaskedLM.from_pretrained(tmp_path / "long")
    torch.testing.assert_close(outputs(loaded.eval(), LONG), outputs(made.model, LONG))
    loaded.train()(input_ids=torch.ones(1, LONG, dtype=torch.long)).logits.sum().backward()
    moved = [name for name, x in loaded.named_parameters() if x.grad is not None]
    assert moved == [f"model.{TABLE}"]
    gradient = loaded.model.get_parameter(TABLE).grad
    assert not gradient[:SHORT].any()
    assert gradient[SHORT:].any()


def test_sources_without_a_longer_model_are_refused(tmp_path):
    for name, fields, arguments, message in (
        ("sized", {"attention": "linformer"}, {}, "choose an attention without parameters for ea"),
        ("decoder", {"is_decoder": True, "cls": LongspanForCausalLM}, {}, "has a decoder"),
        ("plain", {}, {"max_length": 8}, "at least the 12 tokens of the source, got 8"),
        ("hub", {}, {"revision": "main"}, "omit decoder_max_length, drop, new and revision"),
    ):
        save(tmp_path / name, **fields)
        with pytest.raises(OptionError, match=message):
            longify(tmp_path / name, **{"max_length": LONG, **arguments})
    with pytest.raises(UnknownNameError, match="stretch"):
        longify(tmp_path / "plain", max_length=LONG, positions="stretch")
    save(tmp_path / "rotary", position="rotary")
    with pytest.raises(UnknownNameError, match="positions without parameters"):
        longify(tmp_path / "rotary", max_length=LONG, positions="tile")
    assert not (tmp_path / "out").exists()
