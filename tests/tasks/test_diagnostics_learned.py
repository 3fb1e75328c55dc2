"""The diagnostic tasks separate mechanisms: full attention solves them, a short window cannot."""

import pytest

from longspan.arena import RunPaths, get, run
from longspan.tasks import build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def accuracy(name, mechanism, folder):
    experiment = get("diagnostic").experiment(name, mechanism, 0)
    task = build(name, experiment.task.options)
    paths = RunPaths(runs=folder / "runs", cache=folder / "cache", device="cpu")
    task.open(paths.cache)
    return run(experiment, task, paths).scores["test"].accuracy, task.chance


@pytest.mark.parametrize("name", get("diagnostic").tasks)
def test_full_attention_solves_it(tmp_path, one_thread, name):
    found, _ = accuracy(name, "full", tmp_path)
    assert found > 0.9


@pytest.mark.parametrize("name", get("diagnostic").tasks)
def test_a_short_window_cannot(tmp_path, one_thread, name):
    found, chance = accuracy(name, "local", tmp_path)
    assert chance / 2 < found < 0.5
