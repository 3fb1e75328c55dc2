"""The road of a practitioner: a file of labeled texts, a trained checkpoint, predictions.

Everything runs on the command line, as a user types it; and so does the page that describes it.
"""

import csv
import json
import os
import random
import re
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from own_files import reviews, write_csv
from roads import run_shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

RECIPES = Path(__file__).parents[1] / "docs" / "recipes"
PAGE = RECIPES / "long-documents.md"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
HOUSES = [(f"who lives in house {n}", f"In house {n} lives Ann{n}.", f"Ann{n}") for n in range(60)]
SHORT = "--set training.steps=4 --set training.evaluate_every=2 --set training.warmup_steps=0"
REVIEWS = [(*row, f"{row[1]};{'high' if row[2] > 10 else 'low'}") for row in reviews(60)]
# By kind: header, rows, options of the import, and a column whose rows are predicted.
KINDS = {
    "class": (("body", "stars"), [x[:2] for x in REVIEWS], "texts {} --text body --label stars"),
    "labels": (
        ("body", "tags"),
        [(x[0], x[3]) for x in REVIEWS],
        "texts {} --text body --label tags --separator ';'",
    ),
    "number": (
        ("body", "score"),
        [(x[0], x[2]) for x in REVIEWS],
        "texts {} --text body --target score",
    ),
    "pair": (
        ("body", "other", "stars"),
        [(x[0], y[0], x[1]) for x, y in zip(REVIEWS, REVIEWS[::-1], strict=True)],
        "texts {} --text body --pair other --label stars",
    ),
    "summary": (
        ("body", "gist"),
        [(x[0], " ".join(x[0].split()[:5])) for x in REVIEWS],
        "summaries {} --text body --summary gist",
    ),
    "search": (("query", "document"), [x[:2] for x in HOUSES], "search {}"),
    "questions": (("question", "context", "answer"), HOUSES, "questions {}"),
}


@pytest.fixture
def shell(tmp_path):
    """Run a script in an empty folder where `longspan` is a command; return its output."""
    return lambda *arguments: run_shell(tmp_path, *arguments)


def named(rows):
    return [(text, {"pos": "good", "neg": "bad"}[label]) for text, label, _ in rows]


def share_correct(path, labels):
    with path.open(newline="") as file:
        predicted = [row["predicted"] for row in csv.DictReader(file)]
    assert len(predicted) == len(labels)
    return sum(x == y for x, y in zip(predicted, labels, strict=True)) / len(labels)


def test_page_runs_from_file_to_prediction(shell, tmp_path):
    """Every block of the page runs, in its order, and both roads learn.

    Ways to read documents are left out, which these texts are too short for.
    """
    write_csv(tmp_path / "reviews.csv", named(reviews(300)))
    new = named(reviews(100, seed=1))
    write_csv(tmp_path / "new.csv", [(text,) for text, _ in new], ("body",))
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    blocks = [(kind, block) for kind, block in blocks if "--compare" not in block]
    assert [kind for kind, _ in blocks] == ["sh"] * 5 + ["python"] * 2
    outputs = [
        shell("bash", "-ec", block) if kind == "sh" else shell(sys.executable, "-c", block)
        for kind, block in blocks
    ]
    assert share_correct(tmp_path / "predicted.csv", [label for _, label in new]) > 0.9
    accuracy = float(re.search(r"'eval_accuracy': ([\d.]+)", outputs[5])[1])
    assert accuracy > 0.9
    assert "'label': 'good'" in outputs[6]


def test_reviews_of_imdb_beat_chance(shell, tmp_path):
    """1,000 reviews in a CSV file; predictions for 400 reviews of the test split."""
    folder = os.environ.get("LONGSPAN_TEST_DATA")
    files = sorted(Path(folder, "imdb", "full").glob("*.parquet")) if folder else []
    if len(files) != 2:
        pytest.skip("set LONGSPAN_TEST_DATA to a folder with imdb/full/{train,test}.parquet")
    rows = {}
    for path, count in ((files[1], 1_000), (files[0], 400)):
        table = pq.read_table(path).to_pylist()
        chosen = random.Random(0).sample(table, count)
        rows[path.stem] = [(row["text"], ("neg", "pos")[row["label"]]) for row in chosen]
    write_csv(tmp_path / "imdb.csv", rows["train"], ("text", "sentiment"))
    write_csv(tmp_path / "new.csv", [(text,) for text, _ in rows["test"]], ("text",))
    shell(
        "bash",
        "-ec",
        """
        longspan data import texts imdb.csv --text text --label sentiment
        longspan train local imdb --set task.length=192 --set training.steps=100
        longspan predict runs/own/imdb/local-*.json new.csv --text text --output out.csv
    """,
    )
    assert share_correct(tmp_path / "out.csv", [label for _, label in rows["test"]]) > 0.6


def write_formats(folder, header, rows):
    """Write a table as CSV, lines of JSON, parquet, shards in a folder, and a saved data set."""
    table = pa.table(dict(zip(header, map(list, zip(*rows, strict=True)), strict=True)))
    write_csv(folder / "table.csv", rows, header)
    (folder / "table.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in table.to_pylist()))
    pq.write_table(table, folder / "table.parquet")
    (folder / "shards").mkdir()
    for place in range(2):
        part = table.slice(place * (len(rows) // 2), len(rows) // 2)
        pq.write_table(part, folder / "shards" / f"train-{place:05}-of-00002.parquet")
    datasets.Dataset(table).save_to_disk(folder / "saved")
    return ("table.csv", "table.jsonl", "table.parquet", "shards", "saved")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_format_are_the_same_task(shell, tmp_path, kind):
    """The rows of five formats are equal; the last one is trained on, and predicts for all."""
    header, rows, words = KINDS[kind]
    facts = []
    for number, name in enumerate(write_formats(tmp_path, header, rows)):
        shell("bash", "-ec", f"longspan data import {words.format(name)} --name t{number}")
        (file,) = (tmp_path / "cache").rglob(f"t{number}/import.json")
        facts.append({x: json.loads(file.read_text())[x] for x in ("rows_sha256", "sizes")})
    assert all(x == facts[0] for x in facts)
    options = "--set task.vocabulary=64" if kind == "search" else ""
    shell("bash", "-ec", f"longspan train local t{number} {SHORT} {options}")
    (record,) = (tmp_path / "runs" / "own" / f"t{number}").glob("local-*.json")
    shell("longspan", "eval", record)
    if kind not in ("search", "questions"):
        for name in ("table.csv", "table.jsonl", "table.parquet"):
            shell("longspan", "predict", record, name, "--output", f"{name}.out.csv")
            with (tmp_path / f"{name}.out.csv").open(newline="") as file:
                assert len([*csv.DictReader(file)]) == len(rows)


def test_page_of_search_and_questions_runs(shell, tmp_path):
    write_csv(tmp_path / "asked.csv", [x[:2] for x in HOUSES], ("query", "document"))
    write_csv(tmp_path / "facts.csv", HOUSES, ("question", "context", "answer"))
    blocks = BLOCK.findall((RECIPES / "search-documents.md").read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["sh", "python", "sh"]
    outputs = [
        shell("bash", "-ec", block) if kind == "sh" else shell(sys.executable, "-c", block)
        for kind, block in blocks
    ]
    assert "rule: BM25" in outputs[0]
    assert "In house" in outputs[1]
    assert json.loads((tmp_path / "answers.json").read_text())


def test_page_of_summaries_runs(shell, tmp_path):
    rows = KINDS["summary"][1]
    write_csv(tmp_path / "reports.csv", rows, ("text", "summary"))
    write_csv(tmp_path / "new.csv", [(x[0],) for x in rows[:3]], ("text",))
    ((_, block),) = BLOCK.findall((RECIPES / "summarize-documents.md").read_text(encoding="utf-8"))
    assert "rule: lead" in shell("bash", "-ec", block)
    with (tmp_path / "summaries.csv").open(newline="") as file:
        assert all(row["predicted"] for row in csv.DictReader(file))
