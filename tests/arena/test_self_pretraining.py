"""Self-pretraining: two runs of one protocol, and the budget that they share."""

import pytest

import tiny
from longspan.arena import PROTOCOLS, arena, get, grid
from longspan.arena.callbacks import GridCallback
from longspan.arena.protocols import lra_scaled, self_pretraining
from longspan.arena.protocols.self_pretraining import tie_compute, with_masked
from longspan.tasks.masked_inputs import MASK_PROBABILITIES

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
        assert pretrained.task_options == own.task_options
        for mechanism in ("full", "longformer", "linformer"):
            one, two = (protocol.options_for(x, mechanism) for x in (task, own.start))
            assert one == two


def test_published_protocol_has_all_tasks_of_long_range_arena():
    assert get("self-pretraining").tasks == with_masked(x.info.name for x in MASK_PROBABILITIES)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.75])
def test_both_stages_share_the_examples_of_a_run_from_scratch(share):
    """Both texts of a pair are examples."""
    protocol = self_pretraining.recipe
    tied = tie_compute(protocol, protocol, share)
    texts = {"retrieval": 2, "image": 1, "text": 1}
    for task, count in texts.items():
        whole = protocol(task).training
        one, two = tied(f"masked_{task}").training, tied(task).training
        total = count * whole.steps * whole.batch_size
        assert one.steps * one.batch_size == pytest.approx(share * total, rel=1e-3)
        assert two.steps * two.batch_size * count == pytest.approx((1 - share) * total, rel=1e-3)
        assert two.warmup_steps == round(whole.warmup_steps * two.steps / whole.steps)


def test_scaled_protocol_costs_a_run_of_lra_scaled():
    scaled, other = get("self-pretraining-scaled"), get("lra-scaled")
    assert scaled.tasks == with_masked(other.tasks)
    for task in other.tasks:
        steps = [scaled.recipe(x).training.steps for x in (f"masked_{task}", task)]
        assert steps == [400, 600]
        assert sum(steps) == lra_scaled.recipe(task).training.steps
        assert other.config(task, "local").mechanism == scaled.config(task, "local").mechanism


def test_a_task_is_trained_after_its_masked_inputs(tiny_cache, tmp_path):
    changes = {**tiny.CHANGES, "training.steps": 4, "training.evaluate_every": 2}
    experiments, left_out = grid(
        "self-pretraining-scaled", tasks=["listops"], mechanisms=["local"], changes=changes
    )
    assert (len(experiments), left_out) == (2, [])
    results, failed = arena(experiments, tiny.paths(tmp_path, tiny_cache), GridCallback())
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


def test_protocols_are_registered():
    assert set(NAMES) <= set(PROTOCOLS)
