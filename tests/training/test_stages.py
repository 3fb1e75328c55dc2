"""Staged training: against plain loops, one for each stage, and interrupted anywhere."""

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F

import toy_streams
from exactness import assert_bitwise_equal
from longspan.config import StageConfig, TrainingConfig
from longspan.errors import OptionError, RunError
from longspan.models import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
from longspan.training import Callback, Stage, fit, fit_stages
from longspan.training.stage_weights import load_checkpoint

LENGTHS, STEPS = (8, 16), (10, 14)


def make_model(length, position="rotary", width=16, **fields):
    torch.manual_seed(3)
    mixing = {"attention": "local", "attention_options": {"window": length // 2}} | fields
    return LongspanForCausalLM(
        LongspanConfig(
            **mixing,
            vocab_size=toy_streams.ToyStream.info.vocab_size,
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.0,
            attention_dropout=0.0,
            max_position_embeddings=length,
            position=position,
            is_decoder=True,
            initializer_range=0.2,
        )
    )


def recipe(number, **changes):
    fields = {
        "steps": STEPS[number],
        "batch_size": (4, 3)[number],
        "learning_rate": (1e-2, 3e-3)[number],
        "warmup_steps": 2,
        "schedule": "linear",
        "evaluate_every": 5,
        "checkpoint_every": 4,
        "selection": "last",
    }
    return TrainingConfig(**{**fields, **changes})


@pytest.fixture
def tasks(tmp_path):
    made = []
    for length in LENGTHS:
        task = toy_streams.ToyStream(toy_streams.ToyStream.Options(length=length))
        task.open(tmp_path / "cache")
        made.append(task)
    return made


def make_stages(tasks, position="rotary", keep_optimizer=True, **changes):
    return [
        Stage(
            task=task,
            config=recipe(number, **changes),
            make_model=lambda length=LENGTHS[number]: make_model(length, position),
            keep_optimizer=keep_optimizer,
        )
        for number, task in enumerate(tasks)
    ]


class Losses(Callback):
    """Callback that keeps the losses, and may interrupt a run."""

    def __init__(self, stop=None):
        self.losses, self.stop = {}, stop

    def on_step(self, step, loss, tokens, seconds):
        self.losses[step] = float(loss)
        if step == self.stop:
            raise KeyboardInterrupt


def train(stages, folder, callback=None):
    return fit_stages(stages, seed=0, folder=folder, device="cpu", callback=callback)


def losses_by_hand(tasks, keep_optimizer, position="rotary"):
    """Train both stages without the loop."""
    from longspan.training.schedule import compute_learning_rate
    from longspan.training.stages import stage_seed

    found, model, moments = [], None, None
    for number, task in enumerate(tasks):
        config, trained = recipe(number), model
        model = make_model(LENGTHS[number], position)
        if trained is not None:
            weights = trained.state_dict()
            if position == "learned":
                name = "model.embeddings.positions.weight"
                weights[name] = torch.cat([weights[name], weights[name]])
            model.load_state_dict(weights)
        optimizer = torch.optim.AdamW(model.parameters(), eps=config.adam_epsilon, weight_decay=0.0)
        if moments is not None and keep_optimizer:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments["state"]})
        batches = task.batches("train", batch_size=config.batch_size, seed=stage_seed(0, number))
        for step, batch in enumerate(itertools.islice(batches, config.steps)):
            for group in optimizer.param_groups:
                group["lr"] = compute_learning_rate(config, step)
            logits = model(**batch.inputs).logits
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        moments = optimizer.state_dict()
    return found


@pytest.mark.parametrize("keep_optimizer", [True, False])
def test_stages_train_as_plain_loops_that_follow_each_other(keep_optimizer, tasks, tmp_path):
    callback = Losses()
    stages = make_stages(tasks, keep_optimizer=keep_optimizer)
    outcome = train(stages, tmp_path / "run", callback)
    expected = losses_by_hand(tasks, keep_optimizer)
    found = [callback.losses[step] for step in range(1, sum(STEPS) + 1)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert outcome.steps == sum(STEPS)
    assert [point.step for point in outcome.curve] == [5, 10, 15, 20, 24]
    assert outcome.network.config.max_position_embeddings == LENGTHS[1]


def test_moments_matter(tasks):
    assert losses_by_hand(tasks, True)[-1] != pytest.approx(losses_by_hand(tasks, False)[-1])


def test_an_interrupted_run_ends_as_an_uninterrupted_one(tasks, tmp_path):
    whole = train(make_stages(tasks), tmp_path / "whole")
    for stops in ((11,), (5, 10, 13, 22), (24,)):
        folder = tmp_path / str(stops)
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                train(make_stages(tasks), folder, Losses(stop))
        parts = train(make_stages(tasks), folder)
        assert parts.scores == whole.scores, stops
        assert [x.train_loss for x in parts.curve] == [x.train_loss for x in whole.curve], stops
        for one, two in zip(whole.network.parameters(), parts.network.parameters(), strict=True):
            assert_bitwise_equal(one, two, "resumption")


def test_learned_positions_are_repeated_for_longer_stages(tasks, tmp_path):
    """Rows of the longer table have no moments yet, so those of the table start at zero."""
    stages = make_stages(tasks, position="learned")
    train(stages[:1], tmp_path / "run")
    callback = Losses()
    train(stages, tmp_path / "both", callback)
    expected = losses_by_hand(tasks, keep_optimizer=False, position="learned")
    first = STEPS[0]
    assert callback.losses[first + 1] == pytest.approx(expected[first], rel=1e-4)


def test_the_last_stage_selects_the_checkpoint(tasks, tmp_path):
    outcome = train(make_stages(tasks, selection="best validation"), tmp_path / "run")
    late = [x for x in outcome.curve if x.step > STEPS[0]]
    best = min(late, key=lambda x: x.validation_metrics["bits_per_byte"])
    assert outcome.best_step == best.step


@pytest.mark.parametrize("mechanism", ["reformer", "bigbird"])
def test_drawn_buffers_of_another_shape_are_those_of_the_new_stage(mechanism, tasks, tmp_path):
    """The number of hashes, and of random blocks, follows from the length."""
    options = {"reformer": {"chunk": 2}, "bigbird": {"block": 2}}[mechanism]

    def make(length):
        return make_model(length, attention=mechanism, attention_options=options)

    before, after = (
        {name: x for name, x in make(length).named_buffers() if "cos" not in name}
        for length in LENGTHS
    )
    other = [name for name in before if before[name].shape != after[name].shape]
    assert other
    stages = [
        Stage(task=task, config=recipe(n), make_model=functools.partial(make, LENGTHS[n]))
        for n, task in enumerate(tasks)
    ]
    outcome = train(stages, tmp_path / "run")
    assert outcome.steps == sum(STEPS)
    found = dict(outcome.network.named_buffers())
    for name in other:
        assert_bitwise_equal(found[name], after[name], "copy")


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_shorter_stage_has_the_first_rows_of_the_table(position, tmp_path):
    """All other weights are those of the checkpoint."""
    folder = tmp_path / "long"
    long = make_model(16, position, attention_options={"window": 4})
    long.save_pretrained(folder)
    short = make_model(8, position, attention_options={"window": 4})
    with torch.no_grad():
        for x in short.parameters():
            x.zero_()
    record = load_checkpoint(short, folder, extend_positions="tile", is_same_task=True)
    assert (record.new, record.dropped) == ([], [])
    expected = {"learned": "first 8 of 16 rows", "rotary": None}
    assert record.positions == expected[position]
    weights = long.state_dict()
    for name, x in short.state_dict().items():
        assert_bitwise_equal(x, weights[name][: len(x)], name)


def test_the_head_of_numbers_is_that_of_one_task_alone(tmp_path):
    config = {"vocab_size": 9, "hidden_size": 16, "num_labels": 1, "problem_type": "regression"}
    model = LongspanForSequenceClassification(LongspanConfig(**config))
    model.save_pretrained(tmp_path)
    for is_same_task in (True, False):
        other = LongspanForSequenceClassification(LongspanConfig(**config))
        record = load_checkpoint(other, tmp_path, is_same_task=is_same_task)
        heads = {name for name in model.state_dict() if not name.startswith("model.")}
        expected = set() if is_same_task else heads
        assert set(record.new) == set(record.dropped) == expected


def test_weights_of_another_shape_are_refused(tasks, tmp_path):
    stages = make_stages(tasks)
    wider = Stage(task=tasks[1], config=recipe(1), make_model=lambda: make_model(16, width=32))
    with pytest.raises(OptionError, match=r"stage 2 has other weights.*hidden_size is 16 there"):
        train([stages[0], wider], tmp_path / "run")


def test_fit_refuses_stages_that_it_would_leave_out(tasks, tmp_path):
    config = recipe(0, stages=(StageConfig(steps=1), StageConfig(steps=2)))
    with pytest.raises(OptionError, match="fit trains one stage, and the configuration has 2"):
        fit(make_model(LENGTHS[0]), tasks[0], config, seed=0, folder=tmp_path, device="cpu")


def test_a_checkpoint_of_a_later_stage_is_refused(tasks, tmp_path):
    stages = make_stages(tasks)
    with pytest.raises(KeyboardInterrupt):
        train(stages, tmp_path / "run", Losses(20))
    with pytest.raises(RunError, match="is of stage 2, the run has 1"):
        train(stages[:1], tmp_path / "run")
