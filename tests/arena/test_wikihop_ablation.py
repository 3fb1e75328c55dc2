"""Rows of the ablation of Longformer on WikiHop: what each of them changes."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

import tiny
from longspan.arena import RunChoices, RunPaths, finetune, get
from longspan.arena.model import make_model, model_config, num_parameters
from longspan.arena.one_run import finetuning_experiment
from longspan.arena.record import attended_pairs
from longspan.config import StartConfig
from longspan.errors import OptionError
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.tasks import TASKS, build
from longspan.training.stage_weights import load_checkpoint
from wikihop_files import write_wikihop

PROTOCOL = get("wikihop-ablation")
NAMES = ["longformer", *(row.name for row in PROTOCOL.named_rows)]
WIDTH, LAYERS = 768, 12
BYTES = 259  # ids of the byte tokenizer


def experiment(name):
    return PROTOCOL.row("wikihop", name, 0)


def task_of(made):
    return build("wikihop", made.config.task.options)


def small_model(made):
    """Return the model of a row in one narrow layer, which attends to the same pairs."""
    config = model_config(made.config, task_of(made))
    config.num_hidden_layers, config.hidden_size, config.num_attention_heads = 1, 4, 1
    return task_of(made).head(config)


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


# Table 10 of Longformer prints the accuracy of a row, and its difference from the first one.
DIFFERENCES = {
    "roberta": -1.4, "epochs-15": 1.2, "length-512-full": -2.1, "length-2048": -0.7,
    "no-mlm": -0.6, "no-projections": -1.6, "no-global": -8.3, "positions-only": -0.3,
}  # fmt: skip


def test_published_scores_are_those_of_the_rows_of_the_table():
    published = {x.mechanism: 100 * x.value for x in TASKS["wikihop"].info.published}
    first = published.pop("longformer")
    assert first == pytest.approx(73.8)
    found = {name: round(x - first, 1) for name, x in published.items()}
    assert found == DIFFERENCES
    of_table = {x.name for x in PROTOCOL.named_rows if "table 10" in x.source}
    assert of_table == DIFFERENCES.keys()
    assert all(x.kind == "reference row" for x in PROTOCOL.named_rows)


@pytest.mark.parametrize("name", ["no-mlm", "positions-only"])
def test_rows_of_other_checkpoints_have_the_recipe_of_the_first(name):
    assert experiment(name).config == experiment("longformer").config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a small Longformer for masked bytes, without the markers of the task."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = LongspanConfig(
        vocab_size=BYTES,
        max_position_embeddings=512,
        attention="longformer",
        attention_options={"window": 16, "first_global": True, "global_projections": True},
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        norm="post",
        pooling="first",
    )
    LongspanForMaskedLM(config).save_pretrained(folder)
    return folder


def finetuned(checkpoint, tmp_path, row):
    """Return the record of a row that starts from the checkpoint."""
    folder = write_wikihop(tmp_path)
    paths = RunPaths(runs=tmp_path / "runs", cache=tmp_path / "cache", data=folder, device="cpu")
    training = {"gradient_accumulation_steps": 1, **tiny.TRAIN, "steps": 2, "precision": "no"}
    changes = {f"training.{name}": x for name, x in training.items()}
    choices = RunChoices(mechanism=row, protocol="wikihop-ablation", changes=changes)
    return finetune(checkpoint, "wikihop", paths, choices=choices)


def test_rows_start_from_a_checkpoint_without_the_markers(checkpoint, tmp_path):
    """Only the head and the four markers are new; a row without projections drops them."""
    result = finetuned(checkpoint, tmp_path, "no-global")
    assert result.row_name == "no-global"
    assert result.config.task.options["global_tokens"] == "none"
    assert result.config.task.options["length"] == 512
    assert result.start.new == ["candidate_outputs.weight"]
    assert result.start.changed["vocab_size"] == [BYTES, BYTES + 4]
    projections = [x for x in result.start.dropped if "projections" in x]
    assert len(projections) == 6


def test_embeddings_of_markers_are_drawn_and_those_of_tokens_loaded(checkpoint):
    made = finetuning_experiment(
        checkpoint, "wikihop", RunChoices(mechanism=None, protocol="wikihop-ablation")
    )
    assert made.row_name == "longformer"
    model = make_model(made, task_of(made))
    name = "model.embeddings.words.weight"
    drawn = model.state_dict()[name].clone()
    load_checkpoint(model, checkpoint)
    loaded, source = model.state_dict()[name], load_file(checkpoint / "model.safetensors")[name]
    assert loaded[:BYTES].equal(source)
    assert loaded[BYTES:].equal(drawn[BYTES:])
    assert len(loaded) == BYTES + 4


def test_other_missing_ids_are_refused():
    start = StartConfig(checkpoint="x", positions=512, vocabulary=BYTES - 1)
    made = experiment("longformer")
    config = dataclasses.replace(made.config, start=start)
    with pytest.raises(OptionError, match=f"has {BYTES} token ids, the checkpoint {BYTES - 1}"):
        model_config(config, build("wikihop", {"length": 512}))
