"""Reversible residual connections, axial positions and the linear prediction head."""

import pytest
import torch

from longspan.errors import InputError, OptionError
from longspan.models import (
    LongspanConfig,
    LongspanForCausalLM,
    LongspanForMaskedLM,
    LongspanForMultipleChoice,
    LongspanForPairClassification,
    LongspanForQuestionAnswering,
    LongspanForSequenceClassification,
    LongspanForTokenClassification,
    LongspanModel,
)

WIDTH = 16
FIELDS = {
    **{"vocab_size": 40, "hidden_size": WIDTH, "max_position_embeddings": 32},
    **{"residual": "reversible", "hidden_dropout_prob": 0.0, "attention_dropout": 0.0},
}
AXIAL = {"position": "axial", "axial_shape": [4, 8], "axial_widths": [6, 10]}


def make(cls=LongspanModel, **fields):
    torch.manual_seed(0)
    return cls(LongspanConfig(**FIELDS | fields)).double().eval()


def test_inputs_of_a_layer_follow_from_its_outputs():
    model, ids = make(), torch.arange(20).view(2, 10)
    layer, x = model.layers[0], torch.randn(2, 10, 2 * WIDTH, dtype=torch.float64)
    y1, y2 = layer(x).states.chunk(2, -1)
    x2 = y2 - layer.feed_forward(layer.feed_forward_norm(y1))
    x1 = y1 - layer.attention(layer.attention_norm(x2)).states
    torch.testing.assert_close(torch.cat((x1, x2), -1), x)
    states = model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(states[1], layer(states[0]).states)
    assert torch.equal(*states[0].chunk(2, -1))
    norm = torch.nn.functional.layer_norm(
        model.layers[1](states[1]).states, (2 * WIDTH,), eps=model.config.layer_norm_eps
    )
    torch.testing.assert_close(states[2], norm)


@pytest.mark.parametrize(
    ("cls", "shape"),
    [
        (LongspanForSequenceClassification, (2, 2)),
        (LongspanForTokenClassification, (2, 10, 2)),
        (LongspanForMaskedLM, (2, 10, 40)),
        (LongspanForCausalLM, (2, 10, 40)),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_heads_read_both_streams(cls, shape, tied):
    model = make(cls, tie_word_embeddings=tied)
    assert model(torch.arange(20).view(2, 10)).logits.shape == shape


def test_heads_of_other_inputs_read_both_streams():
    ids = torch.arange(20).view(2, 10)
    assert make(LongspanForQuestionAnswering)(ids).start_logits.shape == (2, 10)
    assert make(LongspanForMultipleChoice)(ids.view(2, 2, 5)).logits.shape == (2, 2)
    pair = make(LongspanForPairClassification)
    assert pair.classifier.hidden.in_features == 4 * 2 * WIDTH


def test_linear_prediction_head_has_one_map():
    model = make(LongspanForMaskedLM, prediction_head="linear", tie_word_embeddings=False)
    ids = torch.arange(20).view(2, 10)
    states = model.model(ids).last_hidden_state
    torch.testing.assert_close(model(ids).logits, states @ model.lm_head.weight.T)
    assert model.lm_head.weight.shape == (40, 2 * WIDTH)
    plain = make(LongspanForMaskedLM, residual="standard", prediction_head="linear")
    assert plain.lm_head.weight is plain.model.embeddings.words.weight
    assert plain.lm_head.bias is None
    fields = {"prediction_head": "linear", "lm_head_bias": True, "residual": "standard"}
    assert make(LongspanForMaskedLM, **fields).lm_head.bias.shape == (40,)


def test_axial_position_is_a_row_beside_a_column():
    model = make(num_hidden_layers=0, residual="standard", norm="pre", **AXIAL)
    axial = model.embeddings.axial
    assert [tuple(x.weight.shape) for x in (axial.rows, axial.columns)] == [(4, 6), (8, 10)]
    table = axial(torch.arange(32))
    for t in (0, 7, 8, 31):
        expected = torch.cat((axial.rows.weight[t // 8], axial.columns.weight[t % 8]))
        assert torch.equal(table[t], expected)
    ids, positions = torch.arange(20).view(2, 10), torch.tensor([[9, 3, 31, 0, 5, 7, 8, 1, 2, 4]])
    out = model(ids, position_ids=positions).last_hidden_state
    x = model.embeddings.words(ids) + table[positions]
    torch.testing.assert_close(out, model.norm(x))
    torch.testing.assert_close(
        model(ids).last_hidden_state, model.norm(model.embeddings.words(ids) + table[:10])
    )
    with pytest.raises(InputError, match=r"position_ids must be in 0..31, got 32..32"):
        axial(torch.tensor([32]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "post"}, "residual='reversible' requires norm='pre', got 'post'"),
        ({"is_encoder_decoder": True}, "requires is_encoder_decoder=False, got True"),
        (
            {"is_decoder": True, "cross_attention": "full"},
            "requires cross_attention=None, got 'full'",
        ),
        ({"axial_shape": [4, 8]}, "axial_shape and axial_widths require position='axial'"),
        ({"position": "axial"}, "requires axial_shape of two positive numbers, got None"),
        (AXIAL | {"axial_widths": [16]}, r"axial_widths of two positive numbers, got \[16\]"),
        (AXIAL | {"axial_shape": [4, 7]}, r"must have at least 32 positions, got \[4, 7\]"),
        (AXIAL | {"axial_widths": [6, 9]}, r"must add up to the 16 of the embeddings, got \[6, 9"),
    ],
    ids=str,
)
def test_invalid_fields_are_rejected(fields, message):
    with pytest.raises(OptionError, match=message):
        LongspanConfig(**FIELDS | fields)
