"""Recipes of word models at a tiny size: clusters of words, stages and their schedule."""

import dataclasses
import math

import pytest

from longspan.arena import RunPaths, arena, get, override
from longspan.arena.callbacks import GridCallback
from longspan.arena.grid import find_refusal
from longspan.arena.model import model_config
from longspan.errors import OptionError
from longspan.models.adaptive import AdaptiveSoftmax
from longspan.tasks import TASKS, build
from longspan.validation import validate_records
from text_sources import VARIABLES, WIKI, write_wiki

TINY = {
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 16,
    "model.classifier_hidden_size": 16,
    "training.gradient_accumulation_steps": 1,
    "training.batch_size": 2,
    "training.warmup_steps": 1,
    "training.evaluate_every": 1,
    "training.precision": "no",
    "training.train_eval_examples": 4,
    "task.length": 16,
}
FACTOR = {"model.adaptive_factor": 2}  # 16 dimensions are too few for three times 4


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs an experiment on miniature files of WikiText-103."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def fail(*_):
        raise AssertionError("all words are scored")

    # 267,736 log-probabilities of every token.
    monkeypatch.setattr(AdaptiveSoftmax, "_log_probabilities", fail)

    def start(experiment):
        write_wiki(tmp_path / "data", "folder").rename(tmp_path / "data" / "wikitext-103")
        published = {**vars(WIKI), "folder": "wikitext-103"}
        monkeypatch.setattr(TASKS["wikitext_103"], "published_set", type(WIKI)(**published))
        paths = RunPaths(
            runs=tmp_path / "runs", cache=tmp_path / "cache", data=tmp_path / "data", device="cpu"
        )
        ((result,), failed) = arena([experiment], paths, GridCallback())
        assert failed == []
        found = [x for x in validate_records([paths.runs]).findings if "curve" in x.field]
        assert found == []
        return result

    return start


@pytest.mark.parametrize("factor", [1, 2])
def test_word_models_of_transformer_xl_run_without_logits(factor, run):
    changes = {"mechanism.segment": 16, "mechanism.memory": 16, "training.steps": 2}
    changes |= {**TINY, "model.adaptive_factor": factor}
    result = run(get("transformer-xl").row("wikitext_103", "transformer_xl", 0, changes))
    perplexity = result.scores["test"].metrics["perplexity"]
    assert perplexity == pytest.approx(math.exp(result.scores["test"].loss))
    # Half of the miniature's words are in 20,000, of which the first steps know nothing.
    assert 5_000 < perplexity < 267_736


def test_both_stages_of_shortformer_have_one_cosine(run):
    made = get("shortformer").row("wikitext_103", "staged", 0, {**TINY, **FACTOR})
    first, last = made.config.training.stages
    changes = {**first.changes, "task.length": 8, "training.batch_size": 2}
    stages = (
        dataclasses.replace(first, steps=3, changes=changes),
        dataclasses.replace(last, steps=5),
    )
    made = override(made, {"training.steps": 8, "training.stages": stages})
    result = run(made)
    rates = [point.learning_rate for point in result.curve]
    expected = [(1 + math.cos(math.pi * max(step - 1, 0) / 7)) / 2 for step in range(8)]
    assert rates == pytest.approx([2.5e-4 * x for x in expected])


@pytest.mark.parametrize(
    ("protocol", "task"),
    [("transformer-xl", "text8"), ("compressive-transformer", "pg19"), ("smoke", "text")],
)
def test_ids_in_another_order_are_refused(protocol, task):
    made = get(protocol).row(task, "local", 0, {"model.adaptive_cutoffs": [10]})
    with pytest.raises(OptionError, match=r"frequency, which .* use one of wikitext_103, wiki"):
        model_config(made.config, build(task, made.config.task.options))
    assert "adaptive_cutoffs" in str(find_refusal(made))
