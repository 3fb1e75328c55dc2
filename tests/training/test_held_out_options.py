"""Evaluation with other options of the mechanism than training, on streams of documents."""

import dataclasses

import pytest
import torch

import toy_streams
from longspan.attention import Attention
from longspan.config import TrainingConfig
from longspan.errors import OptionError
from longspan.training import fit_stages
from longspan.training.evaluate import evaluate
from longspan.training.evaluation_options import EvaluationOptions
from longspan.training.final_evaluation import evaluate_final
from longspan.training.stages import Stage
from tiny import StopAtStep, StopError

CPU = torch.device("cpu")
SIZES = {
    "transformer_xl": {"segment": 16, "memory": 16},
    "compressive": {"segment": 16, "memory": 16, "compressed_memory": 4, "ratio": 4},
    "position_infused": {"segment": 16, "memory": 16},
}
LONGER = {
    "transformer_xl": {"segment": 8, "memory": 56, "clamp": 30, "same_length": True},
    "compressive": {"memory": 24, "compressed_memory": 16},
    "position_infused": {"memory": 40},
}
every_memory = pytest.mark.parametrize("mechanism", SIZES)


def make_model(mechanism="transformer_xl", **options):
    return toy_streams.make_decoder(
        mechanism, {**SIZES[mechanism], **options}, hidden_dropout_prob=0.1, initializer_range=0.4
    )


@pytest.fixture
def task(tmp_path):
    made = toy_streams.ToyStream()
    made.open(tmp_path / "cache")
    return made


def score(model, task, split="test", changes=None, batch_size=2):
    mechanism = model.config.attention
    with EvaluationOptions(model, mechanism, changes or {}).applied(split):
        return evaluate(model, task, split, batch_size=batch_size, device=CPU).score


@every_memory
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_longer_memory_scores_as_a_model_that_is_built_with_it(mechanism, split, task):
    model, built = make_model(mechanism), make_model(mechanism, **LONGER[mechanism])
    built.load_state_dict(model.state_dict())
    found = score(model, task, split, LONGER[mechanism])
    assert found == score(built, task, split)
    assert abs(found.loss - score(model, task, split).loss) > 1e-4


@every_memory
def test_options_of_training_give_the_same_score(mechanism, task):
    model = make_model(mechanism)
    assert score(model, task, changes=SIZES[mechanism]) == score(model, task)


def test_the_training_split_has_the_options_of_training(task):
    model = make_model()
    assert score(model, task, "train", LONGER["transformer_xl"]) == score(model, task, "train")
    where = {"batch_size": 2, "device": CPU}
    options = EvaluationOptions(model, "transformer_xl", LONGER["transformer_xl"])
    final = evaluate_final(model, task, None, options=options, **where)
    plain = evaluate_final(model, task, None, **where)
    assert final.train == plain.train
    assert final.test.score == score(model, task, changes=LONGER["transformer_xl"])
    assert plain.test.score == score(model, task)


def test_other_mechanisms_keep_their_options(task):
    model = make_model()
    before = [repr(x) for x in model.modules() if isinstance(x, Attention)]
    with EvaluationOptions(model, "local", {"window": 3}).applied("test"):
        assert [repr(x) for x in model.modules() if isinstance(x, Attention)] == before


CONFIG = TrainingConfig(
    steps=12,
    batch_size=4,
    learning_rate=1e-2,
    warmup_steps=0,
    schedule="constant",
    evaluate_every=4,
    checkpoint_every=3,
    eval_batch_size=3,
    selection="last",
)


def train(task, folder, changes, config=CONFIG, stop=None, counts=(None,)):
    """Train stages of some steps; return the outcome."""
    stages = [
        Stage(
            task=task,
            config=config if count is None else dataclasses.replace(config, steps=count),
            make_model=make_model,
            mechanism="transformer_xl",
            evaluation_changes=changes,
        )
        for count in counts
    ]
    return fit_stages(stages, seed=0, folder=folder, device="cpu", callback=StopAtStep(stop))


def weights(outcome):
    return torch.cat([x.detach().flatten() for x in outcome.network.parameters()])


def test_evaluations_in_between_change_no_weight_and_no_state(task, tmp_path):
    """Dropout, memories and the order of batches go on as if nothing was evaluated."""
    seldom = dataclasses.replace(CONFIG, evaluate_every=12)
    changes = LONGER["transformer_xl"]
    plain = train(task, tmp_path / "plain", {}, seldom)
    often = train(task, tmp_path / "often", changes)
    assert torch.equal(weights(plain), weights(often))
    for split in ("validation", "test"):
        assert often.scores[split] == score(often.network, task, split, changes, batch_size=3)
        assert plain.scores[split].loss != often.scores[split].loss
    assert often.scores["train"] == plain.scores["train"]
    assert often.curve[-1].validation_metrics == often.scores["validation"].metrics


def test_a_resumed_run_is_evaluated_alike(task, tmp_path):
    changes = LONGER["transformer_xl"]
    whole = train(task, tmp_path / "whole", changes)
    with pytest.raises(StopError):
        train(task, tmp_path / "parts", changes, stop=7)
    resumed = train(task, tmp_path / "parts", changes)
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.scores == whole.scores


def test_every_stage_is_evaluated_with_the_options(task, tmp_path):
    changes = LONGER["transformer_xl"]
    outcome = train(task, tmp_path / "run", changes, counts=(4, 8))
    alone = train(task, tmp_path / "alone", changes, dataclasses.replace(CONFIG, steps=4))
    assert outcome.curve[0].validation_metrics == alone.scores["validation"].metrics
    assert outcome.scores["test"] == score(outcome.network, task, "test", changes, batch_size=3)


def test_options_that_change_a_parameter_stop_the_run_at_its_start(task, tmp_path):
    compressed = make_model("compressive", compression="conv")
    with pytest.raises(OptionError, match=r"parameter compression\.keys has the shape"):
        EvaluationOptions(compressed, "compressive", {"ratio": 3})
    with pytest.raises(OptionError, match="memory must be an integer >= 0, got -1"):
        train(task, tmp_path / "run", {"memory": -1})
    assert not list((tmp_path / "run").glob("step-*"))
