"""Texts without a test split, and final models on all texts, on the command line."""

import csv
import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest

import tiny
from longspan.arena import Experiment
from longspan.arena.budget_resolution import scale_steps
from longspan.arena.documents.final import final_experiment
from longspan.arena.protocols.files import register_imports
from longspan.results import (
    DocumentScores,
    ResolvedBudget,
    load_result,
    load_results,
    load_side_records,
)
from own_files import reviews, write_csv
from test_cli_errors import check_rejected
from tiny import set_flags as flags

HEADER = ("body", "stars", "score")
TRAINING = {"steps": 6, "evaluate_every": 2, "warmup_steps": 4, "batch_size": 8}
MODEL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
SHORT = (*flags("training", TRAINING), *flags("model", MODEL))

pytestmark = pytest.mark.usefixtures("no_imports")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a run on texts, and the final model of its command."""
    folder = tmp_path_factory.mktemp("final")
    path = write_csv(folder / "mine.csv", [row[:2] for row in reviews(60)], HEADER[:2])
    places = ("--runs", folder / "runs", "--device", "cpu", "--cache", folder / "cache")
    command = ("finetune", "--data", path, *SHORT, *places, "--seed", 3)
    tiny.run_commands([command, (*command, "--all")])
    return folder


def places_of(folder):
    return ("--runs", folder / "runs", "--device", "cpu", "--cache", folder / "cache")


def final_record(folder):
    (path,) = (folder / "runs" / "own" / "mine" / "final").glob("*.json")
    return path


def test_final_model_repeats_a_run_on_every_text(folder):
    (earlier,) = load_results([folder / "runs"])  # the final model is no row of a report
    final = load_result(final_record(folder))
    assert final.steps == earlier.selected_step
    assert final.seed == earlier.seed == 3
    assert final.scores == {}
    assert final.scored_split is None
    assert final.config.model == earlier.config.model
    assert final.config.training.warmup_steps <= final.steps
    assert final.selected_step == final.steps
    with (folder / "mine.csv").open(newline="") as file:
        texts = sorted(row["body"] for row in csv.DictReader(file))
    (data,) = {x.parent for x in (folder / "cache").rglob("train.arrow")} - {
        x.parent for x in (folder / "cache").rglob("test.arrow")
    }
    words = json.loads((data / "manifest.json").read_text())["facts"]["words"].split()
    batch = pa.ipc.open_file(pa.OSFile(str(data / "train.arrow"))).get_batch(0)
    rows = batch.column("tokens").to_pylist()
    assert sorted(" ".join(words[x - 2] for x in row) for row in rows) == texts
    assert sorted(x.name for x in data.glob("*.arrow")) == ["train.arrow"]


@pytest.mark.parametrize("steps", [3, 6, 60])
def test_final_model_has_the_recipe_that_its_budget_gave_the_run(folder, steps):
    """Its warmup was that of the recipe before the budget, which may be longer than the run."""
    register_imports(folder / "cache")
    (result,) = load_results([folder / "runs"])
    changes = scale_steps(result.config.training, steps)
    budget = ResolvedBudget(changes=changes, measurements={})
    earlier = dataclasses.replace(result, resolved_budget=budget, selected_step=steps)
    fields = {name: getattr(result, name) for name in ("protocol", "config", "seed", "overrides")}
    final = final_experiment(Experiment(**fields), earlier).config.training
    ran = earlier.effective_config.training
    assert final == dataclasses.replace(ran, selection="last", patience=None, stop_at=None)


def test_final_model_is_evaluated_on_all_texts_that_it_was_trained_on(cli, folder):
    """As many as validation has are none: the command ended without a score."""
    command = ("eval", final_record(folder), "--split", "train", *places_of(folder)[2:])
    out, _ = cli.done(*command, "--json")
    (evaluation,) = json.loads(out)
    assert evaluation["num_examples"] == 60


def test_final_model_predicts_and_is_exported(cli, folder, tmp_path):
    new = write_csv(tmp_path / "new.csv", [("good plot",), ("bad plot",)], ("body",))
    end = places_of(folder)[2:]
    cli.done("predict", final_record(folder), new, "--output", tmp_path / "p.csv", *end)
    with (tmp_path / "p.csv").open(newline="") as file:
        assert {row["predicted"] for row in csv.DictReader(file)} <= {"pos", "neg"}
    command = ("export", final_record(folder), "--output", tmp_path / "out", *end[2:])
    cli.done(*command)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "it has no score" in card
    assert "results: []" in card


def test_texts_without_a_test_split_are_scored_on_validation(cli, tmp_path, places):
    path = write_csv(tmp_path / "mine.csv", [row[:2] for row in reviews(60)], HEADER[:2])
    command = ("finetune", "--data", path, *SHORT, *places, "--test", "0")
    out, _ = cli.done(*command)
    assert "There is no test split" in " ".join(out.split())
    assert "documents of validation" in " ".join(out.split())
    (scores,) = load_side_records(DocumentScores, [tmp_path / "runs"])
    (result,) = load_results([tmp_path / "runs"])
    assert (scores.split, result.scored_split) == ("validation", "validation")
    accuracy = result.scores["validation"].metrics["accuracy"]
    assert scores.rows[0].metrics["accuracy"] == pytest.approx(accuracy)
    sizes = json.loads((tmp_path / "cache/own/mine/import.json").read_text())["sizes"]
    assert sizes["test"] == 0
    assert sum(sizes.values()) == 60
    (record,) = (tmp_path / "runs" / "own" / "mine").glob("*.json")
    check_rejected(cli("eval", record, *places[2:]), "the splits train, validation, got test")
    out, _ = cli.done("data", "card", "mine", "--cache", tmp_path / "cache",
                       "--set", "vocabulary=8192", "--set", "length=64")  # fmt: skip
    assert "| validation |" in out
    assert "| test |" not in out
    cli.done("export", record, "--output", tmp_path / "out", "--cache",
                       tmp_path / "cache")  # fmt: skip
    assert "name: Validation Accuracy" in (tmp_path / "out" / "README.md").read_text()
    # Nothing is held out for test, so --test 0 and --all agree.
    out, _ = cli.done(*command, "--all", "--json")
    assert load_result(Path(json.loads(out)["record"])).config.task.options["train_on"] == "all"
    search = ("arena", "--tasks", "mine", "--mechanisms", "local", "--tune", *places)
    grid = ("--grid", "training.learning_rate=1e-3,1e-4")
    check_rejected(cli(*search, *grid), "mine has no test split", "--test 0.1")


BAD_FINAL = {
    "test": (("--test", "held.csv"), "so that none is left to score, got --test; omit either"),
    "share": (("--validation", "0.2"), "got --validation; omit either"),
    "metric": (("--metric", "f1_macro"), "got --metric; omit either"),
    "threshold": (("--threshold", "0.4"), "got --threshold; omit either"),
    "replaced": (("--replace",), "got --replace; run the command with --replace and without --all"),
    "other run": (("--mechanism", "full"), "mine.csv first, with these options and without --all"),
    "not imported": (("--name", "other"), "was not imported as 'other'; run longspan finetune"),
    "other column": (("--text", "stars"), "imported with the text 'body', got 'stars'"),
    "other role": (("--pair", "x"), "imported with the pair None, got 'x'"),
}


@pytest.mark.parametrize("case", BAD_FINAL)
def test_bad_final_models_are_one_sentence_with_a_remedy(cli, folder, case):
    options, part = BAD_FINAL[case]
    command = ("finetune", "--data", folder / "mine.csv", *SHORT, *places_of(folder), "--seed", 3)
    check_rejected(cli(*command, "--all", *options), part)


def test_changed_files_are_imported_again_first(cli, folder, tmp_path):
    path = write_csv(tmp_path / "mine.csv", [row[:2] for row in reviews(50)], HEADER[:2])
    command = ("finetune", "--data", path, *SHORT, *places_of(folder), "--all")
    check_rejected(cli(*command), "has changed since it was imported as mine", "--replace first")


@pytest.mark.parametrize(
    ("kind", "share", "part"),
    [
        ("texts", "-0.1", "or 0 for no test split, got -0.1"),
        ("texts", "1", "or 0 for no test split, got 1"),
        ("summaries", "0", "--test must be a share between 0 and 1 or a path, got 0"),
    ],
)
def test_shares_of_test_are_below_one_and_summaries_have_a_test_split(
    cli, tmp_path, kind, share, part
):
    path = write_csv(tmp_path / "mine.csv", [row[:2] for row in reviews(20)], HEADER[:2])
    target = "--label" if kind == "texts" else "--summary"
    columns = ("--text", "body", target, "stars", f"--test={share}")
    command = ("data", "import", kind, path, *columns, "--cache", tmp_path / "cache")
    check_rejected(cli(*command), part)
