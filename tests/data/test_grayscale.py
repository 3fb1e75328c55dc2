"""Both conversions to grayscale, for every color."""

import numpy as np
from PIL import Image

from longspan.tasks.lra.image import to_grayscale


def luma(colors):
    red, green, blue = colors[0].astype(np.float64)
    return 0.2989 * red + 0.5870 * green + 0.1140 * blue


def test_tf_truncates_the_luma_scaled_by_255_point_5_and_pil_equals_pillow():
    """Compare all 2^24 colors, 2^18 at a time."""
    unscaled, rounded, unequal = 0, 0, 0
    for first in range(0, 1 << 24, 1 << 18):
        codes = np.arange(first, first + (1 << 18), dtype=np.uint32)
        colors = np.stack([codes >> 16, codes >> 8, codes]).astype(np.uint8)[None]
        tf, pil = (to_grayscale(colors, rule)[0] for rule in ("tf", "pil"))
        exact = luma(colors)
        unscaled += (tf != np.floor(exact + 1e-9)).sum()
        exact *= 255.5 / 255
        other = np.flatnonzero(tf != np.floor(exact))
        # float32 rounds to the other side only if the exact value is almost an integer
        assert (np.abs(exact[other] - np.round(exact[other])) < 1e-4).all()
        rounded += len(other)
        image = Image.fromarray(colors[0].T.reshape(512, 512, 3))
        assert (pil == np.asarray(image.convert("L")).ravel()).all()
        # The rules differ by one level.
        assert np.abs(pil.astype(int) - tf).max() <= 1
        unequal += (pil != tf).sum()
    assert 0.24 < unscaled / (1 << 24) < 0.26, "the luma is scaled before it is truncated"
    assert rounded < 300
    assert 0.25 < unequal / (1 << 24) < 0.28


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
