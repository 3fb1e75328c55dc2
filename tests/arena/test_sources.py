"""Protocols compared with the values of their sources, and `longspan protocols check`."""

import dataclasses
import json
import re

import pytest

from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols.compare import recipe_values
from longspan.arena.protocols.sources import check_sources, source_values, unsourced_fields
from longspan.attention import MECHANISMS

SOURCED = [name for name, protocol in PROTOCOLS.items() if protocol.source != "longspan"]
# Fields of longspan's own engine and data, which change no published value.
OWN = {
    *("task.rouge", "task.source", "task.seed", "task.train", "task.test"),
    *("task.validation", "task.end", "task.vocabulary", "task.minimum", "task.pixels"),
    *("task.grayscale", "task.split", "task.split_seed", "task.resolution", "task.difficulty"),
    *("model.initializer_range", "model.pair_head", "model.classifier_hidden_size"),
    *("model.adaptive_cutoffs", "model.adaptive_factor"),
    *("training.gradient_accumulation_steps", "training.gradient_checkpointing"),
    *("training.eval_batch_size", "training.max_grad_norm"),
    *(
        "training.evaluate_every",
        "training.train_eval_examples",
        "training.schedule_over",
        "budget.kind",
        "budget.limit",
    ),
    *("task.gray_levels", "task.global_tokens", "model.stem"),
    *("task.keep_state", "task.held_out_tokens", "task.stride", "task.evaluation_length"),
}
# Of a stage, also its evaluation: papers report the last stage alone.
OWN_OF_STAGES = {*OWN, "task.evaluation", "keep_optimizer"}


@pytest.mark.parametrize("name", SOURCED)
def test_every_difference_from_a_source_is_a_choice(name):
    checks = check_sources(get(name))
    assert len(checks) > 20 * len(get(name).tasks)
    assert [x for x in checks if x.verdict == "unexplained"] == []


@pytest.mark.parametrize("name", SOURCED)
def test_sizes_and_training_of_every_task_have_a_source(name):
    found = {x for x in unsourced_fields(get(name)) if not x.startswith(("grid.", "mechanism."))}
    of_stages = {x for x in found if x.startswith("stage.")}
    assert found - of_stages <= OWN
    assert {x.split(".", 2)[2] for x in of_stages} <= OWN_OF_STAGES


@pytest.mark.parametrize("name", SOURCED)
def test_sources_name_fields_and_tasks_of_the_protocol(name):
    protocol = get(name)
    for x in source_values(protocol):
        assert set(x.tasks) <= set(protocol.tasks)
        for task in x.tasks:
            assert x.field in recipe_values(protocol, task, MECHANISMS)


def test_unsourced_fields_are_by_task_and_name_options_that_the_protocol_sets():
    protocol = get("lra-repo")
    every = unsourced_fields(protocol)
    for field, tasks in every.items():
        for x in source_values(protocol):
            assert x.field != field or not set(tasks) & set(x.tasks)
    text = unsourced_fields(protocol, ["text"])
    assert text == {field: ("text",) for field, tasks in every.items() if "text" in tasks}
    options = {"local": {"backend": "auto"}}
    changed = dataclasses.replace(protocol, mechanism_options=options, task_mechanism_options={})
    assert unsourced_fields(changed)["mechanism.local.backend"] == protocol.tasks
    assert "mechanism.local.backend" not in every


def test_changed_value_without_choice_is_unexplained():
    protocol = get("lra-repo")

    def recipe(task):
        own = protocol.recipe(task)
        return own._replace(training=dataclasses.replace(own.training, batch_size=31))

    changed = dataclasses.replace(protocol, recipe=recipe)
    found = {x.field for x in check_sources(changed) if x.verdict == "unexplained"}
    assert found == {"training.batch_size"}


def test_command_prints_field_ours_source_place_and_verdict(cli):
    code, out, _ = cli("protocols", "check", "lra-repo", "--tasks", "text", "--json", "--all")
    content = json.loads(out)
    rows = content["checks"]
    assert all(tasks == ["text"] for tasks in content["unsourced_fields"].values())
    assert code == 0
    (length,) = [x for x in rows if x["field"] == "task.length"]
    assert (length["ours"], length["source"], length["verdict"]) == (1000, 1000, "equal")
    assert length["place"].endswith("text_classification/configs/base_tc_config.py")
    code, out, _ = cli("protocols", "check", "lra-paper")
    assert code == 0
    assert "figure 5" not in out  # an equal value
    assert "task.length" in out
    assert "values of the sources" in out
    fields = out.splitlines()[-1].partition("fields without a source or a choice: ")[2]
    assert re.search(r"model\.stem \(listops, .*\)", fields)
    assert "checkpoint_every" not in fields
    code, out, _ = cli("protocols", "check", "smoke")
    assert (code, "no source to be compared with" in out) == (0, True)


def test_command_fails_on_an_unexplained_difference(cli, monkeypatch):
    without = dataclasses.replace(get("lra-repo"), choices=())
    monkeypatch.setitem(PROTOCOLS, "lra-repo", without)
    code, out, _ = cli("protocols", "check", "lra-repo")
    assert (code, "unexplained" in out) == (1, True)
