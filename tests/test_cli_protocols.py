"""`longspan protocols`: what two recipes do otherwise, for people and for programs."""

import json

import pytest
from typer.testing import CliRunner

import longspan.cli
from longspan.arena import PROTOCOLS, get
from longspan.arena.protocols.compare import compare
from longspan.errors import UnknownNameError


def printed(*arguments):
    done = CliRunner().invoke(longspan.cli.app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_json_has_every_difference_with_its_choices():
    told = json.loads(printed("protocols", "diff", "lra-paper", "lra-repo", "--json"))
    assert (told["a"]["name"], told["b"]["name"]) == ("lra-paper", "lra-repo")
    assert told["b"]["differs"] == get("lra-repo").differs
    found = compare(get("lra-paper"), get("lra-repo"))
    assert [d["field"] for d in told["differences"]] == [d.field for d in found]
    (rate,) = [
        d for d in told["differences"]
        if d["field"] == "training.learning_rate" and "retrieval" in d["tasks"]
    ]  # fmt: skip
    assert (rate["a"], rate["b"]) == (0.5, 0.05)
    assert rate["choices_a"][0]["instead"][0][0] == 0.05


def test_the_table_has_a_row_for_each_difference_and_its_notes():
    text = printed("protocols", "diff", "lra-paper", "lra-repo", "--tasks", "retrieval")
    rows = [line.split() for line in text.splitlines()]
    assert ["training.learning_rate", "retrieval", "0.5", "0.05"] in [row[:4] for row in rows]
    (row,) = [row for row in rows if row[:1] == ["training.learning_rate"]]
    for number, name in zip(row[4:], ("lra-paper", "lra-repo"), strict=True):
        note = f"{number.strip(',')}  {name}, training.learning_rate: "
        assert len([line for line in text.splitlines() if line.startswith(note)]) == 1
    assert f"lra-repo, source: {get('lra-repo').source}" in text
    # the same words for both are no difference
    assert "differs:" not in text


def test_tasks_and_mechanisms_can_be_picked():
    text = printed(
        "protocols",
        "diff",
        "lra-small",
        "xiong",
        "--tasks",
        "text,listops",
        "--mechanisms",
        "local",
    )
    assert "options." not in text
    assert "retrieval" not in text.partition("1  ")[0]
    text = printed("protocols", "diff", "lra-small", "xiong", "--mechanisms", "nystrom,local")
    assert "options.nystrom.landmarks" in text
    assert "options.blockwise" not in text


def test_no_difference_is_said():
    assert printed("protocols", "diff", "quick", "quick") == "quick and quick: no difference\n"
    told = json.loads(printed("protocols", "diff", "quick", "quick", "--json"))
    assert told["differences"] == []


def test_list_and_show_agree_with_catalog():
    assert printed("protocols", "list", "--json") == printed("list", "protocols", "--json")
    assert printed("protocols", "show", "xiong") == printed("show", "xiong")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_show_tells_values_choices_and_grids(name):
    protocol = get(name)
    text, told = printed("show", name), json.loads(printed("show", name, "--json"))
    for choice in protocol.choices:
        assert told["choices"][f"{choice.field} ({', '.join(choice.tasks)})"] == str(choice)
        assert str(choice) in text
    grids = {task: dict(told[f"grid ({task})"]) for task in protocol.grids}
    assert grids == json.loads(json.dumps(protocol.grids))
    for task, own in protocol.exceptions.items():
        assert told[f"options by mechanism ({task})"] == own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diff", "quik", "xiong"], "no protocol called 'quik'; did you mean quick"),
        (["diff", "quick", "xiog"], "no protocol called 'xiog'; did you mean xiong"),
        (
            ["diff", "quick", "xiong", "--tasks", "txt"],
            "no task of 'quick' or 'xiong' called 'txt'",
        ),
        (["diff", "quick", "xiong", "--mechanisms", "locl"], "no mechanism called 'locl'"),
        (["show", "listops"], "no protocol called 'listops'"),
    ],
)
def test_unknown_names_are_refused(arguments, message):
    with pytest.raises(UnknownNameError, match=message):
        CliRunner().invoke(longspan.cli.app, ["protocols", *arguments], catch_exceptions=False)
