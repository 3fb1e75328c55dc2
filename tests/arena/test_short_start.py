"""Long models that start from short ones: positions, rows of files, budgets, commands."""

import dataclasses
import json
import shlex

import pytest
import torch
from safetensors.torch import load_file

import tiny
import toy_heads
from corpus_files import CORPUS, make_task, write_folder
from longspan.arena import RunChoices, arena, get, grid, load_protocol, make_model, pretrain
from longspan.arena.callbacks import GridCallback
from longspan.arena.grid import find_refusal
from longspan.arena.one_run import finetuning_experiment, pretraining_experiment
from longspan.arena.protocols.base import PROTOCOLS
from longspan.arena.start import find_start, load_start
from longspan.errors import OptionError, PluginError, UnknownNameError
from longspan.models import LongspanConfig, LongspanForMaskedLM
from longspan.results import load_results
from longspan.results.commands import run_command
from longspan.tasks import build, register, register_imported
from longspan.validation import validate_records
from staged_protocol import SOURCE, make

SHORT, LONG = 9, 24
FILE = f"""
[tasks.toy_masked]
from = "staged"

[tasks.toy_labels]
from = "staged"
start = "toy_masked"

[rows.short-stage]
kind = "reference"
[rows.short-stage.tasks.toy_masked]
task = {{ length = {SHORT} }}
training = {{ batch_size = 6 }}

[rows.local-from-short]
mechanism = "local"
options = {{ window = 5 }}
[rows.local-from-short.tasks.toy_labels]
[rows.local-from-short.tasks.toy_masked]
start = {{ task = "toy_masked", row = "short-stage", extend_positions = "tile" }}
"""
ROW = "local-from-short"
POSITIONS = "model.embeddings.positions.weight"


@pytest.fixture
def protocol(registries, tmp_path):
    PROTOCOLS["staged"] = make()
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return load_protocol(str(path))


@pytest.fixture
def paths(tmp_path):
    return tiny.paths(tmp_path / "runs", tmp_path / "cache")


def started(experiment, paths):
    task = build(experiment.task, experiment.config.task.options)
    task.open(paths.cache)
    model = make_model(experiment, task)
    found = find_start(experiment, task, paths)
    return model, load_start(model, found, experiment)


def best(paths, experiment):
    (folder,) = paths.run_dir(experiment).glob("best-*")
    return folder


def test_row_of_a_file_starts_from_a_row_of_the_same_task(protocol):
    short, long, labels = (
        protocol.row(task, name, 1)
        for task, name in ((SOURCE, "short-stage"), (SOURCE, ROW), ("toy_labels", ROW))
    )
    assert long.config.start.run == short.hash
    assert (long.config.start.positions, long.config.task.options["length"]) == (SHORT, LONG)
    assert labels.config.start.run == long.hash
    assert (labels.config.start.positions, labels.config.start.extend_positions) == (LONG, None)
    assert long.overrides == {"variant": ROW}
    assert short.config.training.batch_size == 6
    experiments, _ = grid("mine", tasks=["toy_labels"], mechanisms=[ROW])
    assert [(x.task, x.row_name) for x in experiments] == [
        (SOURCE, "short-stage"),
        (SOURCE, ROW),
        ("toy_labels", ROW),
    ]


def test_stages_run_are_recorded_and_validated(protocol, paths):
    changes = {f"{SOURCE}.short-stage.training.learning_rate": 0.02, "training.weight_decay": 0.1}
    experiments, _ = grid("mine", tasks=["toy_labels"], mechanisms=[ROW], changes=changes)
    results, failed = arena(experiments, paths, GridCallback())
    assert failed == []
    short, long, labels = results
    assert long.start.positions == f"tiled, {SHORT} to {LONG} rows"
    assert long.start.changed["max_position_embeddings"] == [SHORT, LONG]
    assert (short.start, labels.start.positions) == (None, None)
    rates = [x.config.training.learning_rate for x in results]
    assert rates[0] == 0.02 != rates[1] == rates[2]
    validation = validate_records([paths.runs])
    assert [str(x) for x in validation.of("error")] == []
    assert arena(experiments, paths, GridCallback())[0] == results
    words = shlex.split(run_command(labels))
    given = [word.partition("=") for word in words[words.index("--set") + 1 :: 2]]
    again = protocol.row("toy_labels", ROW, 0, {k: json.loads(x) for k, _, x in given})
    assert again.hash == labels.config_hash


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_extended_model_is_the_short_one_on_short_inputs(protocol, paths, pooling):
    changes = {"model.pooling": pooling}
    short = protocol.row(SOURCE, "short-stage", 0, changes)
    long = protocol.row(SOURCE, "full", 0, {**changes, **tile_from("short-stage")})
    arena([short], paths, GridCallback())
    model, record = started(long, paths)
    before = LongspanForMaskedLM.from_pretrained(best(paths, short))
    inputs = torch.randint(3, toy_heads.WORDS, (3, SHORT))
    with torch.no_grad():
        there, here = (x.eval().model(inputs).last_hidden_state for x in (before, model))
    torch.testing.assert_close(here, there)
    assert record.new == record.dropped == []
    rows, tile = model.state_dict()[POSITIONS], before.state_dict()[POSITIONS]
    first = int(pooling == "cls")  # the row of the summary token is no position of a token
    assert rows[:first].equal(tile[:first])
    for position in range(LONG):
        assert rows[first + position].equal(tile[first + position % SHORT])


def tile_from(row, method="tile"):
    return {"start.task": SOURCE, "start.row": row, "start.extend_positions": method}


def test_other_methods_keep_or_stretch_the_learned_rows(protocol, paths):
    arena([protocol.row(SOURCE, "short-stage", 0)], paths, GridCallback())
    short = load_file(best(paths, protocol.row(SOURCE, "short-stage", 0)) / "model.safetensors")
    rows = {}
    for method in ("keep", "interpolate"):
        long = protocol.row(SOURCE, "full", 0, tile_from("short-stage", method))
        model, _ = started(long, paths)
        rows[method] = model.state_dict()[POSITIONS]
    drawn = make_model(long, build(SOURCE, long.config.task.options)).state_dict()[POSITIONS]
    assert rows["keep"].equal(torch.cat((short[POSITIONS], drawn[SHORT:])))
    assert rows["interpolate"][[0, -1]].equal(short[POSITIONS][[0, -1]])


def test_extension_is_named_only_where_it_is_needed(protocol):
    with pytest.raises(UnknownNameError, match="no method to extend learned positions called"):
        protocol.row(SOURCE, "full", 0, tile_from("short-stage", "copy"))
    assert find_refusal(protocol.row(SOURCE, "full", 0, tile_from("short-stage"))) is None
    reason = find_refusal(protocol.row(SOURCE, "full", 0, tile_from("short-stage", None)))
    remedy = f"copy positions with {SOURCE}.start.extend_positions=tile"
    assert f"up to {LONG} tokens, the checkpoint {SHORT} positions; {remedy}" in reason
    changes = {**tile_from("full"), f"{SOURCE}.short-stage.start.task": None}
    reason = find_refusal(protocol.row(SOURCE, "local", 0, changes))
    assert "so there is nothing to extend; omit extend_positions" in reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[rows.full]\nmechanism = "local"', "rows.full: a mechanism, a task or a part"),
        ('[rows.a]\nmechanism = "locl"', "rows.a: no mechanism called 'locl'"),
        ("[rows.a]\noptions = { window = 3 }", "rows.a.options: no field called 'window'"),
        ('[rows.a]\nkind = "other"', "no kind of row called 'other'"),
        ("[rows.a]\nstart = 3", "start must be a table"),
        ("[rows.a.tasks.listops]", "no task of this file called 'listops'"),
        ("[rows.a]\ntraining = { stepz = 3 }", "no field called 'stepz'"),
        ("[rows.a]\ntraining = { steps = -3 }", r"rows.a on toy_masked: .*steps"),
        ('[rows.a]\nstart = { task = "toy_masked" }', "start from each other: a on toy_masked"),
        ('["rows"."a.b"]', "must consist of letters"),
    ],
)  # fmt: skip
def test_unusable_rows_of_files_are_refused(registries, tmp_path, text, message):
    PROTOCOLS["staged"] = make()
    path = tmp_path / "other.toml"
    path.write_text(f'[tasks.toy_masked]\nfrom = "staged"\n{text}\n')
    with pytest.raises(PluginError, match=message):
        load_protocol(str(path))


def test_rows_of_xiong_small_read_equally_many_tokens(tmp_path):
    make_task(tmp_path, write_folder(tmp_path / "files"), name=CORPUS)
    protocol = get("xiong-small")
    try:
        short = protocol.row(CORPUS, "full-short", 0)
        scratch_rows = [x for x in protocol.named_rows if x.name.endswith("-from-scratch")]
        assert len(scratch_rows) == 4
        for variant in scratch_rows:
            long, scratch = (protocol.row(CORPUS, x, 0) for x in (variant.mechanism, variant.name))
            assert [find_refusal(x) for x in (short, long, scratch)] == [None] * 3
            assert (long.config.start.run, scratch.config.start) == (short.hash, None)
            assert _tokens(scratch.config) == _tokens(short.config) + _tokens(long.config)
            assert long.config.model == scratch.config.model
            labels = protocol.row("newsgroups", variant.name, 0).config
            assert labels.start.run == scratch.hash
            plain = protocol.row("newsgroups", variant.mechanism, 0).config
            assert plain.start.run == long.hash
            assert dataclasses.replace(labels, start=plain.start) == plain
    finally:
        register_imported(tmp_path / "none")


def _tokens(config):
    return config.training.steps * config.training.batch_size * config.task.options["length"]


@pytest.fixture
def checkpoint(registries, tmp_path):
    """Return a folder of save_pretrained for short inputs."""
    for cls in toy_heads.TOYS:
        register(cls)
    config = LongspanConfig(
        vocab_size=toy_heads.WORDS, max_position_embeddings=SHORT, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    )  # fmt: skip
    LongspanForMaskedLM(config).save_pretrained(tmp_path / "short")
    return tmp_path / "short"


TRAIN = {f"training.{k}": x for k, x in {**tiny.TRAIN, "steps": 2, "evaluate_every": 1}.items()}


def test_pretraining_of_a_shorter_checkpoint_is_refused_or_extends_it(checkpoint, paths):
    choices = RunChoices(changes={**TRAIN, "task.length": LONG})
    message = rf"positions; copy .*--extend-positions tile, .* longify {checkpoint} --max-length 24"
    with pytest.raises(OptionError, match=message):
        pretraining_experiment(SOURCE, checkpoint, choices)
    plain = pretraining_experiment(SOURCE, checkpoint, RunChoices(changes=TRAIN))
    assert plain.config.task.options["length"] == SHORT
    extended = dataclasses.replace(choices, extend_positions="tile", changes=TRAIN)
    result = pretrain(SOURCE, paths, start=checkpoint, choices=extended)
    assert (result.length, result.start.positions) == (LONG, f"tiled, {SHORT} to {LONG} rows")
    assert pretrain(SOURCE, paths, start=checkpoint, choices=extended) == result
    assert [str(x) for x in validate_records([paths.runs]).of("error")] == []
    (record,) = load_results([paths.runs])
    words = shlex.split(run_command(record))
    assert words[words.index("--extend-positions") + 1] == "tile"
    assert not [word for word in words if word.startswith("start.")]
    with pytest.raises(OptionError, match="none is named; name one to start from"):
        pretraining_experiment(SOURCE, None, extended)


def test_finetuning_extends_positions_too(checkpoint):
    choices = RunChoices(changes=TRAIN, extend_positions="tile")
    made = finetuning_experiment(checkpoint, "toy_labels", choices)
    assert (made.config.task.options["length"], made.config.start.positions) == (LONG, SHORT)


def test_every_row_of_a_file_may_start_from_one_row(registries, tmp_path):
    PROTOCOLS["staged"] = make()
    start = '{ task = "toy_masked", row = "short-stage", extend_positions = "tile" }'
    path = tmp_path / "mine.toml"
    path.write_text(
        f"""
[tasks.toy_masked]
from = "staged"
start = {start}
[rows.short-stage]
start = {{ task = "none" }}
task = {{ length = {SHORT} }}
"""
    )
    protocol = load_protocol(str(path))
    short = protocol.row(SOURCE, "short-stage", 0)
    for name in ("local", "full"):
        found = protocol.row(SOURCE, name, 0).config.start
        assert (found.run, found.extend_positions) == (short.hash, "tile")
    path = tmp_path / "other.toml"
    path.write_text('[tasks.toy_masked]\nfrom = "staged"\nstart = { row = "full" }\n')
    with pytest.raises(PluginError, match="start must have task and row"):
        load_protocol(str(path))
