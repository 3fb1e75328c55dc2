"""char-small: rows, stages and equal numbers of bytes."""

import dataclasses

import pytest

from corpus_files import import_novels
from longspan.arena import get
from longspan.arena.grid import find_refusal, grid
from longspan.attention import MECHANISMS
from longspan.errors import UnknownNameError
from longspan.tasks import register_imported

NAME, CORPUS = "char-small", "novels"
LAYERS, MEAN_WINDOW = 4, 120
TOKENS = 4_096  # of an update, at every length
CAUSAL = [name for name, cls in MECHANISMS.items() if cls.traits.causal]


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    folder = tmp_path_factory.mktemp("novels")
    import_novels(folder)
    yield get(NAME)
    register_imported(folder / "none")


def test_the_corpus_must_be_imported_first(tmp_path):
    register_imported(tmp_path)
    with pytest.raises(UnknownNameError, match="corpus FOLDER --name novels --objective next"):
        get(NAME).row(CORPUS, "local", 0)


def test_every_causal_mechanism_takes_part(protocol):
    planned, skipped = grid(NAME)
    assert {x.mechanism for x in planned} == set(CAUSAL)
    assert {x.name.partition(" ")[0] for x in skipped} == set(MECHANISMS) - set(CAUSAL)
    assert all("causal" in x.reason for x in skipped)


def test_every_row_has_a_model_and_equal_bytes(protocol):
    for row in protocol.named_rows:
        experiment = protocol.row(CORPUS, row.name, 0)
        assert find_refusal(experiment) is None
        for config in experiment.config.stages():
            stage = dataclasses.replace(experiment, config=config)
            assert find_refusal(stage) is None
            tokens = config.task.options["length"] * config.training.batch_size
            assert tokens == TOKENS


def test_windows_have_equal_keys_on_average(protocol):
    found = {}
    for name in ("longformer", "growing", "shrinking", "growing-dilated", "fixed-dilated"):
        window = protocol.row(CORPUS, name, 0).config.mechanism.options["window"]
        found[name] = window if isinstance(window, list) else [window] * LAYERS
    assert {sum(window) for window in found.values()} == {LAYERS * MEAN_WINDOW}
    assert found["longformer"] == [MEAN_WINDOW] * LAYERS
    assert found["growing"] == found["shrinking"][::-1] == [32, 64, 128, 256]


def test_stages_end_with_the_task_of_the_run(protocol):
    for name in ("growing-staged", "full-staged"):
        run = protocol.row(CORPUS, name, 0).config
        stages = run.stages()
        lengths = [stage.task.options["length"] for stage in stages]
        assert lengths == sorted(lengths)
        assert lengths[-1] == run.task.options["length"]
        assert sum(stage.training.steps for stage in stages) == run.training.steps
