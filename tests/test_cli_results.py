"""`longspan results` and `longspan report --snapshot`: exit codes, words, JSON."""

import json
import subprocess
import sys

import pytest

import synthetic


@pytest.fixture
def results(tmp_path):
    for record in synthetic.records("quick", 2, ["local", "full"]):
        record.save(tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture(autouse=True)
def _no_page(monkeypatch):
    """The page has tests of its own, and takes seconds."""
    monkeypatch.setattr("longspan.report.page.write", lambda *parts: parts[1])


def spoilt(results):
    path = sorted(results.rglob("local-*-0.json"))[0]
    path.write_text(path.read_text().replace('"steps": 300,\n "curve"', '"steps": 301,\n "curve"'))
    return path


def test_a_clean_folder_passes(cli, results):
    code, out, _ = cli("results", "check", results)
    assert (code, out) == (0, "8 records: 0 errors, 0 warnings\n")


def test_errors_are_told_and_the_exit_code_is_1(cli, results):
    path = spoilt(results)
    code, out, _ = cli("results", "check", results)
    assert code == 1
    assert f"error: {path}: steps: expected 300, found 301; run it again to the end [steps]" in out
    code, out, _ = cli("results", "check", path, "--json")
    told = json.loads(out)
    assert (code, told["records"], told["skipped"]) == (1, 1, None)
    assert {"steps", "curve"} <= {f["field"] for f in told["findings"]}
    assert set(told["findings"][0]) == {
        "file", "rule", "severity", "field", "expected", "found", "remedy"
    }  # fmt: skip


def test_the_list_says_nothing_to_the_terminal_but_itself(cli, results):
    path = sorted(results.rglob("local-*-0.json"))[0]
    path.write_text(path.read_text().replace('"date": "', '"date": "\\u001b[31m'))
    code, out, _ = cli("results", "list", results)
    assert code == 0
    assert "\x1b" not in out
    assert r"\x1b[31m" in out


def test_a_path_that_is_absent_is_refused(cli, tmp_path):
    code, _, err = cli("results", "check", tmp_path / "absent")
    assert code == 2
    assert "absent does not exist" in err


def test_the_recipe_is_not_looked_at_without_torch_and_this_is_said(results):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"sys.argv = ['longspan', 'results', 'check', {str(results)!r}]\n"
        "from longspan.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "8 records: 0 errors" in done.stdout
    assert "not compared with the registered recipes: torch is not installed" in done.stderr


def test_a_snapshot_is_taken_once_and_listed(cli, results, tmp_path):
    report = ("report", results, "--page", tmp_path / "r.html", "--into", results)
    code, _, err = cli(*report, "--snapshot", "v1")
    assert code == 0
    assert f"{results}/snapshots/v1.json (8 records, frozen)" in err
    code, out, err = cli(*report, "--snapshot", "v1")
    assert code == 0
    assert "as frozen 20" in err
    assert "Nothing differs between v1 and now." in out
    code, out, _ = cli("results", "list", results, "--json")
    told = json.loads(out)
    assert len(told["records"]) == 8
    assert [(s["version"], s["records"]) for s in told["snapshots"]] == [("v1", 8)]
    code, out, _ = cli("results", "list", results)
    assert "snapshot v1: 8 records, 20" in out


def test_a_name_of_no_version_is_refused_before_anything_is_written(cli, results, tmp_path):
    page = tmp_path / "r.html"
    command = ("report", results, "--page", page, "--into", results)
    code, out, err = cli(*command, "--snapshot", "bad name")
    assert (code, out) == (2, "")
    assert "a snapshot is named by letters" in err
    assert "report: " not in err


def test_records_with_errors_are_not_frozen(cli, results, tmp_path):
    spoilt(results)
    code, _, err = cli(
        "report", results, "--page", tmp_path / "r.html", "--into", results, "--snapshot", "v1"
    )
    assert code == 2
    assert "errors in the records, so they are not frozen" in err
    assert not (results / "snapshots").exists()


def test_changes_between_versions_are_told(cli, results, tmp_path):
    report = ("report", results, "--page", tmp_path / "r.html", "--into", results)
    cli(*report, "--snapshot", "v1")
    for path in results.rglob("full-*.json"):
        path.unlink()
    code, out, _ = cli(*report)
    assert code == 0
    assert "Changes from v1 to now" in out
    cli(*report, "--snapshot", "v2")
    for other in ("v2", "now"):
        code, out, _ = cli("results", "changes", "v1", other, "--into", results, "--json")
        told = json.loads(out)["changes"]
        gone = [(c["task"], c["mechanism"]) for c in told if c["kinds"] == ["gone"]]
        assert (code, gone) == (0, [("listops", "full"), ("text", "full")])
    code, out, _ = cli("results", "changes", "v1", "--into", results, "--format", "markdown")
    assert "| quick | text | full | gone |" in out
    code, out, _ = cli("results", "changes", "v1", "v2", "--into", results)
    assert "gone" in out


def test_an_unknown_version_is_refused_with_near_ones(cli, results, tmp_path):
    cli("report", results, "--page", tmp_path / "r.html", "--into", results, "--snapshot", "v1")
    code, _, err = cli("results", "changes", "v11", "--into", results)
    assert code == 2
    assert "called 'v11'; did you mean v1?" in err
