"""Recipes compared with an independent transcription of their sources, and `protocols check`."""

import dataclasses
import json
import re

import pytest

from longspan.arena import PROTOCOLS, get, load_protocol
from longspan.arena.protocols.compare import explain, recipe_values
from longspan.attention import MECHANISMS
from published_values import check_sources, source_values, unsourced_fields

SOURCED = [name for name, protocol in PROTOCOLS.items() if protocol.source != "longspan"]
# Fields of longspan's own engine and data, which change no published value.
OWN = {
    *("task.rouge", "task.source", "task.seed", "task.train", "task.test"),
    *("task.validation", "task.end", "task.vocabulary", "task.minimum", "task.pixels"),
    *("task.grayscale", "task.split", "task.split_seed", "task.resolution", "task.difficulty"),
    *("model.initializer_range", "model.pair_head", "model.classifier_hidden_size"),
    *("model.adaptive_cutoffs", "model.adaptive_factor", "model.output_norm", "model.output_gate"),
    *("model.short_convolution", "model.short_convolution_activation"),
    "model.is_decoder",
    *("training.gradient_accumulation_steps", "training.gradient_checkpointing"),
    *("training.eval_batch_size", "training.max_grad_norm"),
    *(
        "training.evaluate_every",
        "training.train_eval_examples",
        "training.stop_at",
        "training.patience",
        "training.word_vectors",
        "training.schedule_over",
        "budget.kind",
        "budget.limit",
    ),
    "task.depth",
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
    fields = {task: recipe_values(protocol, task, MECHANISMS) for task in protocol.tasks}
    for x in source_values(protocol):
        assert set(x.tasks) <= set(protocol.tasks)
        assert all(x.field in fields[task] for task in x.tasks), x.field


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


def test_command_prints_value_source_other_values_and_reason(cli):
    code, out, _ = cli("protocols", "check", "lra-repo", "--tasks", "text", "--json", "--all")
    content = json.loads(out)
    assert code == 0
    assert all(tasks == ["text"] for tasks in content["unsourced_fields"].values())
    rows = {x["field"]: x for x in content["values"]}
    assert {x["task"] for x in rows.values()} == {"text"}
    assert rows["training.steps"]["value"] == 20_000
    assert "text_classification/configs/base_tc_config.py" in rows["training.steps"]["source"]
    length = rows["task.length"]
    assert (length["value"], length["instead"][0][0], bool(length["why"])) == (1000, 4000, True)
    out, _ = cli.done("protocols", "check", "lra-paper")
    assert "task.length" in out
    assert "training.batch_size" in out  # the text does not say
    assert "task.max_depth" not in out.partition("values with a source")[0]  # needs no choice
    fields = out.splitlines()[-1].partition("fields without a source or a choice: ")[2]
    assert re.search(r"model\.stem \(listops, .*\)", fields)
    assert "checkpoint_every" not in fields
    code, out, _ = cli("protocols", "check", "smoke")
    assert (code, "no source to be compared with" in out) == (0, True)


@pytest.mark.parametrize("name", SOURCED)
def test_each_value_of_the_transcription_has_a_source_in_its_recipe(name):
    protocol = get(name)
    for task in protocol.tasks:
        explained = explain(protocol, task)
        stated = {x.field for x in check_sources(protocol) if x.task == task}
        # Some derived sizes and defaults of mechanisms need no line in a recipe.
        lacking = {
            x for x in stated - explained.keys() if x.startswith(("task.", "model.", "train"))
        }
        assert lacking <= {"model.attention_head_size"}


def test_file_of_a_user_states_its_sources(cli, registries, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "lra-repo"\nsource = "our paper"\n'
        '[abbreviations]\nPAPER = "our paper"\n'
        "[tasks.text.training]\nsteps = 7\n"
        '[[choices]]\nfields = ["training.batch_size"]\ntasks = ["listops"]\n'
        'source = "{PAPER}, table 2"\nwhy = "longer"\n'
    )
    out, _ = cli.done("protocols", "check", str(path), "--all", "--json")
    rows = {(x["field"], x["task"]): x for x in json.loads(out)["values"]}
    assert rows["training.steps", "text"]["source"] == "our paper"
    assert rows["training.batch_size", "listops"]["source"] == "our paper, table 2"
    # A choice of the base holds where the file leaves the value, and goes where it sets another.
    assert rows["training.learning_rate", "image"]["instead"]
    path.write_text('base = "lra-repo"\n[tasks.image.training]\nlearning_rate = 0.1\n')
    changed = load_protocol(str(path.rename(tmp_path / "other.toml")))
    assert not explain(changed, "image")["training.learning_rate"].instead
    assert explain(changed, "retrieval")["training.learning_rate"].instead
