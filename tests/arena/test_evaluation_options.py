"""Options of a mechanism in held-out evaluation: configuration, protocols, runs, report."""

import dataclasses
import json

import pytest

import tiny
import toy_streams
from longspan.analysis import measure_context
from longspan.arena import PROTOCOLS, get, load_protocol, override, run
from longspan.arena.cross_evaluation import evaluate_elsewhere
from longspan.arena.experiment import hash_config
from longspan.arena.finished_run import evaluate_run
from longspan.arena.grid import find_refusal, grid
from longspan.arena.model import make_model
from longspan.arena.protocols import Protocol, Recipe
from longspan.arena.protocols.base import NamedRow
from longspan.arena.protocols.compare import compare
from longspan.config import (
    EvaluationConfig,
    ModelConfig,
    StageConfig,
    TrainingConfig,
    flatten,
    replace_fields,
)
from longspan.errors import OptionError, PluginError, UnknownNameError
from longspan.report.leaderboard.build import build_leaderboards
from longspan.results import CrossEvaluation, load_result, load_side_records
from longspan.tasks import TASKS, build
from longspan.tasks import register as register_task
from longspan.training.evaluation_options import EvaluationOptions
from published_values import check_sources

STREAM = toy_streams.ToyStream.info.name
MODEL = ModelConfig(**tiny.MODEL, hidden_dropout_prob=0.0, attention_dropout=0.0, position="rotary")
TRAINING = TrainingConfig(**{**tiny.TRAIN, "steps": 6, "evaluate_every": 3}, schedule="constant")
TRAINED = {"segment": 16, "memory": 16}
LONGER = {"segment": 8, "memory": 64, "clamp": 30, "same_length": True}
MADE = Protocol(
    name="longer-memory",
    summary="",
    source="a test",
    tasks=(STREAM,),
    differs="",
    recipe=lambda _: Recipe({}, MODEL, TRAINING),
    mechanism_options={"transformer_xl": TRAINED},
    evaluation_options={STREAM: {"transformer_xl": LONGER}},
    named_rows=(
        NamedRow(
            name="shorter",
            tasks=(STREAM,),
            changes={"evaluation.memory": 40},
            source="a test",
            mechanism="transformer_xl",
        ),
    ),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Protocol, paths and record file of a run."""
    if STREAM not in TASKS:
        register_task(toy_streams.ToyStream)
    PROTOCOLS[MADE.name] = MADE
    folder = tmp_path_factory.mktemp("streams")
    paths = tiny.paths(folder / "runs", folder / "cache")
    task = toy_streams.ToyStream()
    task.open(paths.cache)
    experiment = MADE.experiment(STREAM, "transformer_xl", 0)
    run(experiment, task, paths)
    yield task, paths, paths.record_file(experiment)
    del PROTOCOLS[MADE.name], TASKS[STREAM]


def configuration(**options):
    """Return the configuration of a run of transformer_xl with some options of evaluation."""
    made = get("smoke").config("listops", "transformer_xl")
    return dataclasses.replace(made, evaluation=EvaluationConfig(options=options))


def test_options_are_part_of_the_hash_where_they_differ_from_training():
    plain = configuration()
    memory = plain.mechanism.options["memory"]
    assert hash_config(configuration(memory=memory)) == hash_config(plain)
    assert hash_config(configuration(memory=memory + 1)) != hash_config(plain)
    assert hash_config(configuration(memory=memory, clamp=9)) == hash_config(configuration(clamp=9))
    changed = replace_fields(configuration(memory=8), {"mechanism.memory": 8})
    assert hash_config(changed) == hash_config(replace_fields(plain, {"mechanism.memory": 8}))
    assert changed.evaluation_changes == {}
    # The option stays that of evaluation, whatever training has later.
    again = replace_fields(changed, {"mechanism.memory": 4})
    assert again.evaluation_changes == {"memory": 8}


def test_a_configuration_without_them_is_hashed_as_before():
    """Published records have no such field; the digest is that of the tree without it."""
    tree = flatten(configuration())
    assert not [name for name in tree if name.startswith("evaluation.")]
    assert flatten(configuration(memory=9)) == {**tree, "evaluation.memory": 9}


def test_experiments_take_them_by_dotted_name():
    made = tiny.experiment("transformer_xl", changes={"evaluation.memory": 9})
    assert made.config.evaluation.options == {"memory": 9}
    assert made.overrides["evaluation.memory"] == 9
    plain = tiny.experiment("transformer_xl")
    same = override(plain, {"evaluation.memory": plain.config.mechanism.options["memory"]})
    assert same.overrides == plain.overrides
    with pytest.raises(UnknownNameError, match="option of mechanism 'transformer_xl' called 'mem"):
        override(plain, {"evaluation.memry": 9})
    with pytest.raises(UnknownNameError, match="option of mechanism 'full' called 'memory'"):
        tiny.experiment("full", changes={"evaluation.memory": 9})
    with pytest.raises(UnknownNameError, match="called 'backend'"):
        override(plain, {"evaluation.backend": "torch"})


def test_settings_are_limited_to_rows_like_those_of_training():
    changes = {"evaluation.window": 9, "training.steps": 3}
    (made,) = grid("smoke", tasks=["listops"], mechanisms=["local"], changes=changes)[0]
    assert made.config.evaluation_changes == {"window": 9}
    changes = {"listops.transformer_xl.evaluation.memory": 9}
    names = ["transformer_xl", "local"]
    found = grid("smoke", tasks=["listops"], mechanisms=names, changes=changes)[0]
    made = {x.mechanism: x.config.evaluation_changes for x in found}
    assert made == {"transformer_xl": {"memory": 9}, "local": {}}


def test_options_that_change_parameters_are_refused_before_training():
    made = tiny.experiment("performer", changes={"evaluation.features": 3})
    assert "cannot be evaluated with features=3" in find_refusal(made)
    assert "train with these options instead" in find_refusal(made)
    with pytest.raises(OptionError, match="memory must be an integer >= 0"):
        grid("smoke", tasks=["listops"], mechanisms=["transformer_xl"],
             changes={"evaluation.memory": -1})  # fmt: skip


def test_lists_of_another_number_of_layers_are_refused():
    """Each layer reads the value of its own place alone, so that further ones have no effect."""
    layers = tiny.MODEL["num_hidden_layers"]

    def experiment(window):
        changes = {"mechanism.window": 2, "evaluation.window": window}
        return tiny.experiment("longformer", changes=changes)

    message = f"window of longformer must be one value, or a list with one for each of the {layers}"
    made = experiment([4] * (layers + 1))
    assert f"evaluation: {message} layers, got {layers + 1}" in find_refusal(made)
    with pytest.raises(OptionError, match=f"{message} layers, got {layers + 1}"):
        EvaluationOptions(
            make_model(made, build("listops", tiny.TASK)),
            *("longformer", made.config.evaluation_changes),
        )
    assert find_refusal(experiment([4] * layers)) is None
    made = tiny.experiment("longformer", changes={"mechanism.window": []})
    assert f"each of the {layers} layers, got 0" in find_refusal(made)


def test_a_stage_has_the_options_of_its_run():
    with pytest.raises(OptionError, match=r"a stage changes no evaluation\.memory; set it for"):
        StageConfig(steps=1, changes={"evaluation.memory": 9})
    stages = (StageConfig(steps=1, changes={"mechanism.memory": 4}), StageConfig(steps=1))
    changes = {"evaluation.memory": 9, "mechanism.memory": 8, "training.stages": stages}
    first, last = tiny.experiment("transformer_xl", changes=changes).config.stages()
    assert first.evaluation_changes == last.evaluation_changes == {"memory": 9}


def test_records_name_the_options(trained):
    _, _, record = trained
    result = load_result(record)
    assert result.config.evaluation.options == LONGER
    assert result.overrides == {}
    plain = dataclasses.replace(MADE, evaluation_options={})
    assert plain.experiment(STREAM, "transformer_xl", 0).hash != result.config_hash
    assert json.loads(record.read_text())["config"]["evaluation"] == {"options": LONGER}


@pytest.mark.parametrize("split", ["validation", "test", "train"])
def test_saved_models_are_scored_again_with_the_options_of_the_run(trained, split):
    _, paths, record = trained
    result = load_result(record)
    found = evaluate_run(record, split, paths)[0].score
    if split != "train":
        assert found == result.scores[split]
        return
    # The rows of the run's own sample follow each other, those of `eval` are drawn.
    assert found.num_examples == result.scores["train"].num_examples


def test_options_by_hand_are_saved_beside_the_record(trained):
    _, paths, record = trained
    result = load_result(record)
    as_trained = {f"evaluation.{name}": x for name, x in TRAINED.items()}
    as_trained |= {"evaluation.clamp": None, "evaluation.same_length": False}
    found = evaluate_elsewhere(record, paths, changes=as_trained)
    assert (found.mechanism_options, found.changed_options) == ({}, {})
    assert found.score.metrics != result.scores["test"].metrics
    longest = evaluate_elsewhere(record, paths, changes={"evaluation.memory": 128})
    assert longest.changed_options == {
        f"evaluation.{name}": x for name, x in {**LONGER, "memory": 128}.items()
    }
    assert len({found.filename, longest.filename}) == 2
    # Documents of other lengths are read with the options of the run.
    shorter = evaluate_elsewhere(record, paths, changes={"task.held_out_tokens": 60})
    assert shorter.mechanism_options == LONGER


def test_the_use_of_the_context_is_measured_with_the_options(trained):
    """The longest context is a segment of 8 with the memory of 64 that evaluations have."""
    _, paths, record = trained
    found = measure_context(record, paths, blocks=2, tolerance=0.01)
    assert found.contexts[-1].context == 8 + 64
    # Of 64 to 71 keys before the query, the memory has 64.
    assert sum(found.parts[0].values()) == pytest.approx(1)
    assert found.parts[0]["memory"] > 0.8


@pytest.mark.parametrize(
    ("changes", "split", "error", "message"),
    [
        ({"evaluation.memory": 64}, "test", OptionError, "was trained on toy_stream with these"),
        ({"evaluation.memory": 9}, "train", OptionError, "those of validation and test, got"),
        ({"evaluation.memry": 9}, "test", UnknownNameError, "called 'memry'; did you mean memory"),
        ({"evaluation.memory": -1}, "test", OptionError, "memory must be an integer >= 0, got -1"),
        ({"mechanism.memory": 9}, "test", OptionError, "got mechanism.memory"),
    ],
)
def test_requests_without_sense_are_refused(trained, changes, split, error, message):
    _, paths, record = trained
    with pytest.raises(error, match=message):
        evaluate_elsewhere(record, paths, changes=changes, split=split)


def test_command_evaluates_with_options_by_hand_and_reports(cli, trained):
    _, paths, record = trained
    flags = ["--cache", paths.cache, "--device", "cpu"]
    out, _ = cli.done("eval", record, *flags, "--json")
    assert [x["loss"] for x in json.loads(out)] == [load_result(record).scores["test"].loss]
    for memory in (96, 112):
        out, _ = cli.done("eval", record, *flags, "--set", f"evaluation.memory={memory}")
        assert f"evaluation.memory={memory}" in out
    saved = load_side_records(CrossEvaluation, [paths.runs])
    assert {x.mechanism_options["memory"] for x in saved} == {96, 112}
    page = paths.runs / "report.html"
    out, _ = cli.done("report", paths.runs, "--section", "other-tasks", "--format", "csv",
                         "--output", page)  # fmt: skip
    lines = out.splitlines()[1:]
    assert len(lines) == 2
    assert all(any(f"evaluation.memory = {x}" in y for y in lines) for x in (96, 112))


def test_rows_of_the_report_are_not_merged(trained):
    """Scores of one model with other options in evaluation are other rows, each with a note."""
    _, _, record = trained
    result = load_result(record)

    def with_options(options, **overrides):
        config = dataclasses.replace(result.config, evaluation=EvaluationConfig(options=options))
        return dataclasses.replace(
            result, config=config, config_hash=hash_config(config), overrides=overrides
        )

    others = [with_options({}), with_options({**LONGER, "memory": 9})]
    (board,) = build_leaderboards([result, *others])
    assert len(board.rows) == 3
    assert len({row.label for row in board.rows}) == 3
    assert any("evaluation.memory=64" in row.label for row in board.rows)
    notes = [x for x in board.notes if x.startswith("Evaluated with other options than trained:")]
    assert len(notes) == 2
    assert sum("memory = 64, same_length = true" in x for x in notes) == 1
    assert sorted(len(row.notes) for row in board.rows) == [0, 1, 1]
    overridden = with_options({"memory": 9}, **{"evaluation.memory": 9})
    (board,) = build_leaderboards([result, overridden])
    assert len(board.rows) == 2


def test_variants_and_files_have_options_of_evaluation(trained, registries, tmp_path):
    made = MADE.row(STREAM, "shorter", 0)
    assert made.config.evaluation_changes == {**LONGER, "memory": 40}
    path = tmp_path / "mine.toml"
    path.write_text(
        f"""
        base = "{MADE.name}"
        [evaluation.transformer_xl]
        memory = 32
        clamp = "none"
        [evaluation.local]
        window = 9
        [tasks.{STREAM}.evaluation.transformer_xl]
        segment = 4
        [rows.wide]
        mechanism = "transformer_xl"
        options = {{ memory = 8 }}
        evaluation = {{ memory = 99 }}
        """
    )
    mine = load_protocol(str(path))
    found = mine.config(STREAM, "transformer_xl")
    assert found.evaluation.options == {**LONGER, "memory": 32, "clamp": None, "segment": 4}
    assert mine.config(STREAM, "local").evaluation_changes == {"window": 9}
    wide = mine.row(STREAM, "wide", 0).config
    assert (wide.mechanism.options["memory"], wide.evaluation.options["memory"]) == (8, 99)
    differing = {x.field: (x.a, x.b) for x in compare(MADE, mine)}
    assert differing.pop("row.wide")[0] is None
    assert differing == {
        "evaluation.transformer_xl.memory": (64, 32),
        "evaluation.transformer_xl.clamp": (30, None),
        "evaluation.transformer_xl.segment": (8, 4),
        "evaluation.local.window": (None, 9),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[evaluation.locl]\nwindow = 3\n", "evaluation: no mechanism called 'locl'"),
        ("[evaluation.local]\nwindw = 3\n", "evaluation: no option of mechanism 'local' called"),
        ("[rows.a]\nevaluation = { window = 3 }\n", "evaluation: no field called 'window'"),
    ],
)
def test_files_with_unknown_options_are_refused(registries, tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "smoke"\n{text}')
    with pytest.raises(PluginError, match=message):
        load_protocol(str(path))


# Scripts of kimiyoung/transformer-xl: --tgt_len, --mem_len, --clamp_len; --same_length in all.
SCRIPTS = [
    ("text8", "transformer_xl", (80, 2_100, 820)),  # tf/scripts/text8_base_gpu.sh
    ("enwik8", "transformer_xl", (80, 2_100, 820)),  # pytorch/run_enwik8_base.sh
    ("wikitext_103", "transformer_xl", (64, 640, 400)),  # pytorch/run_wt103_base.sh
    ("text8", "transformer-xl-24", (128, 3_800, 1_000)),  # tf/sota/text8.sh
    ("enwik8", "transformer-xl-24", (128, 3_800, 1_000)),  # tf/sota/enwik8.sh
    ("wikitext_103", "transformer-xl-large", (128, 1_600, 1_000)),  # pytorch/run_wt103_large.sh
]


@pytest.mark.parametrize(("task", "row", "expected"), SCRIPTS)
def test_transformer_xl_is_evaluated_as_its_scripts_do(task, row, expected):
    config = get("transformer-xl").row(task, row, 0).config
    found = config.evaluation_changes
    assert (found["segment"], found["memory"], found["clamp"]) == expected
    assert found["same_length"] is True
    assert config.mechanism.options["clamp"] is None
    assert config.mechanism.options["same_length"] is False
    assert get("transformer-xl").config(task, "local").evaluation.options == {}


def test_evaluation_options_of_sources_are_compared():
    checks = [x for x in check_sources(get("transformer-xl")) if x.field.startswith("evaluation.")]
    assert {x.verdict for x in checks} == {"equal", "chosen"}
    chosen = {(x.field, x.source) for x in checks if x.verdict == "chosen"}
    name = "evaluation.transformer_xl"
    assert chosen == {(f"{name}.segment", 128), (f"{name}.memory", 896)}
    compressive = get("compressive-transformer")
    found = compressive.config("enwik8", "compressive").evaluation_changes
    assert found == {"compressed_memory": 3_072}
