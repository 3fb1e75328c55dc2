"""Training on the diagnostic tasks: full attention solves them, local attention does not."""

import pytest

from longspan.arena import RunPaths, get, run
from longspan.tasks import build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def accuracy(name, mechanism, folder, seed=0):
    experiment = get("diagnostic").experiment(name, mechanism, seed)
    task = build(name, experiment.config.task.options)
    paths = RunPaths(runs=folder / "runs", cache=folder / "cache", device="cpu")
    task.open(paths.cache)
    return run(experiment, task, paths).score(), task.chance


@pytest.mark.parametrize("name", get("diagnostic").tasks)
def test_full_attention_solves_the_task(tmp_path, name):
    """Rounding decides when a seed leaves its plateau, so that one of several must in time."""
    assert any(accuracy(name, "full", tmp_path, seed)[0] > 0.9 for seed in range(6))


@pytest.mark.parametrize("name", get("diagnostic").tasks)
def test_local_attention_does_not_solve_the_task(tmp_path, name):
    found, chance = accuracy(name, "local", tmp_path)
    assert chance / 2 < found < 0.5
