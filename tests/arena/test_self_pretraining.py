"""Self-pretraining: two runs of one protocol, and the budget that they share."""

import pytest

import tiny
from longspan.arena import arena, get, grid
from longspan.arena.callbacks import GridCallback
from longspan.tasks.lra.masked_inputs import MASK_PROBABILITIES

NAMES = ("self-pretraining", "self-pretraining-scaled")


@pytest.mark.parametrize("name", NAMES)
def test_every_task_starts_from_its_own_masked_inputs(name):
    protocol = get(name)
    for task in protocol.tasks:
        own = protocol.recipe(task)
        if task.startswith("masked_"):
            assert own.start is None
            continue
        assert own.start == f"masked_{task}"
        pretrained = protocol.recipe(own.start)
        assert pretrained.model == own.model
        masks = {"mask_probability", "replaced", "random"}
        assert own.task_options == {
            k: x for k, x in pretrained.task_options.items() if k not in masks
        }
        for mechanism in ("full", "longformer", "linformer"):
            one, two = (protocol.options_for(x, mechanism) for x in (task, own.start))
            assert one == two


def test_published_protocol_has_all_tasks_of_long_range_arena():
    names = [x.info.name for x in MASK_PROBABILITIES]
    assert get("self-pretraining").tasks == tuple(y for x in names for y in (f"masked_{x}", x))


def test_scaled_protocol_costs_a_run_of_lra_scaled():
    """Masked inputs take 40 % of the examples of a run from scratch, as in the paper."""
    scaled, other = get("self-pretraining-scaled"), get("lra-scaled")
    assert scaled.tasks == tuple(y for x in other.tasks for y in (f"masked_{x}", x))
    for task in other.tasks:
        whole = other.recipe(task).training
        for name, share in ((f"masked_{task}", 0.4), (task, 0.6)):
            part = scaled.recipe(name).training
            assert part.steps * part.batch_size == share * whole.steps * whole.batch_size
            assert part.warmup_steps == round(share * whole.warmup_steps)
        assert other.config(task, "local").mechanism == scaled.config(task, "local").mechanism


def test_a_task_is_trained_after_its_masked_inputs(paths):
    changes = {**tiny.CHANGES, "training.steps": 4, "training.evaluate_every": 2}
    experiments, left_out = grid(
        "self-pretraining-scaled", tasks=["listops"], mechanisms=["local"], changes=changes
    )
    assert (len(experiments), left_out) == (2, [])
    results, failed = arena(experiments, paths, GridCallback())
    assert not failed
    first, second = results
    assert (first.task, first.metric) == ("masked_listops", "perplexity")
    assert (second.task, second.metric) == ("listops", "accuracy")
    assert first.data_checksum == second.data_checksum
    assert first.start is None
    assert all(name.startswith("classifier.") for name in second.start.new)
    # the head of masked tokens
    assert second.start.dropped
    assert not [name for name in second.start.dropped if name.startswith("model.")]
