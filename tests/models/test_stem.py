"""Convolutional stem: position of each pixel, padding, models without attention."""

import pytest
import torch
import torch.nn.functional as F

from longspan.errors import InputError, OptionError
from longspan.models import LongspanForSequenceClassification, LongspanModel
from longspan.models.embeddings import ConvolutionStem

SIDE = 6


def test_stem_convolves_rows_and_columns_of_the_image():
    torch.manual_seed(0)
    stem = ConvolutionStem(3).double()
    x = torch.randn(2, SIDE * SIDE, 3, dtype=torch.float64)
    grid = x.view(2, SIDE, SIDE, 3).permute(0, 3, 1, 2)
    for own in stem.convolutions:
        grid = F.relu(F.conv2d(grid, own.weight, own.bias, padding=1))
    torch.testing.assert_close(stem(x), grid.permute(0, 2, 3, 1).reshape(2, SIDE * SIDE, 3))


def test_a_pixel_reaches_two_rows_and_columns():
    stem = ConvolutionStem(3).double()
    x = torch.zeros(1, SIDE * SIDE, 3, dtype=torch.float64)
    changed = x.clone()
    changed[0, 2 * SIDE + 3] = 1  # row 2, column 3
    moved = (stem(changed) - stem(x)).abs().sum(-1).view(SIDE, SIDE) > 0
    reached = moved.nonzero()
    assert reached.amin(0).tolist() >= [0, 1]
    assert reached.amax(0).tolist() <= [4, 5]
    assert moved[2, 3]


def test_padding_has_no_influence(small):
    model = LongspanModel(small(stem="convolution", max_position_embeddings=SIDE**2)).eval()
    ids = torch.randint(1, 50, (2, SIDE**2))
    mask = torch.arange(SIDE**2) < 30
    other = ids.where(mask, torch.full_like(ids, 7))
    mask = mask.expand(2, -1)
    assert model(ids, mask).pooler_output.equal(model(other, mask).pooler_output)


def test_other_shapes_are_refused(small):
    model = LongspanModel(small(stem="convolution", max_position_embeddings=SIDE**2))
    with pytest.raises(InputError, match="requires a square image, got 12 positions"):
        model(torch.ones(1, 12, dtype=torch.long))


def test_model_without_layers_trains(small):
    config = small(stem="convolution", num_hidden_layers=0, max_position_embeddings=SIDE**2)
    model = LongspanForSequenceClassification(config)
    labels = torch.tensor([0, 1])
    model(torch.randint(1, 50, (2, SIDE**2)), labels=labels).loss.backward()
    assert all(p.grad is not None for p in model.model.embeddings.stem.parameters())
    with pytest.raises(OptionError, match="num_hidden_layers must be at least 0, got -1"):
        small(num_hidden_layers=-1)


def test_configuration_requires_a_square_image(small):
    with pytest.raises(OptionError, match="stem='convolution': requires a square image, got 15"):
        small(stem="convolution", max_position_embeddings=15)


def test_model_without_layers_cannot_pool_a_summary_token(small):
    with pytest.raises(OptionError, match="the summary token attends to nothing; use pooling"):
        small(num_hidden_layers=0, pooling="cls")
