"""`longspan results`: exit codes, tables, JSON."""

import dataclasses
import json
import subprocess

import pytest

import synthetic
from longspan.files import read_json, write_json
from longspan.results import SourceFile, load_result

FIELDS = {"severity", "file", "field", "expected", "found", "remedy"}


@pytest.fixture
def results(tmp_path):
    for record in synthetic.records("smoke", 2, ["local", "full"]):
        record.save(tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def without_model_rule(monkeypatch):
    """Remove the rule that builds models: synthetic records have random counts."""
    from longspan.validation import across

    monkeypatch.setattr(across, "RULES", across.RULES[1:])


def alter_steps(results):
    path = sorted(results.rglob("local-*-0.json"))[0]
    content = read_json(path)
    assert content["steps"] == 300
    write_json(path, {**content, "steps": 301})
    return path


@pytest.mark.usefixtures("without_model_rule")
def test_valid_records_pass_the_check(cli, results):
    code, out, _ = cli("results", "check", results)
    assert (code, out) == (0, "8 results, 0 failures, 0 errors, 0 warnings, 0 notes\n")


@pytest.mark.usefixtures("without_model_rule")
def test_errors_are_printed_with_exit_code_1(cli, results):
    path = alter_steps(results)
    code, out, _ = cli("results", "check", results)
    assert code == 1
    line = f"error: {path}: steps: expected 300, found 301; run it again to the end\n"
    assert line in out
    assert out.endswith("8 results, 0 failures, 1 error, 0 warnings, 0 notes\n")
    code, out, _ = cli("results", "check", path, "--json")
    content = json.loads(out)
    assert (code, content["num_results"], content["num_failures"]) == (1, 1, 0)
    assert [set(finding) for finding in content["findings"]] == [FIELDS]


@pytest.mark.usefixtures("without_model_rule")
@pytest.mark.parametrize(
    ("commit", "severity"), [("0123456789ab-dirty", "warning"), (None, "note")]
)
def test_equal_findings_are_printed_once(cli, results, commit, severity):
    for path in results.rglob("*.json"):
        content = read_json(path)
        assert content["git_commit"] == "0123456789ab"
        write_json(path, {**content, "git_commit": commit, "changed_files": None})
    out, _ = cli.done("results", "check", results)
    assert out.count("git_commit") == 1
    assert f"{severity}: 8 files: git_commit: expected" in out
    assert out.count(f"8 {severity}s") == 1


def test_control_characters_are_escaped(cli, results):
    path = sorted(results.rglob("local-*-0.json"))[0]
    content = read_json(path)
    write_json(path, {**content, "date": "\x1b[31m" + content["date"]})
    out, _ = cli.done("results", "list", results)
    assert "\x1b" not in out
    assert r"\x1b[31m" in out


def test_list_has_one_row_per_record(cli, results):
    out, _ = cli.done("results", "list", results)
    record = load_result(sorted(results.rglob("local-*-0.json"))[0])
    assert record.main.format(record.score()) in out
    _, out, _ = cli("results", "list", results, "--json")
    rows = json.loads(out)
    assert len(rows) == 8
    assert record.score() in [row["test"] for row in rows]


def test_list_names_the_code_of_each_record(cli, results):
    sources = {
        "mechanism": SourceFile(name="mine.py", sha256="ab" * 32),
        "task": SourceFile(name="longspan/tasks/new.py", sha256="cd" * 32),
        "kernel x": SourceFile(name="longspan/kernels/x.py", sha256="ef" * 32),
    }
    first, second, *_ = (load_result(path) for path in sorted(results.rglob("*.json")))
    own = {"source_files": sources, "added_files": {"longspan/tasks/new.py": "cd" * 32}}
    dataclasses.replace(first, **own).save(results)
    dataclasses.replace(second, git_commit=None, source_files=None, added_files=None).save(results)
    codes = [row["code"] for row in json.loads(cli("results", "list", results, "--json")[1])]
    expected = "0123456789ab, mine.py abababab, longspan/tasks/new.py cdcdcdcd"
    assert codes[:3] == [expected, f"longspan {second.versions['longspan']}", "0123456789ab"]
    assert expected in cli("results", "list", results)[1]


def test_list_names_the_code_that_began_a_run(cli, results):
    first, second, *_ = (load_result(path) for path in sorted(results.rglob("*.json")))
    for run, changes in (
        (first, {"versions": {**first.versions, "torch": "1.0"}}),
        (second, {"git_commit": "fedcba987654", "changed_files": {"longspan/model.py": None}}),
    ):
        earlier = dataclasses.replace(run.code_version, **changes)
        dataclasses.replace(run, earlier_code=[earlier]).save(results)
    codes = [row["code"] for row in json.loads(cli("results", "list", results, "--json")[1])]
    assert codes[:3] == [
        "0123456789ab, begun with 0123456789ab (torch 1.0)",
        "0123456789ab, begun with fedcba987654 (longspan/model.py)",
        "0123456789ab",
    ]


def test_reference_rows_are_listed_by_name(cli, results, tmp_path):
    record = load_result(sorted(results.rglob("full-*-0.json"))[0])
    assert record.stem.startswith("full-")
    dataclasses.replace(record, overrides={"row": "words", "model.norm": "pre"}).save(results)
    (tmp_path / "empty").mkdir()
    for command in (["list"], ["diff", tmp_path / "empty"]):
        out, _ = cli.done("results", *command, results)
        assert " words (model.norm = pre) " in out
    rows = json.loads(cli("results", "list", results, "--json")[1])
    assert {row["row_name"]: row["mechanism"] for row in rows}["words"] == "full"


def test_absent_path_is_rejected(cli, tmp_path):
    code, _, err = cli("results", "check", tmp_path / "absent")
    assert code == 2
    assert "absent does not exist" in err


def test_diff_of_equal_sets_is_empty(cli, results):
    code, out, _ = cli("results", "diff", results, results)
    assert (code, " ".join(out.split())) == (0, f"{results} and {results} hold the same runs.")


def test_diff_has_one_row_per_differing_run(cli, results, tmp_path):
    other = tmp_path / "other"
    for record in synthetic.records("smoke", 1, ["local"]):
        record.save(other)
    out, _ = cli.done("results", "diff", other, results)
    assert [line.split()[0] for line in out.splitlines() if "smoke" in line] == ["new"] * 6
    _, out, _ = cli("results", "diff", results, other, "--json")
    content = json.loads(out)
    assert (content["a"], content["b"]) == (str(results), str(other))
    assert {x["kind"] for x in content["differences"]} == {"gone"}
    assert len(content["differences"]) == 6


def test_diff_accepts_git_revision(cli, results, monkeypatch):
    repository = results.parent
    monkeypatch.chdir(repository)
    author = ["-c", "user.name=name", "-c", "user.email=name@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "records"], ["tag", "v1"]):
        subprocess.run(["git", *author, *command], check=True)
    assert cli("results", "diff", "v1", "results")[1] == "v1 and results hold the same runs.\n"
    path = sorted(results.rglob("local-*-0.json"))[0]
    content = read_json(path)
    content["scores"]["test"]["metrics"]["accuracy"] /= 10
    write_json(path, content)
    for revision in ("v1", "v1:results"):
        code, out, _ = cli("results", "diff", revision, "results", "--json")
        (difference,) = json.loads(out)["differences"]
        assert (code, difference["kind"], difference["mechanism"]) == (0, "changed", "local")
    code, _, err = cli("results", "diff", "v11", "results")
    assert code == 2
    assert "v11 is no folder, and git finds no results at such a revision" in err
