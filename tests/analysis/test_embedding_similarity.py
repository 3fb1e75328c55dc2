"""Cosines of embeddings, and their means over groups."""

import pytest
import torch
import torch.nn.functional as F

from longspan.analysis import embeddings
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.positions import sinusoids


def encoder(**fields):
    torch.manual_seed(0)
    config = LongspanConfig(**{"vocab_size": 20, "max_position_embeddings": 30, **fields})
    return LongspanModel(config)


def slow(table):
    return F.cosine_similarity(table[:, None].double(), table[None].double(), dim=-1)


def test_groups_hold_the_mean_over_their_pairs():
    table, group = torch.randn(9, 5), torch.tensor([0, 2, 1, 1, 0, 2, 2, 2, 0])
    found, every = embeddings.grouped(table, group), slow(table)
    for a in range(3):
        for b in range(3):
            expected = every[group == a][:, group == b].mean()
            assert float(found[a, b]) == pytest.approx(float(expected))


def test_stretches_are_even_and_no_more_than_can_be_kept():
    assert embeddings.stretches(10).tolist() == list(range(10))
    sizes = embeddings.stretches(1000).bincount()
    assert len(sizes) == 64
    assert {15, 16} == set(sizes.tolist())
    assert embeddings.stretches(1000).diff().min() == 0


def test_squares_are_squares_of_the_image():
    group, cells = embeddings.squares(32)
    assert cells == 8
    image = group.view(32, 32)
    for row, column in ((0, 0), (3, 31), (17, 9)):
        assert int(image[row, column]) == row // 4 * 8 + column // 4
    group, cells = embeddings.squares(5)
    assert (cells, group.tolist()) == (5, list(range(25)))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_positions_are_those_of_the_input(pooling):
    model = encoder(pooling=pooling)
    found = embeddings.positions(model)
    own = model.embeddings.positions.weight[-30:]
    torch.testing.assert_close(torch.tensor(found.matrix), slow(own).float(), atol=6e-5, rtol=0)
    assert (found.count, found.grid) == (30, None)


def test_positions_of_an_image_are_grouped_by_squares():
    model = encoder(max_position_embeddings=256, position="sinusoidal", pooling="cls")
    found = embeddings.positions(model, 16)
    table = sinusoids(257, 64, device=torch.device("cpu"), dtype=torch.float32)[1:]
    square = slow(table).view(8, 2, 8, 2, 8, 2, 8, 2).mean((1, 3, 5, 7)).view(64, 64)
    torch.testing.assert_close(torch.tensor(found.matrix), square.float(), atol=6e-5, rtol=0)
    assert (found.count, found.grid) == (256, [8, 8])


@pytest.mark.parametrize("position", ["rotary", "none"])
def test_without_a_table_there_is_nothing_to_compare(position):
    assert embeddings.positions(encoder(position=position)) is None


def test_tokens_are_those_of_the_vocabulary_if_there_is_one():
    model = encoder()
    found = embeddings.tokens(model)
    expected = slow(model.embeddings.words.weight).float()
    torch.testing.assert_close(torch.tensor(found.matrix), expected, atol=6e-5, rtol=0)
    assert embeddings.tokens(encoder(input_features=1)) is None
