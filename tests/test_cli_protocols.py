"""`longspan protocols`: tables and JSON of differences between protocols."""

import json

import pytest
from typer.testing import CliRunner

import longspan.cli
from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols.compare import compare, recipe_values
from longspan.attention import MECHANISMS
from longspan.errors import UnknownNameError


def run_cli(*arguments):
    done = CliRunner().invoke(longspan.cli.app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_json_has_every_difference_with_choices():
    content = json.loads(run_cli("protocols", "diff", "lra-paper", "lra-repo", "--json"))
    assert (content["a"]["name"], content["b"]["name"]) == ("lra-paper", "lra-repo")
    assert content["b"]["differs"] == get("lra-repo").differs
    differences = compare(get("lra-paper"), get("lra-repo"))
    assert [d["field"] for d in content["differences"]] == [d.field for d in differences]
    (rate,) = [
        d
        for d in content["differences"]
        if d["field"] == "training.learning_rate" and "retrieval" in d["tasks"]
    ]
    assert (rate["a"], rate["b"]) == (0.5, 0.05)
    assert rate["choices_a"][0]["instead"][0][0] == 0.05


def test_table_has_one_row_per_difference_with_notes():
    text = run_cli("protocols", "diff", "lra-paper", "lra-repo", "--tasks", "retrieval")
    rows = [line.split() for line in text.splitlines()]
    assert ["training.learning_rate", "retrieval", "0.5", "0.05"] in [row[:4] for row in rows]
    (row,) = [row for row in rows if row[:1] == ["training.learning_rate"]]
    for number, name in zip(row[4:], ("lra-paper", "lra-repo"), strict=True):
        note = f"{number.strip(',')}  {name}, training.learning_rate: "
        assert len([line for line in text.splitlines() if line.startswith(note)]) == 1
    assert f"lra-repo, source: {get('lra-repo').source}" in text
    # Equal texts are no difference.
    assert "differs:" not in text


def test_diff_is_limited_to_given_tasks_and_mechanisms():
    command = ("protocols", "diff", "lra-small", "xiong")
    text = run_cli(*command, "--tasks", "text,listops", "--mechanisms", "local")
    assert "mechanism.nystrom" not in text
    assert "retrieval" not in text.partition("1  ")[0]
    text = run_cli(*command, "--mechanisms", "nystrom,local")
    assert "mechanism.nystrom.landmarks" in text
    assert "mechanism.blockwise" not in text


def test_equal_protocols_have_no_difference():
    assert run_cli("protocols", "diff", "smoke", "smoke") == "smoke and smoke: no difference\n"
    content = json.loads(run_cli("protocols", "diff", "smoke", "smoke", "--json"))
    assert content["differences"] == []


@pytest.mark.parametrize("name", PROTOCOLS)
def test_show_has_values_choices_and_grids(name):
    protocol = get(name)
    text, content = run_cli("show", name), json.loads(run_cli("show", name, "--json"))
    for choice in protocol.choices:
        value = recipe_values(protocol, choice.tasks[0], MECHANISMS)[choice.field]
        line = choice.describe(value)
        assert content["choices"][f"{choice.field} ({', '.join(choice.tasks)})"] == line
        assert line in text
    grids = {task: dict(content[f"grid ({task})"]) for task in protocol.grids}
    assert grids == json.loads(json.dumps(protocol.grids))
    for task, options in protocol.task_mechanism_options.items():
        assert content[f"options by mechanism ({task})"] == options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "quik", "xiong"], "'quik'; did you mean quick"),
        (["diff", "smoke", "xiog"], "'xiog'; did you mean xiong"),
        (["diff", "smoke", "xiong", "--tasks", "txt"], "task of 'smoke' or 'xiong'.*'txt'"),
        (["diff", "smoke", "xiong", "--mechanisms", "locl"], "mechanism.*'locl'"),
    ],
)
def test_unknown_names_are_rejected(arguments, message):
    with pytest.raises(UnknownNameError, match=message):
        CliRunner().invoke(longspan.cli.app, ["protocols", *arguments], catch_exceptions=False)
