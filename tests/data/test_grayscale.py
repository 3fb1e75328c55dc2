"""Both grey conversions over every colour there is."""

import numpy as np
import pytest
from PIL import Image

from longspan.data.grayscale import to_grayscale


@pytest.fixture(scope="module")
def colours():
    """All 2^24 colours, (1, 3, 2^24)."""
    codes = np.arange(1 << 24, dtype=np.uint32)
    return np.stack([codes >> 16, codes >> 8, codes]).astype(np.uint8)[None]


def luma(colours):
    red, green, blue = colours[0].astype(np.float64)
    return 0.2989 * red + 0.5870 * green + 0.1140 * blue


def test_tf_cuts_off_the_luma_scaled_by_255_point_5(colours):
    found = to_grayscale(colours, "tf")[0]
    exact = luma(colours) * 255.5 / 255
    other = np.flatnonzero(found != np.floor(exact))
    # float32 falls on the other side only where the exact value is all but whole
    assert len(other) < 300
    assert np.abs(exact[other] - np.round(exact[other])).max() < 1e-4


def test_tf_is_not_the_luma_cut_off(colours):
    differs = to_grayscale(colours, "tf")[0] != np.floor(luma(colours) + 1e-9)
    assert 0.24 < differs.mean() < 0.26


def test_tf_keeps_black_white_and_greys():
    greys = np.arange(256, dtype=np.uint8)
    assert (to_grayscale(np.stack([greys] * 3)[None], "tf")[0] == greys).all()


def test_pil_is_what_pillow_does(colours):
    image = Image.fromarray(colours[0].T.reshape(4096, 4096, 3))
    assert (to_grayscale(colours, "pil")[0] == np.asarray(image.convert("L")).ravel()).all()


def test_the_two_differ_by_one_level_for_a_quarter_of_the_colours(colours):
    tf, pil = (to_grayscale(colours, rule)[0].astype(int) for rule in ("tf", "pil"))
    assert set(np.unique(pil - tf)) <= {-1, 0, 1}
    assert 0.25 < (pil != tf).mean() < 0.28


def test_images_keep_their_places():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 12), np.uint8)
    for rule in ("tf", "pil"):
        whole = to_grayscale(pixels, rule)
        assert whole.shape == (5, 12)
        assert whole.dtype == np.uint8
        for row in range(5):
            assert (whole[row] == to_grayscale(pixels[row : row + 1], rule)[0]).all()
