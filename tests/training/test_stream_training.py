"""Training and evaluation on streams: against plain loops that carry the state by hand."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import toy_streams
from exactness import assert_bitwise_equal
from longspan.config import TrainingConfig
from longspan.tasks import IGNORE
from longspan.tasks.batching import find_mask
from longspan.training import Callback, fit
from longspan.training.distributed.group import SINGLE_PROCESS, RowShard
from longspan.training.evaluate import evaluate, warm_up
from longspan.training.stream_state import StreamState
from thread_group import run_in_threads

CPU = torch.device("cpu")
OPTIONS = {
    "transformer_xl": {"segment": 16, "memory": 16},
    "compressive": {"segment": 16, "memory": 16, "compressed_memory": 8, "ratio": 4},
    "position_infused": {"segment": 16, "memory": 16},
    "local": {"window": 8},
    "linear": {},
    "full": {},
}


def make_model(mechanism="transformer_xl", dropout=0.0, convolution=0, **options):
    return toy_streams.make_decoder(
        mechanism,
        {**OPTIONS[mechanism], **options},
        hidden_dropout_prob=dropout,
        attention_dropout=dropout,
        position="none" if mechanism in list(OPTIONS)[:3] else "rotary",
        initializer_range=0.2,
        short_convolution=convolution,
    )


@pytest.fixture
def task(tmp_path):
    made = toy_streams.ToyStream()
    made.open(tmp_path / "cache")
    return made


def keep_all(tmp_path, **options):
    made = toy_streams.ToyStream(toy_streams.ToyStream.Options(keep_state="all", **options))
    made.open(tmp_path / "cache")
    return made


def nats_of_documents(model, split):
    """Return the sum of all nats of a split, each document in one call."""
    total, count = 0.0, 0
    model.eval()
    for text in toy_streams.documents(split):
        ids = torch.from_numpy(text.astype("int64"))[None]
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits
        total += float(F.cross_entropy(logits[0], ids[0, 1:], reduction="sum"))
        count += len(text) - 1
    return total, count


@pytest.mark.parametrize("mechanism", OPTIONS)
def test_segments_with_state_score_as_whole_documents(mechanism, tmp_path):
    model, task = make_model(mechanism), keep_all(tmp_path)
    found = evaluate(model, task, "test", batch_size=1, device=CPU)
    total, count = nats_of_documents(model, "test")
    assert found.score.num_targets == count
    assert found.score.loss == pytest.approx(total / count, rel=1e-5)
    assert found.score.metrics["bits_per_byte"] == pytest.approx(
        total / count / math.log(2), rel=1e-5
    )


@pytest.mark.parametrize(("mechanism", "keeps"), [("transformer_xl", True), ("local", False)])
def test_by_default_recurrent_mechanisms_alone_keep_a_state(task, mechanism, keeps):
    model = make_model(mechanism)
    with_state = evaluate(model, task, "test", batch_size=1, device=CPU).score.loss
    fresh = total = 0.0
    for batch in task.batches("test", batch_size=1):
        logits = model.eval()(
            batch.inputs["input_ids"], attention_mask=find_mask(batch.inputs, "input_ids")
        ).logits
        fresh += float(F.cross_entropy(logits[0].detach(), batch.targets[0], reduction="sum"))
        total += int((batch.targets != IGNORE).sum())
    assert (abs(with_state - fresh / total) > 1e-4) == keeps


@pytest.mark.parametrize("batch_size", [2, 5, 9])
def test_rows_that_end_earlier_leave_the_others_unchanged(task, batch_size):
    """The walks of several rows, each followed by hand with a state of its own."""
    model = make_model().eval()
    found = evaluate(model, task, "test", batch_size=batch_size, device=CPU)
    states, nats = [None] * batch_size, torch.zeros(task.size("test"))
    for batch in task.batches("test", batch_size=batch_size):
        for line, row in enumerate(batch.rows.tolist()):
            real = int(find_mask(batch.inputs, "input_ids")[line].sum())
            past = states[line] if batch.continues[line] else None
            output = model(
                batch.inputs["input_ids"][line : line + 1, :real], cache=past, use_cache=True
            )
            states[line] = output.cache
            nats[row] = F.cross_entropy(
                output.logits[0], batch.targets[line, :real], reduction="sum"
            ).detach()
    torch.testing.assert_close(
        torch.from_numpy(found.statistics[:, 0]).float(), nats, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("mechanism", "keeps"), [("transformer_xl", True), ("local", False)])
def test_warm_up_runs_as_the_evaluation_does(task, mechanism, keeps):
    """Models that pass no state on return none: a cache would count as memory of inference."""
    model, given = make_model(mechanism), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs.get("use_cache")), with_kwargs=True
    )
    warm_up(model, task, "test", batch_size=2, device=CPU)
    assert given == [keeps]


def recipe(**changes):
    fields = {
        "steps": 16,
        "batch_size": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "schedule": "constant",
        "evaluate_every": 8,
        "checkpoint_every": 5,
        "eval_batch_size": 3,
        "selection": "last",
    }
    return TrainingConfig(**{**fields, **changes})


def reference_losses(model, task, config, auxiliary=False):
    """Train as `fit` does, by hand; return the losses."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    for group in optimizer.param_groups:
        group["eps"] = config.adam_epsilon
    state, losses = None, []
    batches = task.batches("train", batch_size=config.batch_size)
    for batch in itertools.islice(batches, config.steps):
        if state is not None:
            state = model.model.clear_rows(state, ~batch.continues)
        output = model(
            batch.inputs["input_ids"],
            find_mask(batch.inputs, "input_ids"),
            cache=state,
            use_cache=True,
        )
        state = output.cache.detach()
        loss = F.cross_entropy(output.logits.flatten(0, 1), batch.targets.flatten())
        total = loss
        if auxiliary and output.auxiliary_loss is not None:
            total = loss + output.auxiliary_loss
        total.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Losses(Callback):
    """Callback that keeps the losses, and may interrupt a run."""

    def __init__(self, stop=None):
        self.losses, self.stop = [], stop

    def on_step(self, step, loss, tokens, seconds):
        self.losses.append(float(loss))
        if step == self.stop:
            raise KeyboardInterrupt


def train(model, task, folder, config=None, callback=None):
    return fit(
        model, task, config or recipe(), seed=0, folder=folder, device="cpu", callback=callback
    )


@pytest.mark.parametrize("mechanism", ["transformer_xl", "compressive"])
def test_training_carries_the_state_and_learns_from_auxiliary_losses(mechanism, task, tmp_path):
    callback = Losses()
    trained = make_model(mechanism)
    train(trained, task, tmp_path / "run", callback=callback)
    by_hand = make_model(mechanism)
    expected = reference_losses(by_hand, task, recipe(), auxiliary=True)
    torch.testing.assert_close(
        torch.tensor(callback.losses), torch.tensor(expected), rtol=2e-4, atol=2e-4
    )
    for one, two in zip(trained.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("learns", [True, False])
def test_compression_learns_from_its_auxiliary_loss_alone(learns, task, tmp_path):
    fresh, trained = (make_model("compressive", compression="conv") for _ in range(2))
    if learns:
        train(trained, task, tmp_path / "run")
    else:
        reference_losses(trained, task, recipe())
    pairs = zip(fresh.named_parameters(), trained.parameters(), strict=True)
    equal = {name: torch.equal(one, two) for (name, one), two in pairs if "compression" in name}
    assert set(equal.values()) == {not learns}


def test_an_interrupted_run_ends_as_an_uninterrupted_one(task, tmp_path):
    config = recipe(gradient_accumulation_steps=2)
    whole = make_model("compressive", 0.1)
    expected = train(whole, task, tmp_path / "whole", config)
    for stop in (4, 13):
        with pytest.raises(KeyboardInterrupt):
            train(
                make_model("compressive", 0.1), task, tmp_path / "parts", config, Losses(stop=stop)
            )
    resumed = make_model("compressive", 0.1)
    found = train(resumed, task, tmp_path / "parts", config)
    assert found.scores == expected.scores
    for one, two in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert_bitwise_equal(one, two, "resumption")


def test_microbatches_carry_their_own_rows(task, tmp_path):
    one, two = Losses(), Losses()
    train(make_model(), task, tmp_path / "one", callback=one)
    config = recipe(gradient_accumulation_steps=3)
    train(make_model(), task, tmp_path / "three", config, two)
    torch.testing.assert_close(
        torch.tensor(one.losses), torch.tensor(two.losses), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("convolution", [0, 3])
def test_a_state_survives_its_form_in_a_checkpoint(task, convolution):
    model = make_model("compressive", convolution=convolution).eval()
    state = StreamState(model, task)
    batches = list(itertools.islice(task.batches("train", batch_size=3), 3))
    shard = RowShard(slice(0, 3), 1)
    for batch in batches[:2]:
        state.store(shard, model(batch.inputs["input_ids"], **state.arguments(batch, shard)))
    saved = {**state.gather(SINGLE_PROCESS), "other": torch.zeros(1)}
    restored = StreamState(model, task)
    restored.restore(saved, SINGLE_PROCESS)
    assert list(saved) == ["other"]
    before, after = state.states[0], restored.states[0]
    for one, two in zip(before.layers, after.layers, strict=True):
        assert (one.state.length, one.state.reach) == (two.state.length, two.state.reach)
        assert_bitwise_equal(two.state.state, one.state.state, "copy")
    logits = [
        model(batches[2].inputs["input_ids"], **x.arguments(batches[2], shard)).logits
        for x in (state, restored)
    ]
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_keep_the_state_of_their_own_rows(processes, task):
    """The last batch has fewer rows, and then fewer than there are processes."""
    model = make_model().eval()
    expected = evaluate(model, task, "test", batch_size=5, device=CPU)
    assert task.size("test") % 5 not in (0, processes)

    def score(group):
        return evaluate(copy.deepcopy(model), task, "test", batch_size=5, device=CPU, group=group)

    for found in run_in_threads(processes, score):
        assert found.score.loss == pytest.approx(expected.score.loss, rel=1e-6)
        np.testing.assert_allclose(found.statistics, expected.statistics, rtol=1e-5)


def test_each_process_restores_its_own_state(task):
    model = make_model().eval()
    batch = next(task.batches("train", batch_size=5))

    def saved_and_restored(group):
        (shard,) = group.shard_rows(5)
        state = StreamState(copy.deepcopy(model), task)
        rows = batch.inputs["input_ids"][shard.rows]
        state.store(shard, state.model(rows, **state.arguments(batch, shard)))
        restored = StreamState(copy.deepcopy(model), task)
        restored.restore(state.gather(group), group)
        return [x.states[shard.rows.start].layers[0].state.state["k"] for x in (state, restored)]

    before, after = zip(*run_in_threads(2, saved_and_restored), strict=True)
    for one, two in zip(before, after, strict=True):
        assert_bitwise_equal(one, two, "copy")
    assert [len(x) for x in before] == [2, 3]


def test_another_number_of_processes_begins_without_state(task, logged):
    model = make_model().eval()
    batch = next(task.batches("train", batch_size=4))
    shard = RowShard(slice(0, 4), 1)
    state = StreamState(model, task)
    state.store(shard, model(batch.inputs["input_ids"], **state.arguments(batch, shard)))
    saved = state.gather(SINGLE_PROCESS)
    saved["stream.1"] = saved["stream.0"]
    restored = StreamState(model, task)
    restored.restore(saved, SINGLE_PROCESS)
    assert not restored.states
    assert "state of 2 processes, the run has 1" in logged.text
