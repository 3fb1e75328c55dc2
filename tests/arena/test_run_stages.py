"""Stages that cannot follow each other are refused before the first one."""

import pytest

import tiny
import toy_streams
from longspan.arena import get, override
from longspan.arena.grid import find_refusal
from longspan.arena.protocols import Protocol, Recipe
from longspan.arena.stages import check_stages
from longspan.config import ModelConfig, StageConfig, TrainingConfig
from longspan.errors import OptionError
from longspan.tasks import TASKS, register


@pytest.fixture
def experiment(registries):
    """Function that returns an experiment on a stream, with stages and changed fields."""
    if "toy_stream" not in TASKS:
        register(toy_streams.ToyStream)

    def recipe(task):
        model = ModelConfig(**{**tiny.MODEL, "num_hidden_layers": 2})
        return Recipe({"length": 32}, model, TrainingConfig(**tiny.TRAIN, schedule="constant"))

    protocol = Protocol(
        name="stages", summary="", source="a test", tasks=("toy_stream",), differs="",
        recipe=recipe, mechanism_options={},
    )  # fmt: skip

    def make(mechanism, *stages, **changes):
        made = protocol.experiment("toy_stream", mechanism, 0)
        return (
            override(made, {**changes, "training.stages": stages})
            if stages
            else override(made, changes)
        )

    return make


LAST = StageConfig(steps=1)


@pytest.mark.parametrize(
    ("mechanism", "changes", "message"),
    [
        ("synthesizer", {"task.length": 64}, r"stage 2 has other weights .* differ in task.length"),
        ("longformer", {"mechanism.window": [4, 4, 4]}, r"stage 1: .* for each of the 2 layers, g"),
        (
            "local",
            {"mechanism.window": [4, 4]},
            r"stage 1: .*window must be an integer >= 0, got \[4",
        ),
        ("local", {"task.length": 0}, "stage 1: length should be greater than 0, got 0"),
    ],
)
def test_stages_that_cannot_be_trained_are_named(experiment, mechanism, changes, message):
    made = experiment(mechanism, StageConfig(steps=1, changes=changes), LAST)
    with pytest.raises(OptionError, match=message):
        check_stages(made.config, TASKS["toy_stream"](TASKS["toy_stream"].Options(length=32)))
    assert find_refusal(made) is not None


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_stages_of_other_lengths_and_windows_fit(experiment, position):
    for length in (8, 64):
        changes = {"task.length": length, "mechanism.window": length // 2}
        made = experiment(
            "local", StageConfig(steps=1, changes=changes), LAST, **{"model.position": position}
        )
        assert find_refusal(made) is None


@pytest.mark.parametrize(
    ("protocol", "task", "row"),
    [
        ("shortformer", "wikitext_103", "staged"),
        ("longformer-char", "text8", "longformer-small"),
        ("long-short-char", "text8", "long_short"),
    ],
)
def test_published_stages_fit(protocol, task, row):
    made = get(protocol).row(task, row, 0)
    assert len(made.config.stages()) > 1
    assert find_refusal(made) is None


def test_positions_that_end_are_refused_where_a_state_goes_on(experiment):
    learned = {"model.position": "learned"}
    for mechanism, changes in (("transformer_xl", {}), ("full", {"task.keep_state": "all"})):
        found = find_refusal(experiment(mechanism, **learned, **changes))
        assert found.startswith("model.position=learned ends at 32 tokens")
        assert "set model.position=rotary or sinusoidal, or task.keep_state=none" in found
        assert find_refusal(experiment(mechanism, **learned, **{"task.keep_state": "none"})) is None
    table = find_refusal(experiment("synthesizer", **{"task.keep_state": "all"}))
    assert table.startswith("the table of synthesizer by position ends at 32 tokens")
    assert find_refusal(experiment("full", **learned)) is None
