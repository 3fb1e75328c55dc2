"""Every head from the batches of a task to a record."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tiny
import toy_heads
from flop_counter import flop_counter
from longspan.arena import make_model, run
from longspan.arena.model import forward_flops
from longspan.config import TaskConfig
from longspan.results import load_results
from longspan.tasks import register
from longspan.tasks.batching import count_tokens
from longspan.training.arguments import model_inputs
from longspan.training.evaluate import evaluate
from longspan.training.footprint import make_dummy_batch, measure_step_memory

CPU = torch.device("cpu")
GLOBAL = {"num_global": 2}


@pytest.fixture
def toys(registries):
    """Register the small tasks."""
    for cls in toy_heads.TOYS:
        register(cls)


def experiment(cls, mechanism="local", options=None, changes=None):
    """Return an experiment of the smoke protocol's recipe on a small task."""
    base = tiny.experiment(mechanism, changes=changes)
    values = {**dataclasses.asdict(cls.Options()), **(options or {})}
    task = TaskConfig(name=cls.info.name, version=1, options=values)
    return dataclasses.replace(base, config=dataclasses.replace(base.config, task=task))


def opened(cls, cache, options=None):
    task = cls(cls.Options(**(options or {})))
    task.open(cache)
    return task


@pytest.mark.parametrize("mechanism", ["local", "linear"])
@pytest.mark.parametrize("cls", toy_heads.TOYS)
def test_score_of_every_head_has_the_loss_of_its_model(toys, tmp_path, cls, mechanism):
    task = opened(cls, tmp_path, GLOBAL)
    model = make_model(experiment(cls, mechanism, GLOBAL), task).eval()
    (batch,) = task.batches("validation", batch_size=12)
    inputs = model_inputs(model, batch.inputs, CPU)
    with torch.no_grad():
        expected = model(**inputs, **task.label_arguments(batch.targets)).loss.item()
    score = evaluate(model, task, "validation", batch_size=12, device=CPU).score
    assert score.loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("cls", toy_heads.TOYS)
def test_run_of_every_head_is_recorded(toys, tmp_path, cls):
    paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
    made = experiment(cls, options=GLOBAL, changes={"training.gradient_accumulation_steps": 2})
    result = run(made, opened(cls, paths.cache, GLOBAL), paths)
    (record,) = load_results([paths.runs])
    assert record.config == made.config
    assert result.scores["test"].num_examples == toy_heads.SIZES["test"]


@pytest.mark.parametrize("cls", toy_heads.TOYS)
def test_global_tokens_are_for_mechanisms_that_have_them(toys, tmp_path, cls):
    task = opened(cls, tmp_path, GLOBAL)
    batch = next(task.batches("train", batch_size=3))
    for mechanism, supported in (("local", True), ("linear", False)):
        model = make_model(experiment(cls, mechanism, GLOBAL), task)
        inputs = model_inputs(model, batch.inputs, CPU)
        assert any("global" in name for name in inputs) == supported


def test_global_tokens_change_the_logits(toys, tmp_path):
    cls = toy_heads.ToyLabels
    logits = {}
    for count in (0, 2):
        options = {"num_global": count}
        task = opened(cls, tmp_path, options)
        changed = experiment(cls, options=options, changes={"mechanism.window": 2})
        model = make_model(changed, task).eval()
        (batch,) = task.batches("test", batch_size=10)
        logits[count] = model(**model_inputs(model, batch.inputs, CPU)).logits
    assert not torch.allclose(logits[0], logits[2])


@pytest.mark.parametrize("cls", toy_heads.TOYS)
def test_flops_of_every_head_equal_torch_counter(toys, cls):
    task = cls()
    made = experiment(cls, "full")
    model, inputs = make_model(made, task).eval(), make_dummy_batch(task, 1)
    counter = flop_counter()
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        model(**model_inputs(model, inputs, CPU))
    counted = counter.get_total_flops()
    if isinstance(task, toy_heads.ToyRetrieval):
        counted -= 2 * made.config.model.hidden_size * 2  # similarities of two documents
    if isinstance(task, toy_heads.ToyTextToText):
        # The counter takes causal attention for a full square: 5 * 4 / 2 pairs more.
        counted -= 4 * made.config.model.hidden_size * 10
    assert forward_flops(made.config, task) == counted


@pytest.mark.parametrize("cls", toy_heads.TOYS)
def test_dummy_batches_have_the_shape_of_the_longest_examples(toys, tmp_path, cls):
    task = opened(cls, tmp_path, GLOBAL)
    longest = max(
        task.batches("train", batch_size=8, rows=np.arange(48)), key=lambda x: x.num_tokens
    )
    dummy = make_dummy_batch(task, len(longest.rows))
    wanted = {**longest.inputs, **task.label_arguments(longest.targets)}
    wanted.pop("support_weight", None)
    assert {k: x.shape for k, x in dummy.items()} == {k: x.shape for k, x in wanted.items()}
    masks = [x for k, x in dummy.items() if "attention_mask" in k and "global" not in k]
    assert len(longest.rows) * count_tokens(task.input_shapes) == sum(
        mask.numel() for mask in masks
    )
    made = experiment(cls, options=GLOBAL)
    assert measure_step_memory(make_model(made, task), task, made.config.training).working > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_random_changes_of_a_batch_follow_from_seed_and_number(toys, tmp_path, seed):
    task = opened(toy_heads.ToyMasked, tmp_path)
    whole = task.batches("train", batch_size=8, seed=seed)
    batches = [next(whole) for _ in range(9)]
    resumed = next(task.batches("train", batch_size=8, seed=seed, start=8))
    ids = batches[8].inputs["input_ids"]
    assert resumed.inputs["input_ids"].equal(ids)
    other = next(task.batches("train", batch_size=8, seed=2))
    assert not ids.equal(other.inputs["input_ids"])
