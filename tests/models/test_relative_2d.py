"""Relative positions of pixels: offsets, summary token, initial values, refusals."""

import pytest
import torch

from longspan.attention import MECHANISMS
from longspan.errors import InputError, OptionError
from longspan.models import LongspanModel
from longspan.models.relative import RelativePositions2D

SIDE, HEADS = 3, 2


def positions(side=SIDE):
    torch.manual_seed(0)
    return RelativePositions2D(HEADS, side)


def test_number_of_a_pair_depends_on_rows_and_columns_between_its_pixels():
    module = positions()
    bias, table = module(SIDE**2)[0], module.offsets.weight.view(2 * SIDE - 1, 2 * SIDE - 1, HEADS)
    for i in range(SIDE**2):
        for j in range(SIDE**2):
            rows, columns = i // SIDE - j // SIDE, i % SIDE - j % SIDE
            assert bias[:, i, j].equal(table[rows + SIDE - 1, columns + SIDE - 1])


def test_summary_token_has_the_number_zero():
    module = positions()
    bias = module(SIDE**2 + 1)
    assert not bias[..., 0, :].any()
    assert not bias[..., 0].any()
    assert bias[..., 1:, 1:].equal(module(SIDE**2))


@pytest.mark.parametrize("pixels", [4, 8, 11])
def test_images_of_other_sizes_are_refused(pixels):
    with pytest.raises(InputError, match=f"images of 3 x 3 pixels, got an input of {pixels};"):
        positions()(pixels)


def settings(**changes):
    return {"position": "relative_2d", "max_position_embeddings": SIDE**2, **changes}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("attention", [n for n, cls in MECHANISMS.items() if cls.traits.bias])
def test_mechanisms_add_the_numbers_to_their_scores(small, attention, pooling):
    torch.manual_seed(0)
    options = {"window": 2} if attention in ("local", "dilated", "longformer") else {}
    config = small(**settings(attention=attention, pooling=pooling, attention_options=options))
    model = LongspanModel(config).eval()
    ids = torch.randint(1, 50, (2, SIDE**2))
    before = model(ids).pooler_output
    for layer in model.layers:
        layer.attention.positions.offsets.weight.data.normal_(std=3)
    after = model(ids).pooler_output
    assert (after - before).abs().max() > 1e-3
    after[:, 0].sum().backward()
    assert model.layers[0].attention.positions.offsets.weight.grad.any()


def test_loaded_checkpoint_without_offsets_gets_initial_ones(small, tmp_path):
    LongspanModel(small(**settings(position="none"))).save_pretrained(tmp_path)
    model = LongspanModel.from_pretrained(tmp_path, position="relative_2d")
    for layer in model.layers:
        std = layer.attention.positions.offsets.weight.std()
        assert 0.5 < std / model.config.initializer_range < 2


def test_numbers_are_added_under_autocast(small):
    model = LongspanModel(small(**settings(pooling="cls")))
    ids = torch.randint(1, 50, (2, SIDE**2))
    with torch.autocast("cpu", torch.bfloat16):
        model(ids).pooler_output[:, 0].sum().backward()
    assert model.layers[0].attention.positions.offsets.weight.grad.any()


def test_refusals_name_the_remedy(small):
    with pytest.raises(OptionError, match=r"linformer does not support; use one of .*full"):
        small(**settings(attention="linformer"))
    options = {"window": 2, "global_projections": True}
    with pytest.raises(OptionError, match="longformer does not support with these options"):
        LongspanModel(small(**settings(attention="longformer", attention_options=options)))
    with pytest.raises(OptionError, match="requires a square image, got 10 positions"):
        small(**settings(max_position_embeddings=10))
    with pytest.raises(OptionError, match="does not support context parallelism"):
        LongspanModel(small(**settings())).enable_context_parallel(None)
