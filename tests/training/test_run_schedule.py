"""One learning rate schedule over all stages: against a formula and a run without stages."""

import dataclasses
import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch

import tiny
import toy_streams
from exactness import assert_bitwise_equal
from longspan.arena.budget_resolution import scale_steps
from longspan.arena.experiment import hash_config
from longspan.config import StageConfig, TrainingConfig, replace_fields
from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.training import Callback, Stage, fit, fit_stages
from longspan.validation.training import _scheduled_stages

STEPS, TOTAL, WARMUP, PEAK = (7, 6, 8), 21, 5, 3e-3
# Linear and cubic ones end with the run as a cosine does; a constant one has no span.
SCHEDULES = ("cosine", "rsqrt", "one_cycle")


class OneBatch(toy_streams.ToyStream):
    """Stream whose training batches are all equal, so that the order of a stage is of no matter."""

    def batches(self, split, *, batch_size, seed=0, start=0, rows=None):
        """Repeat the first batch of training."""
        if split != "train" or rows is not None:
            return super().batches(split, batch_size=batch_size, start=start, rows=rows)
        batch = next(super().batches(split, batch_size=batch_size))
        return itertools.repeat(dataclasses.replace(batch, continues=None))


@pytest.fixture
def task(tmp_path):
    made = OneBatch()
    made.open(tmp_path / "cache")
    return made


def make_model():
    torch.manual_seed(3)
    return LongspanForCausalLM(
        LongspanConfig(
            vocab_size=toy_streams.ToyStream.info.vocab_size,
            hidden_size=16,
            num_hidden_layers=1,
            hidden_dropout_prob=0.0,
            attention_dropout=0.0,
            max_position_embeddings=16,
            position="rotary",
            is_decoder=True,
        )
    )


def recipe(steps, **changes):
    fields = {
        "steps": steps,
        "batch_size": 2,
        "learning_rate": PEAK,
        "warmup_steps": WARMUP,
        "schedule": "cosine",
        "schedule_over": "run",
        "evaluate_every": 4,
        "checkpoint_every": 2,
        "selection": "last",
    }
    return TrainingConfig(**{**fields, **changes})


def stages_of(task, **changes):
    return [Stage(task=task, config=recipe(x, **changes), make_model=make_model) for x in STEPS]


class Rates(Callback):
    """Callback that keeps the learning rates of the steps, and may interrupt a run."""

    def __init__(self, monkeypatch, stop=None):
        self.found, self.stop, self.last = {}, stop, None
        step = torch.optim.AdamW.step

        def recorded(optimizer, *args, **kwargs):
            self.last = {group["lr"] for group in optimizer.param_groups}
            return step(optimizer, *args, **kwargs)

        monkeypatch.setattr(torch.optim.AdamW, "step", recorded)

    def on_step(self, step, loss, tokens, seconds):
        (self.found[step],) = self.last
        if step == self.stop:
            raise KeyboardInterrupt


def train(stages, folder, callback=None):
    return fit_stages(stages, seed=0, folder=folder, device="cpu", callback=callback)


def cosine(step):
    """Return the rate of step 1, 2, ... of the whole run, by the formula."""
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (1 + math.cos(math.pi * (step - 1 - WARMUP) / (TOTAL - WARMUP))) / 2


def test_rates_of_all_stages_are_one_cosine(task, tmp_path, monkeypatch):
    rates = Rates(monkeypatch)
    outcome = train(stages_of(task), tmp_path / "run", rates)
    expected = {step: cosine(step) for step in range(1, TOTAL + 1)}
    assert rates.found == pytest.approx(expected, rel=1e-12)
    assert {x.step: x.learning_rate for x in outcome.curve} == pytest.approx(
        {x.step: expected[x.step] for x in outcome.curve}, rel=1e-12
    )


def test_by_default_every_stage_has_a_schedule_of_its_own(task, tmp_path, monkeypatch):
    rates = Rates(monkeypatch)
    train(stages_of(task, schedule_over="stage"), tmp_path / "run", rates)
    starts = (0, STEPS[0], STEPS[0] + STEPS[1])
    assert [rates.found[start + 1] for start in starts] == pytest.approx([PEAK / WARMUP] * 3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_that_change_nothing_train_as_a_run_without_any(
    schedule, task, tmp_path, monkeypatch
):
    staged, plain = Rates(monkeypatch), Rates(monkeypatch)
    one = train(stages_of(task, schedule=schedule), tmp_path / "staged", staged)
    config = recipe(TOTAL, schedule=schedule, schedule_over="stage")
    two = fit(
        make_model(), task, config, seed=0, folder=tmp_path / "plain", device="cpu", callback=plain
    )
    assert staged.found == plain.found
    assert len(staged.found) == TOTAL
    for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True):
        assert_bitwise_equal(a, b, "rerun")


def test_interrupted_runs_have_the_rates_of_uninterrupted_ones(task, tmp_path, monkeypatch):
    whole = train(stages_of(task), tmp_path / "whole")
    for stops in ((8,), (3, 7, 10, 13, 20)):
        folder, found = tmp_path / str(stops), {}
        for stop in stops:
            rates = Rates(monkeypatch, stop)
            with pytest.raises(KeyboardInterrupt):
                train(stages_of(task), folder, rates)
            found |= rates.found
        rates = Rates(monkeypatch)
        parts = train(stages_of(task), folder, rates)
        expected = {step: cosine(step) for step in range(1, TOTAL + 1)}
        assert found | rates.found == pytest.approx(expected, rel=1e-12), stops
        for a, b in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
            assert_bitwise_equal(a, b, "resumption")


def configured(over, changes=None, **fields):
    made = tiny.experiment(changes={"training.schedule_over": over, **fields}).config
    stages = (StageConfig(steps=2, changes=changes or {}), StageConfig(steps=1))
    return replace_fields(made, {"training.stages": stages})


@pytest.mark.parametrize("name", ["learning_rate", "warmup_steps", "schedule"])
def test_stages_cannot_change_a_schedule_of_the_run(name):
    value = {"learning_rate": 1e-3, "warmup_steps": 1, "schedule": "constant"}[name]
    with pytest.raises(OptionError, match=rf"got training.{name} of a stage; set them for"):
        configured("run", {f"training.{name}": value})
    configured("stage", {f"training.{name}": value})


def test_the_span_of_the_schedule_is_of_the_whole_run():
    with pytest.raises(OptionError, match=r"stage changes no training\.schedule_over"):
        StageConfig(steps=1, changes={"training.schedule_over": "run"})


def test_stages_of_a_run_keep_the_span_and_the_default_keeps_the_hash():
    assert {x.training.schedule_over for x in configured("run").stages()} == {"run"}
    plain = tiny.experiment().config
    assert hash_config(replace_fields(plain, {"training.schedule_over": "stage"})) == hash_config(
        plain
    )
    assert hash_config(replace_fields(plain, {"training.schedule_over": "run"})) != hash_config(
        plain
    )


@pytest.mark.parametrize("steps", [12, 300])
def test_a_budget_scales_one_schedule_over_all_stages(steps):
    """The rate of a scaled run ends with its last step, whatever stages it has."""
    config = configured("run", **{"training.warmup_steps": 3, "training.steps": 30})
    scaled = replace_fields(config, scale_steps(config.training, steps))
    ends = [(x.training.steps, x.training.warmup_steps) for x in scaled.stages()]
    assert ends == [(steps * 2 // 3, steps // 10), (steps // 3, steps // 10)]


@pytest.mark.parametrize("steps", [12, 300])
def test_a_budget_scales_the_warmup_and_the_interval_of_a_stage(steps):
    """A stage that kept its warmup would never reach its rate in a short run."""
    own = {"training.warmup_steps": 10, "training.evaluate_every": 5, "training.batch_size": 3}
    sizes = {"training.steps": 30, "training.warmup_steps": 0, "training.evaluate_every": 15}
    config = configured("stage", own, **sizes)
    changes = scale_steps(config.training, steps)
    assert json.loads(json.dumps(changes)) == changes
    first, last = (x.training for x in replace_fields(config, changes).stages())
    assert (first.steps, last.steps) == (steps * 2 // 3, steps // 3)
    assert (first.warmup_steps, last.warmup_steps) == (steps // 3, 0)
    assert (first.evaluate_every, last.evaluate_every) == (steps // 6, steps // 2)
    assert first.batch_size == 3
    assert "training.stages" not in scale_steps(configured("run").training, steps)


def test_records_of_staged_runs_are_checked_at_the_rates_of_their_stages():
    changes = {"training.steps": 30, "training.warmup_steps": 2, "training.evaluate_every": 8}
    for over, start in (("run", 0), ("stage", 20)):
        record = SimpleNamespace(effective_config=configured(over, **changes))
        first, last = _scheduled_stages(record)
        assert (first.evaluations(), last.evaluations()) == ([8, 16, 20], [28, 30])
        assert (last.start, last.schedule.steps) == (start, 30 - start)
