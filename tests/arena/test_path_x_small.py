"""path-x-small: its models are scored on images larger than those of training."""

import pytest
import torch

from longspan.arena import get, make_model
from longspan.errors import OptionError
from longspan.models import lengthen
from longspan.tasks import build

NAME, TASK = "path-x-small", "pathfinder"
FOR_32 = ("relative-2d", "local-2d")  # tables of offsets of 32 x 32 pixels


def model_of(row):
    experiment = get(NAME).row(TASK, row, 0)
    return make_model(experiment, build(TASK, experiment.config.task.options)).eval()


@pytest.mark.parametrize("row", [*get(NAME).rows, "local-2d"])
def test_rows_are_scored_on_larger_images_unless_they_count_offsets(row):
    model = model_of(row)
    if row in FOR_32:
        with pytest.raises(OptionError, match="relative_2d positions"):
            lengthen(model, 64 * 64)
        return
    longer = lengthen(model, 64 * 64)
    for side in (32, 64):
        logits = longer(input_values=torch.rand(1, side * side, 1)).logits
        assert logits.shape == (1, 2)


def test_rows_of_64_have_the_model_of_their_mechanism():
    protocol = get(NAME)
    for name in ("full", "local", "linear", "cnn"):
        small, large = (protocol.row(TASK, x, 0).config for x in (name, f"{name}-64"))
        assert large.model == small.model
        assert large.task.options["resolution"] == 64
        assert large.training.steps * large.training.batch_size <= large.task.options["train"]
