"""Experiments of every protocol with every mechanism, and their hashes."""

import dataclasses
import json

import pytest

import tiny
from longspan.arena import (
    PROTOCOLS,
    SearchSpace,
    find_refusal,
    get,
    grid,
    make_model,
    override,
    search,
)
from longspan.attention import MECHANISMS, options_of
from longspan.config import Budget, ModelConfig, TrainingConfig, flatten
from longspan.errors import OptionError, UnknownNameError
from longspan.files import to_json_types
from longspan.tasks import TASKS

CELLS = [(p.name, task) for p in PROTOCOLS.values() for task in p.tasks]

OF_DECODERS = ("recall-state", "mad", "mad-small", "duplication-small")
SHORT_FIRST = ("longformer-char", "long-short-char")  # stages of every row are of other lengths


def shallow(experiment):
    """Return it with two layers, which are built as all are, unless options name each layer."""
    if any(isinstance(x, list) for x in experiment.config.mechanism.options.values()):
        return experiment
    layers = min(2, experiment.config.model.num_hidden_layers)
    return override(experiment, {"model.num_hidden_layers": layers})


@pytest.mark.parametrize(("protocol", "task"), CELLS)
def test_every_cell_builds_an_experiment_and_a_model(protocol, task):
    is_causal = TASKS[task].info.head == "causal_lm" or protocol in OF_DECODERS
    # Models of both texts differ in their vocabularies alone, and their stages take long to build:
    # `test_every_causal_mechanism_has_a_row_in_every_stage` builds one of them.
    builds_again = protocol in SHORT_FIRST and task == "enwik8"
    for mechanism, cls in MECHANISMS.items():
        x = get(protocol).experiment(task, mechanism, 7)
        assert (x.protocol, x.task, x.mechanism, x.seed) == (protocol, task, mechanism, 7)
        if mechanism == "synthesizer" and protocol in SHORT_FIRST:
            assert "stage 2 has other weights" in find_refusal(shallow(x))
        elif not builds_again:
            builds = cls.traits.causal or not is_causal
            assert (find_refusal(shallow(x)) is None) == builds, mechanism
        flat = flatten(x.config)
        assert json.loads(json.dumps(flat, allow_nan=False)) == flat
        own = get(protocol).options_for(task, mechanism)
        assert x.config.mechanism.options == to_json_types({**options_of(mechanism), **own})
        assert x.overrides == {}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_has_source_and_registered_names(name):
    protocol = get(name)
    assert all((protocol.summary, protocol.source, protocol.differs))
    assert protocol.tasks
    assert set(protocol.tasks) <= set(TASKS)
    assert set(protocol.mechanism_options) <= set(MECHANISMS)
    assert {m for own in protocol.task_mechanism_options.values() for m in own} <= set(MECHANISMS)
    assert {*protocol.task_mechanism_options, *protocol.grids} <= set(protocol.tasks)
    assert {task for choice in protocol.choices for task in choice.tasks} <= set(protocol.tasks)


def test_budget_of_protocol_applies_to_its_runs_and_is_printed(cli, monkeypatch):
    budget = Budget(kind="flops", limit=1e9)
    budgeted = dataclasses.replace(get("smoke"), name="budgeted", budget=budget)
    monkeypatch.setitem(PROTOCOLS, "budgeted", budgeted)
    (experiment,), _ = grid("budgeted", tasks=["listops"], mechanisms=["local"])
    space = SearchSpace(grid={"training.batch_size": [4]})
    trial = search("budgeted", "listops", "local", space).experiments[0]
    assert experiment.config.budget == trial.config.budget == budget
    # The protocol's own budget is not an override; any other budget is.
    assert experiment.overrides == {}
    (other,), _ = grid("budgeted", tasks=["listops"], mechanisms=["local"], budget=Budget())
    assert (other.config.budget, other.overrides) == (Budget(), {"budget": "steps"})
    code, out, _ = cli("show", "budgeted", "--json")
    assert (code, json.loads(out)["budget"]) == (0, "flops=1000000000")


def hashes():
    return {
        (p.name, task): p.experiment(task, "performer", 0).hash
        for p in PROTOCOLS.values()
        for task in p.tasks
    }


def test_hashes_are_equal_across_processes():
    assert tiny.call_elsewhere(hashes) == hashes()


def different_value(value, field):
    """Return a different valid value of the field."""
    choices = {
        "attention_head_size": 4,
        "position": "rotary",
        "adaptive_cutoffs": [3],
        "short_convolution": 3,
        "short_convolution_activation": "silu",
        "output_norm": "rms",
        "output_gate": "sigmoid",
        "schedule_over": "run",
        "stem": "convolution",
        "norm": "post",
        "pooling": "cls",
        "pair_head": "concatenate",
        "schedule": "cosine",
        "precision": "bf16",
        "selection": "last",
        "adam_betas": [0.9, 0.98],
        "train_eval_examples": 10,
        "max_grad_norm": 0.5,
        "stop_at": 0.5,
        "patience": 3,
        "word_vectors": "lsa",
        "stages": [{"steps": 1, "changes": {}, "keep_optimizer": True}],
    }
    if field in choices:
        return choices[field]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 if value else 0.5
    return value + 1


def every_field():
    experiment = tiny.experiment("performer")
    # The released data set rejects the tiny sizes.
    skipped = {"task.source", *(f"task.{x}" for x in ("name", "version"))}
    for name, value in flatten(experiment.config).items():
        part, _, field = name.partition(".")
        if part == "budget" or name in skipped or field in ("name", "backend"):
            continue
        if part == "mechanism" and not isinstance(value, int | float):
            continue
        yield name, different_value(value, field)
    yield "task.source", "release"


FIELDS = dict(every_field())


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_changes_hash_and_overrides(name):
    experiment = tiny.experiment("performer")
    if name == "task.source":
        experiment = get("lra-small").experiment("listops", "performer", 0)
    changed = override(experiment, {name: FIELDS[name]})
    assert changed.hash != experiment.hash
    assert changed.overrides == {**experiment.overrides, name: FIELDS[name]}
    assert changed.config != experiment.config


def test_field_cases_cover_configuration():
    parts = {name.partition(".")[0] for name in FIELDS}
    assert parts == {"task", "mechanism", "model", "training"}
    kinds = {"model": ModelConfig, "training": TrainingConfig}
    for part, kind in kinds.items():
        assert {f"{part}.{field.name}" for field in dataclasses.fields(kind)} <= set(FIELDS)


def test_hash_covers_mechanism_backend_and_task_but_not_seed():
    experiment = tiny.experiment()
    others = [
        tiny.experiment("full"),
        override(experiment, {"mechanism.backend": "reference"}),
        get("smoke").experiment("text", "local", 0),
        get("smoke").experiment("listops", "local", 0),
    ]
    assert len({x.hash for x in (experiment, *others)}) == 5
    again = dataclasses.replace(experiment, seed=5)
    assert (again.hash, again.name) == (experiment.hash, f"local-{experiment.hash}-5")


def test_seed_determines_initial_weights(listops):
    one, two = (make_model(tiny.experiment(seed=seed), listops) for seed in (0, 1))
    again = make_model(tiny.experiment(seed=0), listops)
    name = "classifier.output.weight"
    assert one.state_dict()[name].equal(again.state_dict()[name])
    assert not one.state_dict()[name].equal(two.state_dict()[name])


@pytest.mark.parametrize("name", ["lra-paper", "lra-repo"])
def test_references_are_rows_with_their_own_architecture(name):
    protocol = get(name)
    for reference in protocol.named_rows:
        assert reference.source
        for task in reference.tasks:
            experiment = protocol.row(task, reference.name, 3)
            assert experiment.overrides == {"row": reference.name}
            flat = flatten(experiment.config)
            assert {field: flat[field] for field in reference.changes} == reference.changes
            assert find_refusal(experiment) is None
            assert experiment.hash != protocol.row(task, reference.mechanism, 3).hash
    (experiment,), left_out = grid(name, tasks=["image"], mechanisms=["cnn"])
    assert (experiment.mechanism, left_out) == ("full", [])


def test_reference_of_another_task_is_refused():
    with pytest.raises(OptionError, match="reference row 'cnn-stem' is a row of image only"):
        get("lra-paper").row("text", "cnn-stem", 0)
    with pytest.raises(
        UnknownNameError, match="no mechanism or reference row called 'cnn-sten'; did"
    ):
        get("lra-paper").row("image", "cnn-sten", 0)


def test_reference_row_refuses_changes_of_its_own_fields():
    protocol = get("lra-paper")
    message = "'cnn-stem' sets model.stem=convolution, got none; run 'full' with another value"
    with pytest.raises(OptionError, match=message):
        protocol.row("image", "cnn-stem", 0, {"model.stem": "none"})
    with pytest.raises(OptionError, match=message):
        grid("lra-paper", tasks=["image"], mechanisms=["cnn-stem"], changes={"model.stem": "none"})
    other = protocol.row("image", "cnn-stem", 0, {"training.steps": 9, "model.stem": "convolution"})
    assert other.overrides == {"row": "cnn-stem", "training.steps": 9}


def test_reference_row_names_its_run():
    protocol = get("lra-paper")
    reference = protocol.row("image", "cnn-stem", 0)
    same = protocol.row("image", "full", 0, {"model.stem": "convolution"})
    assert reference.hash == same.hash
    assert (reference.row_name, same.row_name) == ("cnn-stem", "full")
    assert (reference.name, same.name) == (f"cnn-stem-{same.hash}-0", f"full-{same.hash}-0")


def test_first_global_token_without_summary_token_is_stated():
    protocol = get("lra-repo")
    without = [task for task in protocol.tasks if protocol.recipe(task).model.pooling != "cls"]
    assert without
    assert protocol.config(without[0], "longformer").mechanism.options["first_global"]
    assert "the first pixel or byte is global, in `longformer` alone" in protocol.differs
    (choice,) = [x for x in protocol.choices if x.field == "mechanism.longformer.first_global"]
    assert "elsewhere it is the first pixel or byte" in choice.why
