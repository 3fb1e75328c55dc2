"""Counted FLOPs of a protocol against the column of its paper."""

import pytest

from longspan.arena.model import model_config
from longspan.arena.protocols import PROTOCOLS
from longspan.report.tables.published import read_published
from longspan.tasks import TASKS

GFLOPS = {x.mechanism: x.value for x in read_published() if x.quantity == "gflops"}
PADDED = 2048  # tokens that the source pads ListOps to


def counted_gflops(mechanism, padded):
    """Return the multiply-adds of one forward pass on an example of ListOps, in billions."""
    config = PROTOCOLS["xiong"].config("listops", mechanism)
    task = TASKS["listops"](TASKS["listops"].Options(**config.task.options))
    model = model_config(config, task)
    shapes = task.input_shapes
    if padded:
        model.max_position_embeddings, shapes = PADDED, {"input_ids": (PADDED,)}
    return task.head.flops(model, shapes) / 2 / 1e9


@pytest.mark.parametrize(("padded", "tolerance"), [(False, 0.07), (True, 0.06)])
@pytest.mark.parametrize("mechanism", GFLOPS)
def test_xiong_flops_of_listops_equal_those_of_the_paper(mechanism, padded, tolerance):
    """Xiong et al. 2022, table 1; the paper counts multiply-adds and names no task."""
    assert len(GFLOPS) == 8
    assert counted_gflops(mechanism, padded) == pytest.approx(GFLOPS[mechanism], rel=tolerance)
