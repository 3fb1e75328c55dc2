"""Training loop: updates, precision, seeds, callbacks and failures."""

import dataclasses
import itertools
import math
import threading
import types
import warnings

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tiny
from exactness import assert_bitwise_equal
from longspan import catalog
from longspan.arena import make_model
from longspan.config import TrainingConfig
from longspan.errors import DivergedError, NonFiniteLossError, OptionError, RunError
from longspan.training import Callback, final_evaluation, inference, loop
from longspan.training.arguments import model_inputs
from longspan.training.evaluate import evaluate
from longspan.training.footprint import measure_step_memory
from longspan.training.schedule import compute_learning_rate

NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_dropout": 0.0}


@pytest.fixture
def train(listops, tmp_path):
    """Function that trains the tiny experiment with changes; returns outcome and model."""
    numbers = itertools.count()

    def trained(changes=None, seed=0, mechanism="local", callback=None, folder=None):
        experiment = tiny.experiment(mechanism, seed, changes)
        model = make_model(experiment, listops)
        folder = folder or tmp_path / str(next(numbers))
        return tiny.train(experiment, listops, folder, callback, model=model), model

    return trained


class Recorder(Callback):
    """Callback that records steps, points and alarms."""

    def __init__(self):
        self.steps, self.points, self.alarms = [], [], []

    def on_step(self, step, loss, tokens, seconds):
        self.steps.append((step, float(loss), tokens, seconds))

    def on_evaluate(self, point):
        self.points.append(point)

    def on_alarm(self, alarm):
        self.alarms.append(alarm)


def weights(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


def reproducible_fields(outcome):
    """Return the fields of an outcome that are equal in repeated runs."""
    curve = [dataclasses.replace(point, seconds=0.0) for point in outcome.curve]
    return outcome.scores, curve, outcome.steps, outcome.best_step, outcome.tokens


def test_loop_equals_adamw_on_mean_loss_of_each_batch(train, listops):
    """Compare with a minimal loop without accelerate."""
    changes = {
        **NO_DROPOUT,
        "training.selection": "last",
        "training.weight_decay": 0.1,
        "training.max_grad_norm": 0.5,
    }
    experiment = tiny.experiment(changes=changes)
    truth, recipe = make_model(experiment, listops), experiment.config.training
    optimizer = torch.optim.AdamW(truth.parameters(), eps=1e-6, weight_decay=0.1)
    losses = []
    for step, batch in zip(range(12), listops.batches("train", batch_size=4, seed=0), strict=False):
        optimizer.param_groups[0]["lr"] = compute_learning_rate(recipe, step)
        logits = truth(**model_inputs(truth, batch.inputs, torch.device("cpu"))).logits
        loss = torch.nn.functional.cross_entropy(logits, batch.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(truth.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    callback = Recorder()
    outcome, model = train(changes, callback=callback)
    torch.testing.assert_close(weights(model), weights(truth), rtol=1e-4, atol=1e-6)
    assert [loss for _, loss, _, _ in callback.steps] == pytest.approx(losses, rel=1e-5)
    means = [sum(losses[n : n + 4]) / 4 for n in (0, 4, 8)]
    assert [point.train_loss for point in outcome.curve] == pytest.approx(means, rel=1e-5)


def test_gradient_accumulation_equals_whole_batch(train, listops):
    _, whole = train(NO_DROPOUT)
    before = weights(make_model(tiny.experiment(), listops))
    for parts in (3, 4):
        _, cut = train({**NO_DROPOUT, "training.gradient_accumulation_steps": parts})
        torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-3, atol=1e-5)
    assert any(not torch.equal(x, before[name]) for name, x in weights(whole).items())


def test_clipping_bounds_gradient_norm(train, monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def spy(self, *arguments, **options):
        found = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.stack(found).norm()))
        return step(self, *arguments, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    train({"training.max_grad_norm": None})
    free, norms[:] = [*norms], []
    train({"training.max_grad_norm": 0.01})
    assert len(free) == len(norms) == 12
    assert min(free) > 0.02
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)


def test_gradient_checkpointing_with_dropout_changes_nothing(train):
    with_dropout = {"model.hidden_dropout_prob": 0.3, "model.num_hidden_layers": 2}
    plain, one = train(with_dropout)
    again, other = train({**with_dropout, "training.gradient_checkpointing": True})
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-4, atol=1e-6)
    assert plain.scores["test"].metrics["accuracy"] == again.scores["test"].metrics["accuracy"]


def test_bf16_computes_in_bfloat16_and_is_close_to_float32(train, monkeypatch):
    from longspan.attention import base

    seen, select = set(), base.select_backend

    def spy(attention, x, *rest):
        seen.add(x.q.dtype)
        return select(attention, x, *rest)

    monkeypatch.setattr(base, "select_backend", spy)
    full, _ = train(NO_DROPOUT)
    assert seen == {torch.float32}
    half, model = train({**NO_DROPOUT, "training.precision": "bf16"})
    assert torch.bfloat16 in seen
    assert model.dtype == torch.float32
    pairs = zip(full.curve, half.curve, strict=True)
    assert all(a.train_loss == pytest.approx(b.train_loss, rel=0.02) for a, b in pairs)
    assert any(a.train_loss != b.train_loss for a, b in zip(full.curve, half.curve, strict=True))
    again, _ = train(NO_DROPOUT)
    assert reproducible_fields(full) == reproducible_fields(again), "later runs are not affected"


def test_fp16_without_gpu_is_rejected(train):
    with pytest.raises(OptionError, match="precision fp16 needs a CUDA device"):
        train({"training.precision": "fp16"})


def test_nan_loss_ends_run_at_next_check_and_leaves_no_thread(train, tmp_path):
    diverging = {
        "training.learning_rate": 1e30,
        "training.schedule": "constant",
        "training.max_grad_norm": None,
    }
    message = r"the training loss is nan at step 2; lower the learning rate \(1e\+30\) or clip"
    threads = set(threading.enumerate())
    with pytest.raises(RunError, match=message):
        train({**diverging, "training.warmup_steps": 0}, folder=tmp_path / "a")
    # The first evaluation detects divergence after a step of finite loss.
    early = {"training.warmup_steps": 0, "training.evaluate_every": 1}
    with pytest.raises(RunError, match=r"the validation loss is nan at step 1; lower the"):
        train({**diverging, **early}, folder=tmp_path / "b")
    assert not list(tmp_path.rglob("step-*"))
    assert set(threading.enumerate()) <= threads


# After three evaluations during training: validation, test, train.
@pytest.mark.parametrize(
    ("successful_evaluations", "split"), [(3, "validation"), (4, "test"), (5, "train")]
)
def test_nan_loss_in_final_evaluation_ends_run(train, monkeypatch, successful_evaluations, split):
    calls, evaluate = itertools.count(), loop.evaluate

    def broken(*arguments, **options):
        if next(calls) < successful_evaluations:
            return evaluate(*arguments, **options)
        raise NonFiniteLossError(math.nan, arguments[2])

    for module in (loop, inference, final_evaluation):
        monkeypatch.setattr(module, "evaluate", broken)
    with pytest.raises(DivergedError, match=f"the {split} loss is nan at step 12; lower the"):
        train()


@pytest.mark.parametrize(
    ("mechanism", "changes"), [("performer", {"mechanism.redraw_every": 2}), ("sinkhorn", {})]
)
def test_large_seed_is_accepted(train, mechanism, changes):
    outcome, _ = train(changes, seed=20240101, mechanism=mechanism)
    assert outcome.steps == 12
    # Smaller seeds keep their draws, and no seed exceeds the range of the generator.
    assert 8_700_000 * 1_000_003 < loop.REDRAW_SEEDS < 2**63 / 1_000_004


def test_training_seconds_include_pending_device_work(train, monkeypatch):
    """Use a fake clock: each callback takes 5 s and each device synchronization 7 s."""
    now = [0.0]

    class SlowCallback(Recorder):
        def on_step(self, step, loss, tokens, seconds):
            super().on_step(step, loss, tokens, seconds)
            now[0] += 5.0

    def synchronize():
        now[0] += 7.0

    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert train(callback=SlowCallback())[0].seconds == 0.0
    monkeypatch.setattr(loop, "ASYNCHRONOUS", ("cpu",))
    # 12 steps, with a checkpoint after every second one.
    assert train(callback=SlowCallback())[0].seconds == 12 * 5.0 + 6 * 7.0


def test_model_construction_ignores_other_devices(listops, monkeypatch):
    """Detect the warning of torch on machines with several devices."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    experiment = tiny.experiment()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure_step_memory(make_model(experiment, listops), listops, experiment.config.training)
        catalog.build_sample("local", 8)


def test_runs_are_equal_if_and_only_if_seeds_are_equal(train):
    """The global random state has no influence, and is not changed."""
    torch.manual_seed(123)
    state = torch.get_rng_state()
    one, a = train()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(321)
    (two, b), (other, c) = train(), train(seed=1)
    assert reproducible_fields(one) == reproducible_fields(two)
    assert_bitwise_equal(weights(a), weights(b), "rerun")
    assert reproducible_fields(one) != reproducible_fields(other)
    assert not torch.equal(
        weights(a)["classifier.output.bias"], weights(c)["classifier.output.bias"]
    )


def test_seed_determines_dropout_and_batch_order(listops, tmp_path):
    experiment, losses = tiny.experiment(), []
    for seed in (0, 1):
        model = make_model(experiment, listops)
        seeded = dataclasses.replace(experiment, seed=seed)
        outcome = tiny.train(seeded, listops, tmp_path / str(seed), model=model)
        losses.append(outcome.curve[0].train_loss)
    assert losses[0] != losses[1]


def test_callback_receives_every_step_and_point(train, listops):
    callback = Recorder()
    outcome, _ = train(callback=callback)
    assert [step for step, *_ in callback.steps] == list(range(1, 13))
    batches = zip(range(12), listops.batches("train", batch_size=4, seed=0), strict=False)
    real = itertools.accumulate(int(batch.inputs["attention_mask"].sum()) for _, batch in batches)
    assert [tokens for _, _, tokens, _ in callback.steps] == list(real)
    seconds = [seconds for *_, seconds in callback.steps]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1] == outcome.seconds
    assert callback.points == outcome.curve
    assert [point.step for point in callback.points] == [4, 8, 12]
    rates = [compute_learning_rate(recipe(), step - 1) for step in (4, 8, 12)]
    assert [point.learning_rate for point in callback.points] == rates


def recipe() -> TrainingConfig:
    return tiny.experiment().config.training


def test_last_step_is_always_evaluated(train):
    outcome, _ = train({"training.steps": 10})
    assert [point.step for point in outcome.curve] == [4, 8, 10]


def test_training_accuracy_is_share_of_correct_predictions(train, monkeypatch, listops):
    def statistics(metrics, split, rows, logits, targets):
        correct = (torch.arange(len(targets)) % 4 == 0).double()
        return {"accuracy": torch.stack((correct, torch.ones_like(correct)), dim=-1)}

    monkeypatch.setattr(listops, "example_statistics", statistics)
    outcome, _ = train()
    assert [point.train_metrics for point in outcome.curve] == [{"accuracy": 0.25}] * 3


def test_tensorboard_log_has_curve(train, tmp_path):
    outcome, _ = train(folder=tmp_path / "run")
    log = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    log.Reload()
    curves = {
        "train/loss": [point.train_loss for point in outcome.curve],
        "train/accuracy": [point.train_metrics["accuracy"] for point in outcome.curve],
        "validation/loss": [point.validation_loss for point in outcome.curve],
        "validation/accuracy": [point.validation_metrics["accuracy"] for point in outcome.curve],
    }
    for name, values in curves.items():
        assert [event.step for event in log.Scalars(name)] == [4, 8, 12]
        assert [event.value for event in log.Scalars(name)] == pytest.approx(values)
    assert "learning_rate" in log.Tags()["scalars"]


def test_peak_memory_grows_with_batch_size(train):
    small, _ = train({"model.hidden_size": 64, "training.batch_size": 8})
    large, _ = train(
        {"model.hidden_size": 64, "training.batch_size": 160, "model.intermediate_size": 512}
    )
    if small.peak_memory is None:
        pytest.skip("the kernel keeps no count of resident memory here")
    assert large.peak_memory > small.peak_memory + 2**22


def test_score_on_validation_ends_the_training(train, listops, tmp_path, monkeypatch):
    scores = iter([0.1, 0.5, 0.5])  # two evaluations, and that of the selected model

    def scored(*given, **options):
        evaluation = evaluate(*given, **options)
        score = dataclasses.replace(evaluation.score, metrics={"accuracy": next(scores)})
        return dataclasses.replace(evaluation, score=score)

    monkeypatch.setattr(loop, "evaluate", scored)
    recorder = Recorder()
    outcome, _ = train({"training.stop_at": 0.5}, callback=recorder, folder=tmp_path / "run")
    assert [step for step, *_ in recorder.steps] == list(range(1, 9))
    assert (outcome.steps, outcome.best_step, len(outcome.curve)) == (8, 8, 2)
    assert outcome.scores["test"].num_examples == tiny.TASK["test"]
    # An interrupted run that has reached the score trains no further.
    scores = iter([0.5])
    resumed, _ = train({"training.stop_at": 0.5}, callback=recorder, folder=tmp_path / "run")
    assert (resumed.steps, len(recorder.steps)) == (8, 8)


def test_evaluations_without_a_better_score_end_the_training(train, listops, monkeypatch):
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.5])

    def scored(*given, **options):
        evaluation = evaluate(*given, **options)
        score = dataclasses.replace(evaluation.score, metrics={"accuracy": next(scores)}, loss=1.0)
        return dataclasses.replace(evaluation, score=score)

    monkeypatch.setattr(loop, "evaluate", scored)
    changes = {"training.patience": 2, "training.steps": 40}
    outcome, _ = train(changes)  # a tie with an equal loss is no better score
    assert (outcome.steps, outcome.best_step, len(outcome.curve)) == (16, 8, 4)


def test_training_without_a_validation_split_has_all_steps(train, listops, monkeypatch):
    """No score is better than another where there is none, such as of all texts of one's own."""
    sizes = {**tiny.TASK, "validation": 0}
    monkeypatch.setattr(type(listops), "size", lambda task, split: sizes[split])
    outcome, _ = train({"training.patience": 1})
    assert (outcome.steps, outcome.best_step, len(outcome.curve)) == (12, 12, 3)


def test_training_that_misses_the_score_has_all_steps(train):
    outcome, _ = train({"training.stop_at": 1.1})
    assert reproducible_fields(outcome) == reproducible_fields(train()[0])
