"""Recipes of language models at a tiny size: stages, memories and scores of whole runs."""

import dataclasses

import pytest

from longspan.arena import RunPaths, arena, get, override
from longspan.arena.callbacks import GridCallback
from longspan.tasks import TASKS
from text_sources import SIZES, VARIABLES, letters, markup, small, write_text

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
MEMORY = {"mechanism.segment": 16, "mechanism.memory": 16}
SCALE = 256  # of lengths


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Function that runs an experiment on a miniature file."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)

    def start(experiment):
        cls = TASKS[experiment.task]
        content = (letters if experiment.task == "text8" else markup)(sum(SIZES.values()))
        write_text(tmp_path / "data", experiment.task, content, "file")
        monkeypatch.setattr(cls, "text", small(cls.text, content))
        paths = RunPaths(
            runs=tmp_path / "runs", cache=tmp_path / "cache", data=tmp_path / "data", device="cpu"
        )
        ((result,), failed) = arena([experiment], paths, GridCallback())
        assert failed == []
        return result

    return start


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
    changes = {**TINY, **MEMORY, "model.num_hidden_layers": 2, "model.num_attention_heads": 2}
    changes |= {"training.steps": 2, "task.length": 16}
    if row == "compressive":
        changes["mechanism.compressed_memory"] = 8
    result = run(get(protocol).row("enwik8", row, 0, changes))
    assert 7 < result.scores["test"].metrics["bits_per_byte"] < 9
