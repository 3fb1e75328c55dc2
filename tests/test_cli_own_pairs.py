"""`longspan data import questions` and `search`: tasks of `own`, what is printed, refusals."""

import csv
import json

import pytest

import tiny
from test_cli_errors import check_rejected

pytestmark = pytest.mark.usefixtures("no_imports")
FLAGS = tiny.short_flags(tiny.SHORT_RUN)
ROWS = [(f"Who lives in house {n}?", f"In house {n} lives Ann{n}.", f"Ann{n}") for n in range(20)]
HEADERS = {"questions": ("question", "context", "answer"), "search": ("query", "document", "id")}
REPORTED = {"questions": "exact_match", "search": "ndcg@10"}


def write_rows(path, kind, rows=ROWS):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADERS[kind], *rows])
    return path


@pytest.mark.parametrize("kind", HEADERS)
def test_imports_are_tasks_that_are_trained(cli, tmp_path, kind):
    table = write_rows(tmp_path / "mine.csv", kind)
    cache = ("--cache", tmp_path / "cache")
    code, out, err = cli("data", "import", kind, table, *cache)
    assert code == 0, err
    assert "task: mine" in out
    assert "train: 16" in out
    assert "next: longspan train local mine" in err
    more = () if kind == "questions" else ("--set", "task.vocabulary=128")
    runs = ("--runs", tmp_path / "runs", "--device", "cpu")
    code, out, err = cli("train", "local", "mine", *FLAGS, *more, *cache, *runs)
    assert code == 0, err
    (path,) = (tmp_path / "runs").rglob("local-*.json")
    assert REPORTED[kind] in json.loads(path.read_text())["scores"]["test"]["metrics"]


def test_what_was_left_out_is_printed(cli, tmp_path):
    rows = [*ROWS, ("Why?", "In house 0 lives Ann0.", ""), ("", "No question.", "x")]
    rows.append(("Where?", "In house 1 lives Ann1.", "Oslo"))
    table = write_rows(tmp_path / "mine.csv", "questions", rows)
    code, _, err = cli("data", "import", "questions", table, "--cache", tmp_path / "cache")
    assert code == 0, err
    assert "1 question without an answer was left out" in err
    assert "1 row without a question or document was left out" in err
    assert "1 answer is not at the given place, or not in the document" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("questions", "mine.csv", "--question", "asked"), "no column 'asked'"),
        (("questions", "mine.csv", "--validation", "2"), "--validation must be a share"),
        (("questions", "mine.csv", "--label", "x"), "--label applies to `data import texts`"),
        (("search", "mine.csv", "--query", "asked"), "no column 'asked'"),
        (("search", "gone.csv"), "gone.csv does not exist"),
        (("search", "mine.csv", "--test", "test.csv"), "is a share of the queries"),
        (("search", "mine.csv", "--name", "search"), "'search' is the name of this command"),
    ],
)
def test_bad_imports_are_refused_in_words(cli, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "mine.csv", words[0])
    found = cli("data", "import", *words, "--cache", "cache")
    check_rejected(found, message)
    assert not list((tmp_path / "cache").glob("*/*/import.json"))
