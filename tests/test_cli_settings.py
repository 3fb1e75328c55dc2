"""Command line: settings of a mechanism or task, protocol files, and plug-ins."""

import json

import pytest

import tiny
from longspan.arena import PROTOCOLS, get, plugins
from longspan.attention import MECHANISMS
from longspan.errors import PluginError
from longspan.results import load_results
from test_cli_errors import check_rejected

MECHANISM = """
from longspan.attention import register
from longspan.attention.mechanisms.local import LocalAttention

@register("of_a_user", size_option="window")
class OfAUser(LocalAttention):
    pass
"""

pytestmark = pytest.mark.usefixtures("registries")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working folder with a plug-in and two protocol files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gated.py").write_text(MECHANISM)
    tables = ["[tasks.listops]", 'from = "lra-small"']
    for part, values in (("task", tiny.TASK), ("model", tiny.MODEL), ("training", tiny.TRAIN)):
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        tables += [f"[tasks.listops.{part}]", *lines]
    mechanism = ["[mechanisms.of_a_user]", "window = 3"]
    text = "\n".join([*mechanism, *tables, "[tasks.recall]", 'from = "diagnostic"'])
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "other.py").write_text(
        "import dataclasses\nfrom longspan.arena.protocols import get, register\n"
        "register(dataclasses.replace(get('diagnostic'), name='other'))\n"
    )
    return tmp_path


MINE = ("--protocol", "mine.toml", "--import", "gated.py")


def planned(cli, *arguments):
    """Return the steps of the planned runs by task and row."""
    out, _ = cli.done("arena", *arguments, "--dry-run", "--json")
    return {(x["task"], x["row_name"]): x["steps"] for x in json.loads(out)["runs"]}


def test_arena_runs_plugin_and_protocol_file_with_settings_of_each(cli, folder, tiny_cache):
    command = ["arena", *MINE, "--tasks", "listops", "--mechanisms", "local,of_a_user"]
    command += ["--set", "of_a_user.window=5", "--set", "listops.steps=8"]
    _, err = cli.done(*command, "--cache", tiny_cache, "--device", "cpu", "--json")
    assert f"report: {'runs/mine/report.html'}" in err
    records = {x.mechanism: x for x in load_results([folder / "runs/mine"])}
    assert {x.protocol for x in records.values()} == {"mine"}
    assert records["of_a_user"].overrides == {"mechanism.window": 5, "training.steps": 8}
    assert records["local"].overrides == {"training.steps": 8}
    changes = {"mechanism.window": 5, "training.steps": 8}
    expected = get("mine").row("listops", "of_a_user", 0, changes)
    assert records["of_a_user"].config_hash == expected.hash
    _, out, _ = cli("results", "check", "runs", "--import", "gated.py")
    assert "0 errors" in out


def test_dry_run_plans_settings_of_one_task_and_mechanism(cli, folder):
    steps = planned(
        cli, *MINE, "--mechanisms", "local,of_a_user", "--set", "listops.steps=3",
        "--set", "of_a_user.training.steps=4", "--set", "listops.of_a_user.steps=5",
    )  # fmt: skip
    assert steps == {
        ("listops", "local"): 3,
        ("listops", "of_a_user"): 5,
        ("recall", "local"): 2_000,
        ("recall", "of_a_user"): 4,
    }


def test_plugin_is_imported_before_the_protocol_file_is_read(cli, folder):
    out, _ = cli.done("show", "mine.toml", "--import", "gated.py", "--json")
    assert json.loads(out)["options by mechanism"]["of_a_user"] == {"window": 3}


def test_every_command_takes_protocol_files(cli, folder, tiny_cache):
    out, _ = cli.done("protocols", "diff", "mine.toml", "other.py", "--import", "gated.py")
    assert "mine, source: mine.toml" in out
    code, out, _ = cli("protocols", "check", "other.py")
    assert (code, out) == (0, "other is from other.py; it has no source to be compared with\n")
    code, out, _ = cli("protocols", "check", "mine.toml", "--json")
    choices = {(x["field"], x["task"]) for x in json.loads(out)["values"]}
    assert (code, ("training.precision", "listops") in choices) == (0, True)  # that of lra-small
    code, out, _ = cli("list", "protocols", "--import", "mine.toml", "--json")
    assert "mine" in {row["name"] for row in json.loads(out)}
    code, out, _ = cli("show", "other.py", "--json")
    assert json.loads(out)["name"] == "other"
    build = ("data", "build", "listops", "--protocol", "mine.toml", "--cache", tiny_cache, "--json")
    code, out, err = cli(*build)
    assert json.loads(out)["train"] == tiny.TASK["train"], err
    assert planned(cli, "--protocol", "other.py", "--mechanisms", "full").keys() == {
        ("recall", "full"),
        ("copying", "full"),
    }


def test_lists_contain_plugins(cli, folder):
    _, out, _ = cli("list", "--import", "gated.py", "--json")
    assert "of_a_user" in {row["name"] for row in json.loads(out)}
    _, out, _ = cli("show", "of_a_user", "--import", "gated.py", "--json")
    assert json.loads(out)["family"] == "fixed pattern"


INVALID = {
    "option": (["--set", "local.windw=3"], "mechanism 'local' has no option 'windw'; did you mean"),
    "mechanism": (
        ["--mechanisms", "local", "--set", "full.steps=3"],
        "setting 'full.steps' applies to no run of this command; its tasks are listops, recall",
    ),
    "import": (["--import", "absent.py"], "absent.py cannot be read (No such file or directory)"),
    "module": (["--import", "gated"], "there is no module 'gated'; did you mean gated.py?"),
    "protocol": (["--protocol", "absent.toml"], "absent.toml cannot be read (No such file or"),
    "broken": (["--import", "broken.py"], "plug-in broken.py, line 2: ZeroDivisionError: division"),
    "taken": (
        ["--import", "taken.py"],
        "plug-in taken.py, line 5: mechanism 'full' is already reg",
    ),
    "misspelled": (
        ["--protocol", "misspelled.toml"],
        "protocol misspelled.toml: tasks.recall: no field of a task called 'traning'; did you mean",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_setting_or_file_is_rejected_with_single_line(cli, folder, case):
    (folder / "broken.py").write_text("x = 0\n1 / x\n")
    (folder / "taken.py").write_text(MECHANISM.replace("of_a_user", "full"))
    (folder / "misspelled.toml").write_text('[tasks.recall]\nfrom = "diagnostic"\ntraning = 1\n')
    arguments, message = INVALID[case]
    start = MINE if "--set" in arguments else []
    check_rejected(cli("arena", *start, *arguments, "--dry-run"), message)


def test_traceback_of_plugin_is_shown_with_debug_alone(cli, folder):
    (folder / "broken.py").write_text("x = 0\n1 / x\n")
    check_rejected(cli("list", "--import", "broken.py"), "line 2: ZeroDivisionError")
    with pytest.raises(PluginError) as raised:
        cli("--debug", "list", "--import", "broken.py")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_train_names_protocols_that_have_the_task(cli):
    check_rejected(
        cli("train", "longformer", "recall"),
        "protocol 'lra-small' has no task 'recall'; recall is in diagnostic",
        "add --protocol quick",
    )
    check_rejected(
        cli("train", "local", "recall", "--protocol", "diagnostic", "--set", "full.steps=2"),
        "setting 'full.steps' applies to no run of this command; its tasks are recall; its mechani",
    )


def test_record_of_absent_plugin_names_what_is_missing(cli, folder, tiny_cache, monkeypatch):
    train = ["train", "of_a_user", "listops", *MINE, "--cache", tiny_cache, "--device", "cpu"]
    cli.done(*train)
    (record,) = folder.glob("runs/mine/listops/*.json")
    source = json.loads(record.read_text())["source_files"]["mechanism"]
    missing = (
        f"was made with mechanism 'of_a_user', which is not registered here; pass {source['name']} "
        f"{source['sha256'][:8]} that registers it: --import FILE"
    )
    del MECHANISMS["of_a_user"]
    where = ("--cache", tiny_cache, "--device", "cpu")
    check_rejected(cli("eval", record, *where), missing)
    check_rejected(cli("eval", record, "--set", "task.max_length=20", *where), missing)
    check_rejected(cli("analyze", record, *where), missing)
    # Reports need no plug-in.
    _, out, _ = cli("report", "runs", "--format", "csv")
    assert "of_a_user" in out
    del PROTOCOLS["mine"]
    monkeypatch.setattr(plugins, "_LOADED", {})
    elsewhere = ("eval", record, "--task", "recall", *where, "--import", "gated.py")
    check_rejected(cli(*elsewhere), "the run's protocol 'mine' is not registered here")
    out, _ = cli.done("results", "check", "runs")
    assert "gated.py" in out
