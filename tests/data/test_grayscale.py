"""Both conversions to grayscale, for every color."""

import numpy as np
import pytest
from PIL import Image

from longspan.tasks.lra.image import to_grayscale


@pytest.fixture(scope="module")
def colors():
    """All 2^24 colors, (1, 3, 2^24)."""
    codes = np.arange(1 << 24, dtype=np.uint32)
    return np.stack([codes >> 16, codes >> 8, codes]).astype(np.uint8)[None]


def luma(colors):
    red, green, blue = colors[0].astype(np.float64)
    return 0.2989 * red + 0.5870 * green + 0.1140 * blue


def test_tf_truncates_the_luma_scaled_by_255_point_5_and_pil_equals_pillow(colors):
    tf, pil = (to_grayscale(colors, rule)[0] for rule in ("tf", "pil"))
    exact = luma(colors)
    differs = tf != np.floor(exact + 1e-9)
    assert 0.24 < differs.mean() < 0.26, "the luma is scaled before it is truncated"
    exact *= 255.5 / 255
    other = np.flatnonzero(tf != np.floor(exact))
    # float32 rounds to the other side only if the exact value is almost an integer
    assert len(other) < 300
    assert np.abs(exact[other] - np.round(exact[other])).max() < 1e-4
    image = Image.fromarray(colors[0].T.reshape(4096, 4096, 3))
    assert (pil == np.asarray(image.convert("L")).ravel()).all()
    # The rules differ by one level.
    assert ((pil == tf) | (pil + 1 == tf) | (pil == tf + 1)).all()
    assert 0.25 < (pil != tf).mean() < 0.28


def test_tf_keeps_gray_levels():
    grays = np.arange(256, dtype=np.uint8)
    assert (to_grayscale(np.stack([grays] * 3)[None], "tf")[0] == grays).all()


def test_images_are_converted_independently():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 12), np.uint8)
    for rule in ("tf", "pil"):
        whole = to_grayscale(pixels, rule)
        assert whole.shape == (5, 12)
        assert whole.dtype == np.uint8
        for row in range(5):
            assert (whole[row] == to_grayscale(pixels[row : row + 1], rule)[0]).all()
