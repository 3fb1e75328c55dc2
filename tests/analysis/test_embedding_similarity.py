"""Cosine similarity of embeddings, averaged over groups."""

import numpy as np
import pytest
import torch

from longspan.analysis import embedding_similarity
from longspan.models import LongspanConfig, LongspanModel
from longspan.models.positions import sinusoidal_table

STEP = 0.01  # vectors are recorded in 256 steps


def build_encoder(**fields):
    torch.manual_seed(0)
    config = LongspanConfig(**{"vocab_size": 20, "max_position_embeddings": 30, **fields})
    return LongspanModel(config)


def naive_cosines(table):
    table = table.double()
    lengths = table.norm(dim=-1)
    return table @ table.T / (lengths[:, None] * lengths)


def test_products_of_mean_unit_vectors_are_means_over_pairs():
    table, group = torch.randn(9, 5), torch.tensor([0, 2, 1, 1, 0, 2, 2, 2, 0])
    vectors, every = embedding_similarity.mean_unit_vectors(table, group), naive_cosines(table)
    found = vectors @ vectors.T
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
    group, tiles = embedding_similarity.tile_groups(128)
    assert tiles == 32
    image = group.view(128, 128)
    for row, column in ((0, 0), (3, 31), (17, 127)):
        assert int(image[row, column]) == row // 4 * 32 + column // 4
    group, tiles = embedding_similarity.tile_groups(32)
    assert (tiles, group.tolist()) == (32, list(range(32 * 32)))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_position_similarity_excludes_summary_token(pooling):
    model = build_encoder(pooling=pooling)
    found = embedding_similarity.position_similarity(model)
    own = model.embeddings.positions.weight[-30:]
    np.testing.assert_allclose(found.cosines(), naive_cosines(own).detach(), atol=STEP)
    assert (found.count, found.grid) == (30, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"position": "sinusoidal", "embedding_size": 16},
        {"position": "axial", "axial_shape": [4, 8], "axial_widths": [24, 40]},
    ],
    ids=lambda fields: fields["position"],
)
def test_positions_are_what_the_model_adds(fields):
    model = build_encoder(**fields, pooling="cls")
    width = model.embeddings.words.embedding_dim
    added = model.embeddings._add_positions(torch.zeros(1, 31, width), None)[0, 1:]
    found = embedding_similarity.position_similarity(model)
    np.testing.assert_allclose(found.cosines(), naive_cosines(added).detach(), atol=STEP)
    assert found.dimensions == width


def test_every_position_of_an_image_has_its_own_similarities():
    model = build_encoder(max_position_embeddings=1024, pooling="cls")
    found = embedding_similarity.position_similarity(model, 32)
    assert (found.count, found.grid) == (1024, [32, 32])
    expected = naive_cosines(model.embeddings.positions.weight[1:])
    np.testing.assert_allclose(found.cosines(), expected.detach(), atol=STEP)
    # A record of a run is smaller than one of the images that its model reads.
    assert len(found.vectors.data) < 100_000


def test_positions_of_large_images_are_grouped_into_tiles():
    model = build_encoder(max_position_embeddings=64 * 64, position="sinusoidal", pooling="cls")
    found = embedding_similarity.position_similarity(model, 64)
    table = sinusoidal_table(torch.arange(64 * 64 + 1), 64, dtype=torch.float32)[1:]
    own = naive_cosines(table[:128]).view(2, 32, 2, 2, 32, 2).mean((0, 2, 3, 5))
    np.testing.assert_allclose(found.cosines()[:32, :32], own, atol=STEP)
    assert (found.count, found.grid) == (64 * 64, [32, 32])


@pytest.mark.parametrize("position", ["rotary", "none"])
def test_models_without_position_embeddings_have_no_similarity(position):
    assert embedding_similarity.position_similarity(build_encoder(position=position)) is None


def test_token_similarity_covers_vocabulary():
    model = build_encoder()
    found = embedding_similarity.token_similarity(model)
    expected = naive_cosines(model.embeddings.words.weight).float()
    np.testing.assert_allclose(found.cosines(), expected.detach(), atol=STEP)
    assert embedding_similarity.token_similarity(build_encoder(input_features=1)) is None
