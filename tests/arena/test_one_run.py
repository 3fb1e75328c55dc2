"""Single runs: pretraining on a corpus, and finetuning of the checkpoints that users have."""

import dataclasses
import json
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file

import tiny
import toy_heads
from longspan.arena import RunChoices, RunPaths, finetune, get, pretrain, run
from longspan.arena.one_run import finetuning_experiment, pretraining_experiment
from longspan.arena.protocols.base import GENERIC
from longspan.arena.run_state import differences
from longspan.arena.saved_checkpoint import open_checkpoint
from longspan.arena.start import find_checkpoint
from longspan.attention import MECHANISMS
from longspan.data.word_pieces import tokenizer_sha256
from longspan.errors import DataError, OptionError, RunError, UnknownNameError
from longspan.models import LongspanConfig, LongspanForMaskedLM, convert, longify
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.tables import one_run
from longspan.results import load_results
from longspan.results.commands import commands_of
from longspan.tasks import build, register
from longspan.validation import validate_records
from short_sources import make, save_tokenizer

MASKED, LABELS = "toy_masked", "toy_labels"
TRAIN = {**tiny.TRAIN, "steps": 4, "evaluate_every": 2}
SMALL = {f"training.{name}": x for name, x in TRAIN.items()}
MODEL = {f"model.{name}": x for name, x in tiny.MODEL.items()}


@pytest.fixture
def toys(registries):
    for cls in toy_heads.TOYS:
        register(cls)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the paths and the record of a run on masked words."""
    from longspan.tasks import TASKS

    folder = tmp_path_factory.mktemp("trained")
    paths = tiny.paths(folder / "runs", folder / "cache")
    register(toy_heads.ToyMasked)
    choices = RunChoices(
        mechanism="local", changes={**SMALL, **MODEL, "mechanism.window": 3}, seed=1
    )
    result = pretrain(MASKED, paths, choices=choices)
    del TASKS[MASKED]
    return paths, result


@pytest.fixture
def record(toys, trained):
    paths, result = trained
    return paths.runs / "pretrain" / MASKED / result.filename


def elsewhere(trained, tmp_path):
    return RunPaths(runs=tmp_path / "runs", cache=trained[0].cache, device="cpu")


def best(record):
    (folder,) = (record.parent / "work" / record.stem).glob("best-*")
    return folder


def test_pretraining_is_a_run_of_its_protocol(toys, trained):
    _, result = trained
    assert (result.protocol, result.task, result.row_name) == ("pretrain", MASKED, "local")
    assert result.metric == "perplexity"
    assert result.start is None
    choices = RunChoices(mechanism="local", changes=result.overrides, seed=1)
    assert pretraining_experiment(MASKED, None, choices).hash == result.config_hash


def test_every_name_of_a_checkpoint_gives_the_same_run(trained, record, tmp_path):
    """The path is no part of the identity: another folder with the weights loads the result."""
    paths, copy = elsewhere(trained, tmp_path), tmp_path / "copy"
    shutil.copytree(best(record), copy)
    choices = RunChoices(changes=SMALL)
    result = finetune(record, LABELS, paths, choices=choices)
    for name in (record, record.parent / "work" / record.stem, best(record), copy):
        made = finetuning_experiment(name, LABELS, choices)
        assert (made.hash, made.seed) == (result.config_hash, 0)
    assert finetune(copy, LABELS, paths, choices=choices) == result
    assert len(load_results([paths.runs])) == 1


def test_finetuning_has_the_architecture_and_weights_of_the_checkpoint(trained, record, tmp_path):
    paths, (_, before) = elsewhere(trained, tmp_path), trained
    result = finetune(record, LABELS, paths, choices=RunChoices(changes=SMALL))
    assert (result.protocol, result.row_name) == ("finetune", "local")
    assert result.config.mechanism == before.config.mechanism
    assert result.config.model == before.config.model
    there, here = (
        load_file(best(x) / "model.safetensors") for x in (record, path_of(paths, result))
    )
    assert result.start.sha256 == open_checkpoint(record).sha256
    assert set(result.start.new) == here.keys() - there.keys()
    assert set(result.start.dropped) == there.keys() - here.keys()
    inner = [name for name in there if name.startswith("model.")]
    # One step of the optimizer changes a weight by its learning rate at most.
    changes = [float((here[name] - there[name]).abs().max()) for name in inner]
    assert 0 < max(changes) <= TRAIN["learning_rate"] * TRAIN["steps"] * 1.1


def path_of(paths, result):
    return paths.runs / result.protocol / result.task / result.filename


def test_records_of_single_runs_pass_the_validation(trained, record, tmp_path):
    paths = elsewhere(trained, tmp_path)
    finetune(record, LABELS, paths, choices=RunChoices(changes={**SMALL, "model.pooling": "first"}))
    (result,) = load_results([paths.runs])
    changed = {"start.checkpoint": result.start.sha256, "model.pooling": "first"}
    assert {**changed, **result.overrides} == result.overrides
    assert not [x for x in result.overrides if x.startswith("mechanism.")]
    words = ["longspan", "finetune", str(best(record)), LABELS, "--mechanism", "local"]
    # The folder of a checkpoint may have had other weights before.
    commands = commands_of([result, dataclasses.replace(result, seed=1), result])
    assert len(commands) == 2
    for command in commands:
        assert shlex.split(command)[:6] == words
        assert "model.pooling=first" in shlex.split(command)
    (table,) = one_run.provenance(*build_leaderboards([result]))
    shown = {name.text: value.text for name, value in table.rows}
    assert shown["started from"] == best(record).name  # without the folders of this machine
    validation = validate_records([paths.runs])
    assert [str(x) for x in validation.of("error")] == []
    assert [(x.field, x.severity) for x in validation.findings if "start" in x.field] == [
        ("start", "note")
    ]


def test_pretraining_continues_a_checkpoint(trained, record, tmp_path):
    paths = elsewhere(trained, tmp_path)
    result = pretrain(MASKED, paths, start=record, choices=RunChoices(changes=SMALL))
    assert result.start.new == result.start.dropped == []
    assert result.curve[0].train_loss < trained[1].curve[0].train_loss


def test_another_mechanism_takes_the_same_weights(trained, record, tmp_path):
    paths, choices = elsewhere(trained, tmp_path), RunChoices(mechanism="full", changes=SMALL)
    result = finetune(record, LABELS, paths, choices=choices)
    assert (result.row_name, result.start.changed["attention"]) == ("full", ["local", "full"])


def test_converted_checkpoint_keeps_its_fields(toys, trained, tmp_path):
    """RoBERTa has a token type and biases that no recipe names."""
    make("roberta").save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", out=tmp_path / "ours")
    experiment = finetuning_experiment(tmp_path / "ours", LABELS, RunChoices(changes=SMALL))
    there = open_checkpoint(tmp_path / "ours").config
    assert experiment.config.start.fields["type_vocab_size"] == there.type_vocab_size == 2
    assert experiment.config.model.norm == "post"
    assert experiment.config.task.options["length"] == there.max_position_embeddings == 20
    paths = elsewhere(trained, tmp_path)
    result = finetune(tmp_path / "ours", LABELS, paths, choices=RunChoices(changes=SMALL))
    model = open_checkpoint(path_of(paths, result)).config
    assert model.type_vocab_size == 2
    assert not [x for x in result.start.new if x.startswith("model.")]


def test_frozen_layers_are_trained_on_another_task(toys, trained, tmp_path):
    config = LongspanConfig(
        vocab_size=13, max_position_embeddings=24, hidden_size=16, freeze="all-but-positions"
    )
    LongspanForMaskedLM(config).save_pretrained(tmp_path / "frozen")
    made = finetuning_experiment(tmp_path / "frozen", LABELS, RunChoices(changes=SMALL))
    assert "freeze" not in made.config.start.fields
    made = pretraining_experiment(MASKED, tmp_path / "frozen", RunChoices(changes=SMALL))
    assert made.config.start.fields["freeze"] == "all-but-positions"


def test_unusable_checkpoints_are_refused(toys, trained, record, tmp_path):
    missing, other, empty = (tmp_path / name for name in ("missing", "other", "empty"))
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"model_type": "bert"}))
    empty.mkdir()
    shutil.copy(best(record) / "config.json", empty)
    damaged = tmp_path / "damaged"
    shutil.copytree(best(record), damaged)
    (damaged / "model.safetensors").write_bytes(b"nothing")
    for path, message in (
        (missing, "is no folder; name the record or directory of a run"),
        (tmp_path, "holds no model.safetensors"),
        (empty, "holds no model.safetensors"),
        (other, "holds no model.safetensors"),
    ):
        with pytest.raises(DataError, match=message):
            finetuning_experiment(path, LABELS, RunChoices())
    shutil.copy(best(record) / "model.safetensors", other)
    with pytest.raises(DataError, match="model_type 'bert', expected 'longspan'; convert it"):
        finetuning_experiment(other, LABELS, RunChoices())
    with pytest.raises(RunError, match=r"model.safetensors cannot be read"):
        finetune(damaged, LABELS, elsewhere(trained, tmp_path), choices=RunChoices(changes=SMALL))


def test_run_that_has_not_finished_is_no_start(toys, trained, tmp_path):
    """Its best model so far was taken, which a run changes as it goes on."""
    choices = RunChoices(mechanism="local", changes={**SMALL, **MODEL})
    experiment, paths = pretraining_experiment(MASKED, None, choices), elsewhere(trained, tmp_path)
    task = build(MASKED, experiment.config.task.options)
    task.open(paths.cache)
    with pytest.raises(tiny.StopError):
        run(experiment, task, paths, tiny.StopAtStep(4))
    folder = paths.run_dir(experiment)
    assert list(folder.glob("best-*"))
    with pytest.raises(DataError, match="has not finished; run it to its end first"):
        finetuning_experiment(folder, LABELS, RunChoices())
    pretrain(MASKED, paths, choices=choices)
    assert finetuning_experiment(folder, LABELS, RunChoices()).checkpoint.parent == folder


def test_checkpoint_that_does_not_fit_is_refused(trained, record, tmp_path):
    for changes, message in (
        ({"task.length": 25}, "up to 25 tokens, the checkpoint 24 positions"),
        ({"task.words": 14}, "14 token ids, the checkpoint 13; encode the task with the check"),
    ):
        with pytest.raises(OptionError, match=message):
            finetuning_experiment(record, LABELS, RunChoices(changes=changes))
    with pytest.raises(OptionError, match="toy_labels has neither masked nor next tokens"):
        pretraining_experiment(LABELS, None, RunChoices())
    with pytest.raises(UnknownNameError, match="toy_lables"):
        finetuning_experiment(record, "toy_lables", RunChoices())
    with pytest.raises(OptionError, match="applies to no run"):
        finetuning_experiment(record, LABELS, RunChoices(changes={"full.training.steps": 3}))
    layers = LongspanConfig(attention=["full", "local"], vocab_size=13, max_position_embeddings=24)
    LongspanForMaskedLM(layers).save_pretrained(tmp_path / "mixed")
    with pytest.raises(OptionError, match=r"several mechanisms \(full, local\), a run has one"):
        finetuning_experiment(tmp_path / "mixed", LABELS, RunChoices())


def test_lengthened_checkpoint_reads_longer_texts(trained, record, tmp_path):
    """What the message about too few positions says makes the run possible."""
    longify(best(record), max_length=32, out=tmp_path / "long")
    choices = RunChoices(changes={**SMALL, "task.length": 32})
    with pytest.raises(
        OptionError, match=rf"longify {best(record)} --max-length 32 --output FOLDER"
    ):
        finetuning_experiment(record, LABELS, choices)
    result = finetune(tmp_path / "long", LABELS, elsewhere(trained, tmp_path), choices=choices)
    assert result.length == result.config.start.positions == 32


def test_texts_are_encoded_with_the_tokenizer_of_the_checkpoint(trained, record, tmp_path):
    plain, own = (tmp_path / name for name in ("plain", "own"))
    for folder in (plain, own):
        shutil.copytree(best(record), folder)
    save_tokenizer(own, 13)
    text = build("text", {"length": 1_000})
    assert open_checkpoint(plain).encoding(text) == {"task.length": 24}
    found = open_checkpoint(own).encoding(build("text", {"length": 20}))
    assert found == {
        "task.vocabulary": f"tokenizer:{own}",
        "start.tokenizer": tokenizer_sha256(own),
    }


def test_a_shorter_length_than_that_of_the_protocol_is_reported(record, monkeypatch, logged):
    monkeypatch.setattr(
        "longspan.arena.one_run.find_refusal", lambda experiment: None
    )  # of the vocabulary
    with logged.at_level("INFO", "longspan.arena.one_run"):
        finetuning_experiment(record, "aan_retrieval", RunChoices())
    (message,) = logged.messages
    assert message.startswith("inputs have up to 24 tokens, the positions of the checkpoint")
    logged.clear()
    choices = RunChoices(changes={"task.length": 12, "task.query_length": 12})
    with logged.at_level("INFO", "longspan.arena.one_run"):
        finetuning_experiment(record, "aan_retrieval", choices)
    assert not logged.messages


@pytest.mark.parametrize("start", ["ssd", "full"])
def test_mechanisms_that_lose_the_order_of_tokens_are_named(
    toys, tmp_path, monkeypatch, logged, start
):
    """A checkpoint of a mechanism that carries positions has no others."""
    monkeypatch.setattr("longspan.arena.one_run.find_refusal", lambda experiment: None)
    config = LongspanConfig(**tiny.MODEL, attention=start, position="auto")
    LongspanForMaskedLM(config).save_pretrained(tmp_path / "start")
    for name in MECHANISMS:
        logged.clear()
        finetuning_experiment(tmp_path / "start", LABELS, RunChoices(mechanism=name))
        warned = [x for x in logged.messages if "does not know the order of its tokens" in x]
        is_lost = start == "ssd" and not MECHANISMS[name].traits.carries_positions
        assert len(warned) == is_lost, name


@pytest.mark.parametrize("chosen", [None, "bytes"])
def test_checkpoint_without_a_tokenizer_is_named(tmp_path, monkeypatch, logged, chosen):
    """Its ids may be of other tokens than those of the task, unless the user says which."""
    monkeypatch.setattr("longspan.arena.one_run.find_refusal", lambda experiment: None)
    LongspanForMaskedLM(LongspanConfig(**tiny.MODEL)).save_pretrained(tmp_path / "bare")
    changes = {"task.length": 12, **({"task.vocabulary": chosen} if chosen else {})}
    finetuning_experiment(tmp_path / "bare", "text", RunChoices(changes=changes))
    warned = [x for x in logged.messages if "has no tokenizer" in x]
    assert len(warned) == (chosen is None)
    assert all("texts are read as bytes" in x for x in warned)


def test_queries_fit_the_positions_of_the_checkpoint(record, monkeypatch):
    monkeypatch.setattr(
        "longspan.arena.one_run.find_refusal", lambda experiment: None
    )  # of the vocabulary
    made = finetuning_experiment(record, "aan_retrieval", RunChoices())
    assert {made.config.task.options[x] for x in ("length", "query_length")} == {24}
    assert "task.query_length" not in made.overrides
    choices = RunChoices(changes={"task.query_length": 8})
    made = finetuning_experiment(record, "aan_retrieval", choices)
    assert made.config.task.options["query_length"] == 8
    assert made.overrides["task.query_length"] == 8
    with pytest.raises(OptionError, match="query_length=25 exceeds length=24"):
        finetuning_experiment(
            record, "aan_retrieval", RunChoices(changes={"task.query_length": 25})
        )


def test_folder_of_a_tokenizer_is_no_part_of_the_identity(toys, record, tmp_path):
    """Another folder with the weights and the tokenizer is the same run, another tokenizer not."""
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    for folder, size in ((first, 13), (second, 13), (other, 12)):
        shutil.copytree(best(record), folder)
        save_tokenizer(folder, size)

    def made(folder, **changes):
        return finetuning_experiment(folder, "text", RunChoices(changes={**SMALL, **changes}))

    runs = [made(folder) for folder in (first, second, other)]
    named = [run.config.task.options["vocabulary"] for run in runs]
    assert named == [f"tokenizer:{folder}" for folder in (first, second, other)]
    assert runs[0].hash == runs[1].hash != runs[2].hash
    # An interrupted run goes on from the copy.
    assert differences(runs[0].config, runs[1].config) == []
    assert any("start.tokenizer" in x for x in differences(runs[0].config, runs[2].config))
    # A tokenizer that the user names is taken as it is named.
    chosen = [made(first, **{"task.vocabulary": f"tokenizer:{x}"}) for x in (second, other)]
    assert [run.config.start.tokenizer for run in chosen] == [None, None]
    assert len({run.hash for run in (runs[0], *chosen)}) == 3


def test_equal_weights_with_other_windows_are_other_runs(trained, record, tmp_path):
    """The second one was taken for the first under an earlier recipe, and refused."""
    windows, paths = [], elsewhere(trained, tmp_path)
    for window in (3, 5):
        copy = tmp_path / f"window-{window}"
        shutil.copytree(best(record), copy)
        config = json.loads((copy / "config.json").read_text())
        config["attention_options"]["window"] = window
        (copy / "config.json").write_text(json.dumps(config))
        result = finetune(copy, LABELS, paths, choices=RunChoices(changes=SMALL))
        windows.append(result.config.mechanism.options["window"])
    assert windows == [3, 5]
    longer = RunChoices(changes={**SMALL, "training.steps": 4, "training.evaluate_every": 4})
    assert finetune(copy, LABELS, paths, choices=longer).overrides["training.evaluate_every"] == 4


def test_changed_options_of_another_mechanism_are_another_recipe(
    trained, record, tmp_path, monkeypatch
):
    """The run with the options of the earlier protocol was left, and a new one began."""
    paths, choices = elsewhere(trained, tmp_path), RunChoices(mechanism="dilated", changes=SMALL)
    finetune(record, LABELS, paths, choices=choices)
    options = {"dilated": {"window": 5}}
    changed = dataclasses.replace(get("finetune"), mechanism_options=options)
    monkeypatch.setitem(GENERIC, "finetune", lambda: changed)
    with pytest.raises(RunError, match=r"under an earlier recipe \(mechanism\.window"):
        finetune(record, LABELS, paths, choices=choices)


def test_changed_checkpoint_is_refused_on_resumption(trained, record, tmp_path):
    copy, paths = tmp_path / "copy", elsewhere(trained, tmp_path)
    shutil.copytree(best(record), copy)
    experiment = finetuning_experiment(copy, LABELS, RunChoices(changes=SMALL))
    model = LongspanForMaskedLM.from_pretrained(copy)
    with torch.no_grad():
        model.lm_head.bias += 1
    model.save_pretrained(copy)
    with pytest.raises(RunError, match=r"weights of .* have sha256 .*, expected"):
        find_checkpoint(experiment, paths)
    gone = dataclasses.replace(experiment, checkpoint=None)
    with pytest.raises(RunError, match="no folder of it is known"):
        find_checkpoint(gone, paths)


def test_protocols_of_single_runs_cover_the_registered_tasks(toys):
    assert MASKED in get("pretrain").tasks
    assert {LABELS, "listops"} <= set(get("finetune").tasks)
    assert MASKED not in get("finetune").tasks
    for task in get("finetune").tasks:
        training = get("finetune").recipe(task).training
        assert training.steps >= 200
        assert training.evaluate_every * 10 <= training.steps
