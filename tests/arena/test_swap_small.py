"""swap-small: weights of a pretrained model with another mechanism, untrained and trained."""

import pytest
from safetensors.torch import load_file

from corpus_files import import_novels
from longspan.arena import RunPaths, arena, get, grid, load_protocol
from longspan.arena.callbacks import GridCallback
from longspan.arena.grid import find_refusal
from longspan.attention import MECHANISMS
from longspan.tasks import register_imported
from longspan.training.checkpoint import Checkpoints

NAME, CORPUS = "swap-small", "novels"
SMALL = f"""
base = "{NAME}"
source = "this test"
name = "swap-tiny"

[tasks.{CORPUS}]
task = {{ length = 64, held_out_tokens = 320 }}
training = {{ steps = 60 }}
[tasks.{CORPUS}.model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 64
classifier_hidden_size = 32
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("novels")
    import_novels(folder)
    yield folder
    register_imported(folder / "none")


def test_every_causal_mechanism_starts_from_the_pretrained_model(folder):
    planned, _ = grid(NAME)
    assert {x.mechanism for x in planned} == {n for n, x in MECHANISMS.items() if x.traits.causal}
    starts = {x.config.start.run for x in planned if x.config.start is not None}
    assert starts == {get(NAME).row(CORPUS, "performer-untrained", 0).config.start.run}
    for row in get(NAME).named_rows:
        experiment = get(NAME).row(CORPUS, row.name, 0)
        assert find_refusal(experiment) is None
        assert (experiment.config.start is None) == (
            row.name in ("pretrained", "performer-from-scratch")
        )


def test_updates_from_scratch_are_those_of_both_runs(folder):
    names = ("pretrained", "performer", "performer-from-scratch")
    steps = [get(NAME).row(CORPUS, x, 0).config.training.steps for x in names]
    assert steps[0] + steps[1] == steps[2]


def test_performer_takes_the_weights_and_recovers(folder, registries):
    """The swap costs bits, and training under the new mechanism wins them back."""
    path = folder / "tiny.toml"
    path.write_text(SMALL)
    load_protocol(str(path))
    paths = RunPaths(runs=folder / "runs", cache=folder, device="cpu")
    rows = ("pretrained", "performer-untrained", "performer")
    experiments = [get("swap-tiny").row(CORPUS, x, 0) for x in rows]
    results, skipped = arena(experiments, paths, GridCallback())
    assert not skipped
    pretrained, untrained, trained = (x.score() for x in results)
    assert untrained > pretrained + 0.02
    assert trained < untrained - 0.02
    before, after = (
        load_file(Checkpoints(paths.run_dir(x)).best() / "model.safetensors")
        for x in experiments[:2]
    )
    names = before.keys() & after.keys()
    assert names == before.keys()
    assert max((before[x] - after[x]).abs().max().item() for x in names) < 1e-6
