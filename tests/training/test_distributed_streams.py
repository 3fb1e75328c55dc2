"""Streams in two processes, each with the states of its own rows, compared with one process."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import many
import tiny
from exactness import assert_bitwise_equal
from longspan.results import load_result

SIZES = {"mechanism.segment": 16, "mechanism.memory": 16}
CHANGES = {
    **SIZES,
    "model.num_hidden_layers": 2,
    "model.position": "none",
    "training.steps": 6,
    "training.evaluate_every": 6,
    "training.checkpoint_every": 6,
    "training.batch_size": 4,
    "training.eval_batch_size": 2,
    "training.selection": "last",
    # With a large epsilon, steps of AdamW depend on the magnitude of the gradient.
    "training.adam_epsilon": 1.0,
    "training.learning_rate": 10.0,
    "training.schedule": "constant",
}
STREAM = {"mechanism": "transformer_xl", "stream": "toy_stream", "changes": CHANGES}
ACCUMULATED = {**CHANGES, "training.gradient_accumulation_steps": 2}
# At the rate of the other cases the rounding of bfloat16 grows to percents of the loss.
BF16 = {**CHANGES, "training.precision": "bf16", "training.learning_rate": 1.0}
LONGER_MEMORY = {**CHANGES, "evaluation.memory": 48}
# The letters of the toy are around 100.
ADAPTIVE = {**CHANGES, "model.adaptive_cutoffs": [100, 103]}
WORDS = {**STREAM, "stream": "toy_words", "changes": ADAPTIVE}
# The second stage loads the weights at the end of the first before they are sharded.
STAGES = [{"steps": 4, "changes": {"mechanism.memory": 8}}, {"steps": 4}]
STAGED = {**CHANGES, "training.stages": STAGES}
CASES = {
    "ddp": {**STREAM, "changes": ACCUMULATED},
    "stages, fsdp": {**STREAM, "parallel": "fsdp", "changes": STAGED},
    "bf16": {**STREAM, "changes": BF16},
    "longer memory in evaluation": {**STREAM, "parallel": "fsdp", "changes": LONGER_MEMORY},
    "adaptive softmax, ddp": WORDS,
    "adaptive softmax, fsdp": {**WORDS, "parallel": "fsdp"},
}

pytestmark = pytest.mark.usefixtures("registries")


def assign_folders(cases, root):
    cache = str(root / "cache")
    return {x: {**case, "cache": cache, "runs": str(root / x)} for x, case in cases.items()}


def outcome(case):
    """Return the record of a run and its weights."""
    (path,) = Path(case["runs"]).rglob("toy_*/*-0.json")
    (best,) = Path(case["runs"]).rglob("*/work/*/*/model.safetensors")
    return load_result(path), load_file(best)


def test_two_processes_train_on_a_stream_like_one(tmp_path):
    cases, references = (assign_folders(CASES, tmp_path / x) for x in ("two", "one"))
    for reference in references.values():
        many.run_case(reference)
    many.launch(tiny.server(), 2, list(cases.values()), tmp_path)
    for name, case in cases.items():
        (one, weights), (other, expected) = outcome(case), outcome(references[name])
        assert (one.world_size, other.world_size) == (2, 1)
        is_rounded = name == "bf16"  # gradients of half the rows, before they are added
        for split, score in one.scores.items():
            assert score.num_targets == other.scores[split].num_targets
            assert score.loss == pytest.approx(
                other.scores[split].loss, rel=1e-2 if is_rounded else 3e-5
            )
        if not is_rounded:
            torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-5)
    losses = {x: outcome(case)[0].scores["test"].loss for x, case in references.items()}
    # The memory is used: without it, or with a longer one, the loss is another one.
    more = {"plain": STREAM, "fresh": {**STREAM, "options": {"keep_state": "none"}}}
    for name, case in assign_folders(more, tmp_path / "one").items():
        many.run_case(case)
        losses[name] = outcome(case)[0].scores["test"].loss
    for name in ("fresh", "longer memory in evaluation"):
        assert losses[name] != pytest.approx(losses["plain"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_killed_stream_of_two_processes_resumes_exactly(tmp_path, parallelism):
    changes = {
        **CHANGES,
        "training.steps": 12,
        "training.checkpoint_every": 3,
        "model.hidden_dropout_prob": 0.2,
    }
    case = {**STREAM, "parallel": parallelism, "changes": changes}
    cases = assign_folders({"killed": case, "truth": case}, tmp_path)
    started = many.start(tiny.server(), 2, [{**cases["killed"], "kill": 8}], tmp_path)
    assert many.join(started)[0] == [-signal.SIGKILL, 1]
    many.launch(tiny.server(), 2, list(cases.values()), tmp_path)
    (one, weights), (other, expected) = outcome(cases["killed"]), outcome(cases["truth"])
    assert one.scores == other.scores
    assert_bitwise_equal(weights, expected, "resumption")
