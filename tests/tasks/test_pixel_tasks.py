"""Tasks over images: inputs of the model, and drawings for readers."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from longspan.data.cache import BuildOutput
from longspan.tasks.info import TaskInfo
from longspan.tasks.lra.pixels import PixelOptions, PixelTask, draw_as_text, draw_mask, pack_images

SIDE = 6
PICTURES = np.random.default_rng(0).integers(0, 256, (12, SIDE, SIDE), np.uint8)
# Black pixels at the end would be removed if they were padding.
PICTURES[:, -2:] = 0


class Pictures(PixelTask):
    """Twelve images of six by six pixels; not registered."""

    Options = PixelOptions
    side, mean, std = SIDE, 0.25, 0.5
    class_names = ("cross", "ring", "dot")
    info = TaskInfo(
        name="pictures",
        title="",
        summary="",
        source="",
        license="",
        vocab_size=256,
        num_classes=3,
        metrics=("accuracy",),
        chance=1 / 3,
        head="sequence_classification",
    )

    def build_splits(self, data, scratch, progress):
        images, labels = PICTURES.reshape(12, -1), np.arange(12) % 3
        rows = {"train": range(6), "validation": range(6, 9), "test": (11, 9, 10)}
        splits = {
            split: pack_images(images, labels, np.array(found)) for split, found in rows.items()
        }
        return BuildOutput(splits=splits, source="", license="", facts={})

    def overlay(self, split, row):
        return draw_mask(self.image(split, row) > 128, "#e6550d")


@pytest.fixture(params=["tokens", "continuous"])
def pictures(request, tmp_path):
    task = Pictures(PixelOptions(pixels=request.param))
    task.open(tmp_path)
    return task


def test_every_pixel_is_an_input_and_none_is_padding(pictures):
    seen = 0
    for batch in pictures.batches("test", batch_size=2):
        assert batch.inputs["attention_mask"].all()
        assert batch.inputs["attention_mask"].shape == (len(batch.rows), SIDE**2)
        seen += len(batch.rows)
    assert seen == 3
    assert pictures.length == SIDE**2


def test_tokens_are_gray_levels_and_numbers_are_normalized(pictures):
    batch = next(pictures.batches("test", batch_size=3))
    order = [[11, 9, 10][row] for row in batch.rows.tolist()]
    levels = torch.from_numpy(PICTURES[order].reshape(3, -1).astype(np.int64))
    assert batch.targets.tolist() == [row % 3 for row in order]
    if pictures.input_features is None:
        assert batch.inputs["input_ids"].dtype == torch.int64
        assert torch.equal(batch.inputs["input_ids"], levels)
    else:
        assert pictures.input_features == 1
        assert batch.inputs["input_values"].dtype == torch.float32
        expected = (levels.double() / 255 - 0.25) / 0.5
        torch.testing.assert_close(batch.inputs["input_values"], expected[..., None].float())


def test_both_encodings_share_a_data_set(tmp_path):
    tasks = [Pictures(PixelOptions(pixels=kind)) for kind in ("tokens", "continuous")]
    for task in tasks:
        task.open(tmp_path)
    assert tasks[0].checksum == tasks[1].checksum
    assert len(list(tmp_path.glob("pictures/*/manifest.json"))) == 1


def test_svg_is_the_enlarged_image(pictures):
    svg = pictures.svg("test", 1)
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 6 6"')
    raw = base64.b64decode(re.search(r"base64,([^\"]+)", svg)[1])
    with Image.open(io.BytesIO(raw)) as image:
        assert image.mode == "L"
        drawn = np.asarray(image)
    step = len(drawn) // SIDE
    assert drawn.shape == (step * SIDE,) * 2
    assert step * SIDE >= 512
    assert (drawn[step // 2 :: step, step // 2 :: step] == PICTURES[9]).all()
    assert (drawn.reshape(SIDE, step, SIDE, step).std((1, 3)) == 0).all()


def test_mask_tints_its_pixels(pictures):
    svg = pictures.svg("test", 0)
    assert 'fill="#e6550d"' in svg
    tinted = np.zeros((SIDE, SIDE), bool)
    for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", svg):
        tinted[int(y), int(x) : int(x) + int(width)] = True
    assert (tinted == (PICTURES[11] > 128)).all()


def test_show_gives_shades_and_label(pictures):
    lines = pictures.show("test", 0).splitlines()
    assert [len(line) for line in lines[:-1]] == [SIDE] * (SIDE // 2)
    assert lines[-1] == "= dot (label 2)"
    # The last two rows are black.
    assert lines[-2] == " " * SIDE


def test_large_images_take_64_columns_and_keep_thin_lines():
    image = np.zeros((128, 128), np.uint8)
    image[:, 37] = 255
    lines = draw_as_text(image).splitlines()
    assert (len(lines), {len(line) for line in lines}) == (32, {64})
    assert all(line == " " * 18 + "@" + " " * 45 for line in lines)


def test_svg_can_be_rendered(pictures):
    converter = pytest.importorskip("vl_convert")
    with Image.open(io.BytesIO(converter.svg_to_png(pictures.svg("test", 2)))) as image:
        drawn = np.asarray(image.convert("RGB"))
    # A pixel without tint.
    y, x = np.argwhere(PICTURES[10] <= 128)[-1]
    step = len(drawn) / SIDE
    found = drawn[int((y + 0.5) * step), int((x + 0.5) * step)]
    assert (found == PICTURES[10][y, x]).all()
