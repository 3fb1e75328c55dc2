"""Rows of the ablation of Longformer on WikiHop: what each of them changes."""

import pytest
import torch

from longspan.arena import get
from longspan.arena.model import model_class, model_config, num_parameters
from longspan.arena.record import attended_pairs
from longspan.tasks import build

PROTOCOL = get("wikihop-ablation")
NAMES = ["longformer", *(row.name for row in PROTOCOL.references)]
WIDTH, LAYERS = 768, 12


def experiment(name):
    return PROTOCOL.row("wikihop", name, 0)


def task_of(made):
    return build("wikihop", made.config.task.options)


def small_model(made):
    """Return the model of a row in one narrow layer, which attends to the same pairs."""
    config = model_config(made.config, task_of(made))
    config.num_hidden_layers, config.hidden_size, config.num_attention_heads = 1, 4, 1
    return model_class(task_of(made))(config)


@pytest.mark.parametrize("name", NAMES)
def test_rows_score_the_same_examples(name):
    """Equal options of the data give one checksum, so all rows stand in one table."""
    assert task_of(experiment(name)).data_options() == build("wikihop").data_options()


def test_global_projections_are_the_only_parameters_that_rows_lack():
    counts = {name: num_parameters(experiment(name).config, task_of(experiment(name)))
              for name in ("longformer", "no-projections", "no-global", "length-2048")}  # fmt: skip
    missing = LAYERS * 3 * (WIDTH**2 + WIDTH)
    assert counts["longformer"] - counts["no-projections"] == missing
    assert counts["no-global"] == counts["no-projections"]
    assert counts["longformer"] - counts["length-2048"] == 2048 * WIDTH


def test_full_attention_of_512_tokens_reads_all_pairs():
    for name in ("length-512-full", "roberta"):
        made = experiment(name)
        assert task_of(made).length == 512
        assert task_of(made).num_global_tokens == (384 if name == "roberta" else 0)
        assert attended_pairs(small_model(made), 512) == 512**2
    assert experiment("roberta").mechanism == "full"
    assert attended_pairs(small_model(experiment("window-64")), 512) < 512 * 66


def test_row_without_global_tokens_has_none():
    task = task_of(experiment("no-global"))
    assert task.num_global_tokens == 0
    assert not experiment("no-global").config.mechanism.options["first_global"]
    assert task_of(experiment("no-projections")).num_global_tokens > 0


def test_windows_grow_and_shrink_as_in_the_paper():
    grown, shrunk = (
        experiment(f"window-{way}").config.mechanism.options["window"]
        for way in ("increasing", "decreasing")
    )
    assert (grown[0], grown[-1], len(grown)) == (16, 256, LAYERS)
    assert shrunk == grown[::-1]
    assert (torch.tensor(grown).diff() > 0).all()


def test_longer_training_has_three_times_the_epochs():
    steps = {name: experiment(name).config.training.steps for name in ("longformer", "epochs-15")}
    assert steps["epochs-15"] == 3 * steps["longformer"]
