"""Plots of analyses."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from report_records import analysis, record

from longspan.errors import OptionError, UnknownNameError
from longspan.report.charts.attention_maps import GAP, PANEL_SIZE, similarity_image, write_plot
from longspan.report.charts.heatmaps import draw_matrix
from longspan.results import Rollout, Similarity

LEVELS = list(range(0, 160, 10))
IMAGE = Rollout(
    split="validation",
    row=3,
    start="first state",
    shares=[0.0] * 15 + [0.5],
    side=4,
    levels=LEVELS,
    tokens=None,
)
TEXT = dataclasses.replace(
    IMAGE, shares=[0.1, 0.4, 0.2], side=None, levels=None, tokens=["[MAX", "3", "\x07<"]
)
SIMILARITY = Similarity(count=2, grid=None, matrix=[[1.0, 0.0], [0.0, 1.0]])


def analysis_with(**parts):
    return analysis(record("full"), **parts)


def test_plot_of_image_shows_input_and_rollout(tmp_path):
    path = tmp_path / "plot.png"
    write_plot(analysis_with(rollout=IMAGE), path)
    pixels = np.array(Image.open(path))
    assert pixels.shape == (PANEL_SIZE, 2 * PANEL_SIZE + GAP, 3)
    step = PANEL_SIZE // 4
    centers = slice(step // 2, PANEL_SIZE, step)
    shown = pixels[centers, :PANEL_SIZE][:, centers].reshape(-1, 3)
    assert shown.tolist() == [[level] * 3 for level in LEVELS]
    rolled_out = pixels[centers, PANEL_SIZE + GAP :][:, centers].reshape(-1, 3)
    assert rolled_out[:15].tolist() == shown[:15].tolist()
    assert rolled_out[15][0] > 200 > rolled_out[15][2]


def test_svg_of_text_shades_words_by_share(tmp_path):
    path = tmp_path / "plot.svg"
    write_plot(analysis_with(rollout=TEXT, tokens=SIMILARITY), path)
    root = ElementTree.parse(path).getroot()
    opacities = [float(x.get("fill-opacity")) for x in root.iter() if x.get("fill-opacity")]
    assert opacities == [0.25, 1.0, 0.5]
    texts = [x.text for x in root.findall("{*}text")]
    assert texts[0] == "cosine similarity of token embeddings"
    assert texts[-3:] == ["[MAX", "3", "·<"]
    assert len(root.findall("{*}image")) == 1


def test_png_of_text_shows_shares_as_matrix(tmp_path):
    path = tmp_path / "plot.png"
    write_plot(analysis_with(rollout=TEXT), path)
    with Image.open(path) as image:
        assert image.width > image.height


def test_grid_similarity_has_one_tile_per_group():
    matrix = (np.random.default_rng(0).random((6, 6)) * 2 - 1).tolist()
    image = similarity_image(Similarity(count=6, grid=[2, 3], matrix=matrix), "position")
    pixels = np.asarray(image)
    assert pixels.shape == (2 * 3 - 1, 3 * 4 - 1, 3)
    colors = np.asarray(draw_matrix(matrix, "", "").image())
    for row in range(2):
        for column in range(3):
            tile = pixels[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
            assert tile.reshape(6, 3).tolist() == colors[3 * row + column].tolist()
    assert (pixels[2] == 255).all()


def test_invalid_plots_are_rejected(tmp_path):
    with pytest.raises(UnknownNameError, match=r"no plot format called '\.gif'"):
        write_plot(analysis_with(rollout=IMAGE), tmp_path / "plot.gif")
    with pytest.raises(OptionError, match="neither a rollout nor embeddings to plot"):
        write_plot(analysis_with(), tmp_path / "plot.png")
