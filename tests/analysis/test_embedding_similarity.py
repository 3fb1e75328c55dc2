"""Cosine similarity of embeddings, averaged over groups."""

import pytest
import torch
import torch.nn.functional as F

from longspan.analysis import embedding_similarity
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.positions import sinusoidal_table


def build_encoder(**fields):
    torch.manual_seed(0)
    config = LongspanConfig(**{"vocab_size": 20, "max_position_embeddings": 30, **fields})
    return LongspanModel(config)


def naive_cosines(table):
    return F.cosine_similarity(table[:, None].double(), table[None].double(), dim=-1)


def test_mean_cosines_average_over_pairs():
    table, group = torch.randn(9, 5), torch.tensor([0, 2, 1, 1, 0, 2, 2, 2, 0])
    found, every = embedding_similarity.mean_cosines(table, group), naive_cosines(table)
    for a in range(3):
        for b in range(3):
            expected = every[group == a][:, group == b].mean()
            assert float(found[a, b]) == pytest.approx(float(expected))


def test_intervals_are_even_and_bounded_in_number():
    assert embedding_similarity.interval_groups(10).tolist() == list(range(10))
    sizes = embedding_similarity.interval_groups(1000).bincount()
    assert len(sizes) == 64
    assert {15, 16} == set(sizes.tolist())
    assert embedding_similarity.interval_groups(1000).diff().min() == 0


def test_tile_groups_are_square_tiles():
    group, cells = embedding_similarity.tile_groups(32)
    assert cells == 8
    image = group.view(32, 32)
    for row, column in ((0, 0), (3, 31), (17, 9)):
        assert int(image[row, column]) == row // 4 * 8 + column // 4
    group, cells = embedding_similarity.tile_groups(5)
    assert (cells, group.tolist()) == (5, list(range(25)))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_position_similarity_excludes_summary_token(pooling):
    model = build_encoder(pooling=pooling)
    found = embedding_similarity.position_similarity(model)
    own = model.embeddings.positions.weight[-30:]
    torch.testing.assert_close(
        torch.tensor(found.matrix), naive_cosines(own).float(), atol=6e-5, rtol=0
    )
    assert (found.count, found.grid) == (30, None)


def test_image_positions_are_grouped_into_tiles():
    model = build_encoder(max_position_embeddings=256, position="sinusoidal", pooling="cls")
    found = embedding_similarity.position_similarity(model, 16)
    table = sinusoidal_table(257, 64, device=torch.device("cpu"), dtype=torch.float32)[1:]
    square = naive_cosines(table).view(8, 2, 8, 2, 8, 2, 8, 2).mean((1, 3, 5, 7)).view(64, 64)
    torch.testing.assert_close(torch.tensor(found.matrix), square.float(), atol=6e-5, rtol=0)
    assert (found.count, found.grid) == (256, [8, 8])


@pytest.mark.parametrize("position", ["rotary", "none"])
def test_models_without_position_embeddings_have_no_similarity(position):
    assert embedding_similarity.position_similarity(build_encoder(position=position)) is None


def test_token_similarity_covers_vocabulary():
    model = build_encoder()
    found = embedding_similarity.token_similarity(model)
    expected = naive_cosines(model.embeddings.words.weight).float()
    torch.testing.assert_close(torch.tensor(found.matrix), expected, atol=6e-5, rtol=0)
    assert embedding_similarity.token_similarity(build_encoder(input_features=1)) is None
