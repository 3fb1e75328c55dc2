"""Recipes of language models at a tiny size: stages, memories, clusters, scores of whole runs."""

import dataclasses
import math

import pytest

import tiny
from longspan.arena import arena, get, override
from longspan.arena.callbacks import GridCallback
from longspan.arena.grid import find_refusal
from longspan.arena.model import model_config
from longspan.errors import OptionError
from longspan.models.adaptive import AdaptiveSoftmax
from longspan.tasks import TASKS, build
from longspan.validation import validate_records
from text_sources import SIZES, VARIABLES, WIKI, letters, markup, small, write_text, write_wiki

TINY = {
    "model.hidden_size": 16,
    "model.intermediate_size": 16,
    "model.classifier_hidden_size": 16,
    "training.gradient_accumulation_steps": 1,
    "training.batch_size": 2,
    "training.warmup_steps": 1,
    "training.evaluate_every": 1,
    "training.precision": "no",
}
SMALL = {**TINY, "model.num_hidden_layers": 2, "model.num_attention_heads": 2, "task.length": 16}
MEMORY = {"mechanism.segment": 16, "mechanism.memory": 16}
WORDS = {**SMALL, "model.num_hidden_layers": 1, "training.train_eval_examples": 4}
SCALE = 256  # of lengths


def write_words(data, cls, monkeypatch):
    """Write miniature files of WikiText-103, and make the task expect them."""
    write_wiki(data, "folder").rename(data / "wikitext-103")
    published = {**vars(WIKI), "folder": "wikitext-103"}
    monkeypatch.setattr(cls, "published_set", type(WIKI)(**published))


def write_characters(data, cls, monkeypatch):
    """Write a miniature file of a text, and make the task expect it."""
    content = (letters if cls.info.name == "text8" else markup)(sum(SIZES.values()))
    write_text(data, cls.info.name, content, "file")
    monkeypatch.setattr(cls, "text", small(cls.text, content))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs an experiment on miniature files."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def start(experiment):
        write = write_words if experiment.task == "wikitext_103" else write_characters
        write(tmp_path / "data", TASKS[experiment.task], monkeypatch)
        paths = tiny.paths(tmp_path / "runs", tmp_path / "cache")
        paths = dataclasses.replace(paths, data=tmp_path / "data")
        ((result,), failed) = arena([experiment], paths, GridCallback())
        assert failed == []
        found = [x for x in validate_records([paths.runs]).findings if "curve" in x.field]
        assert found == []
        return result

    return start


@pytest.fixture
def no_logits(monkeypatch):
    """Refuse the 267,736 log-probabilities of every token."""

    def fail(*_):
        raise AssertionError("all words are scored")

    monkeypatch.setattr(AdaptiveSoftmax, "_log_probabilities", fail)


def shorten(stage):
    """Return one step of a stage, on shorter segments."""
    changes = {**stage.changes}
    if "task.length" in changes:
        changes |= {"task.length": changes["task.length"] // SCALE, "training.batch_size": 2}
        changes |= {"training.evaluate_every": 1}
    return dataclasses.replace(stage, steps=1, changes=changes)


def test_five_phases_run_with_relative_positions_and_gaps(run):
    """Windows by layer and phase, and dilated heads, fit one set of weights."""
    changes = {**TINY, "model.position": "relative", "training.steps": 5, "task.length": 90}
    changes |= {"task.evaluation_length": 126, "task.stride": 20, "task.held_out_tokens": 150}
    changes["training.eval_batch_size"] = 64
    made = get("longformer-char").row("text8", "longformer", 0, changes)
    stages = tuple(shorten(stage) for stage in made.config.training.stages)
    made = override(made, {"training.stages": stages})
    assert [x.task.options["length"] for x in made.config.stages()] == [8, 16, 32, 64, 90]
    result = run(made)
    assert 4 < result.scores["test"].metrics["bits_per_character"] < 5.5


@pytest.mark.parametrize(
    ("protocol", "row"),
    [("transformer-xl", "transformer_xl"), ("compressive-transformer", "compressive")],
)
def test_memories_run(protocol, row, run):
    changes = {**SMALL, **MEMORY, "training.steps": 2}
    if row == "compressive":
        changes["mechanism.compressed_memory"] = 8
    result = run(get(protocol).row("enwik8", row, 0, changes))
    assert 7 < result.scores["test"].metrics["bits_per_byte"] < 9


def test_training_segments_of_a_run_are_scored_again(run, tmp_path):
    """Segments that follow each other, of which the state passes on; single ones were scored."""
    changes = {**SMALL, **MEMORY, "training.steps": 2, "training.train_eval_examples": 6}
    made = get("transformer-xl").row("enwik8", "transformer_xl", 0, changes)
    result, paths = run(made), tiny.paths(tmp_path / "runs", tmp_path / "cache")
    paths = dataclasses.replace(paths, data=tmp_path / "data")
    assert tiny.rescore(paths.record_file(made), "train", paths) == result.scores["train"]


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.usefixtures("no_logits")
def test_word_models_of_transformer_xl_run_without_logits(factor, run):
    changes = {**WORDS, **MEMORY, "training.steps": 2, "model.adaptive_factor": factor}
    result = run(get("transformer-xl").row("wikitext_103", "transformer_xl", 0, changes))
    perplexity = result.scores["test"].metrics["perplexity"]
    assert perplexity == pytest.approx(math.exp(result.scores["test"].loss))
    # Half of the miniature's words are in 20,000, of which the first steps know nothing.
    assert 5_000 < perplexity < 267_736


@pytest.mark.usefixtures("no_logits")
def test_both_stages_of_shortformer_have_one_cosine(run):
    # 16 dimensions are too few for three times 4
    changes = {**WORDS, "model.adaptive_factor": 2}
    made = get("shortformer").row("wikitext_103", "staged", 0, changes)
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
