"""`longspan data import beir` and `dpr`, and the commands that use their tasks."""

import json

import pytest

import tiny
from beir_files import JUDGMENTS, QUERIES, topics, write_beir, write_lines
from dpr_files import QUESTIONS, question, write_dpr
from longspan.validation import validate_records
from test_cli_errors import check_rejected

FLAGS = tiny.short_flags({**tiny.SHORT_RUN, "task.vocabulary": 128, "task.mined": 4})


pytestmark = pytest.mark.usefixtures("no_imports")


def run_import(cli, tmp_path, *words, layout="beir"):
    name, *rest = words
    end = ("--name", name, "--cache", tmp_path / "cache")
    return cli("data", "import", layout, *rest, *end)


def test_import_makes_a_task_that_is_trained_and_shown(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_beir(tmp_path / "set", *topics())
    out, err = run_import(cli.done, tmp_path, "topics", folder)
    assert "task: topics" in out
    assert "train: 72" in out
    assert "next: longspan train local topics" in err
    assert "note:" not in err
    cache = ("--cache", tmp_path / "cache")
    for command in (["card", "topics"], ["show", "topics"], ["verify"], ["list"]):
        out, _ = cli.done("data", *command, *cache)
        assert "topic" in out
    runs = ("--runs", tmp_path / "runs", "--device", "cpu")
    cli.done("train", "local", "topics", *FLAGS, *cache, *runs)
    (path,) = (tmp_path / "runs").rglob("local-*.json")
    record = json.loads(path.read_text())
    assert record["scores"]["test"]["metrics"].keys() >= {"ndcg@10", "mrr@10"}
    assert record["source_files"]["task"]["name"] == "longspan/tasks/ranking/beir.py"
    # Files that are not committed yet are no fault of the record.
    found = validate_records([tmp_path / "runs"]).findings
    assert {finding.field for finding in found} <= {"git_commit", "added_files"}
    export = ["export", path, "--output", tmp_path / "hub"]
    for command in (["analyze", path], ["eval", path], ["report", tmp_path / "runs"], export):
        cli.done(*command, *(() if command[0] == "report" else cache))
    (tmp_path / "new.csv").write_text("text\nwho hunts\n")
    found = cli(
        "predict", path, tmp_path / "new.csv", "--text", "text", "--output", "x.csv", *cache
    )
    check_rejected(found, "was trained on topics, which ranks documents")


def test_what_was_left_out_is_printed(cli, tmp_path):
    rows = {"train": [*JUDGMENTS["train"], ("q9", "d1", 1), ("q1", "d9", 1), ("q3", "d1", 0)]}
    folder = write_beir(tmp_path / "set", queries={**QUERIES, "q8": ""}, judgments=rows)
    _, err = run_import(cli.done, tmp_path, "owls", folder, "--validation", "0.25")
    for line in (
        "1 query without text was left out",
        "1 judgment names a query that queries.jsonl lacks",
        "1 judgment names a document that corpus.jsonl lacks",
        "1 relevant document of queries is not in corpus.jsonl: no ranking can find it",
        "1 query without a relevant document was left out",
        "1 query without a judgment was left out",
        "unknown id at train.tsv, line 7: 'q9'",
        "unknown id at train.tsv, line 8: 'd9'",
        "validation is 0.25 of the queries of train.tsv, as no file judges it",
        "test is 0.1 of the queries of train.tsv, as no file judges it",
    ):
        assert f"note: {line}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["owls", "nowhere"], "nowhere is not a folder"),
        (
            ["owls", "set", "--text", "x"],
            "--text applies to `data import texts|summaries|corpus`, not to beir",
        ),
        (
            ["owls", "set", "--test", "x.tsv"],
            "--test of import beir is a share of the queries, got",
        ),
        (["owls", "set", "--test", "0.5"], "test.tsv judges the test split; omit the option"),
        (["listops", "set"], "'listops' is the name of a task; pass another --name"),
        (["local", "set"], "'local' is the name of a mechanism"),
        (["beir", "set"], "'beir' is the name of this command"),
        (["O wls", "set"], "--name must have 1 to 64 lower-case letters"),
    ],
)
def test_bad_requests_are_refused(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_beir(tmp_path / "set")
    check_rejected(run_import(cli, tmp_path, *words), message)
    assert not (tmp_path / "cache" / "retrieval").exists() or not list(
        (tmp_path / "cache" / "retrieval").iterdir()
    )


def test_bad_rows_are_named_with_file_and_line(cli, tmp_path):
    folder = write_beir(tmp_path / "set")
    write_lines(folder / "qrels" / "train.tsv", ["query-id\tcorpus-id\tscore", "q1\td1\tyes"])
    check_rejected(
        run_import(cli, tmp_path, "owls", folder), "train.tsv, line 2 has the score 'yes'"
    )


def test_passages_of_dpr_become_a_task_that_is_trained(cli, tmp_path):
    rows = {**QUESTIONS, "dev": [question("who hunts", ["Owls", "Gone"])]}
    folder = write_dpr(tmp_path / "set", questions=rows)
    out, err = run_import(cli.done, tmp_path, "wiki", folder, "--test", "0.3", layout="dpr")
    assert "train: 3" in out
    assert "1 relevant document of queries is not in psgs_w100.tsv: no ranking" in err
    assert "note: test is 0.3 of the queries of nq-train.json, as no file judges it" in err
    where = ("--cache", tmp_path / "cache", "--runs", tmp_path / "runs", "--device", "cpu")
    out, err = cli.done("train", "local", "wiki", *FLAGS, "--set", "task.negatives=0", *where)
    assert "ndcg@10" in (out + err).lower()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["wiki", "set", "--label", "x"], "--label applies to `data import texts`, not to dpr"),
        (["wiki", "set", "--test", "x"], "queries of a file are judged in a file such as nq-test"),
        (["wiki", "set", "--validation", "0.1"], "nq-dev.json judges the validation split; omit"),
        (["dpr", "set"], "'dpr' is the name of this command"),
    ],
)
def test_bad_requests_of_dpr_are_refused(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_dpr(tmp_path / "set")
    check_rejected(run_import(cli, tmp_path, *words, layout="dpr"), message)
