"""The road of a practitioner: a file of labeled texts, a trained checkpoint, predictions.

Everything runs on the command line, as a user types it; and so does the page that describes it.
"""

import csv
import os
import random
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from own_files import reviews, write_csv
from roads import run_shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PAGE = Path(__file__).parents[1] / "docs" / "recipes" / "long-documents.md"


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
    """Every block of the page runs, in its order, and both roads learn."""
    write_csv(tmp_path / "reviews.csv", named(reviews(300)))
    new = named(reviews(100, seed=1))
    write_csv(tmp_path / "new.csv", [(text,) for text, _ in new], ("body",))
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh"] * 4 + ["python"] * 2
    outputs = [
        shell("bash", "-ec", block) if kind == "sh" else shell(sys.executable, "-c", block)
        for kind, block in blocks
    ]
    assert share_correct(tmp_path / "predicted.csv", [label for _, label in new]) > 0.9
    accuracy = float(re.search(r"'eval_accuracy': ([\d.]+)", outputs[4])[1])
    assert accuracy > 0.9
    assert "'label': 'good'" in outputs[5]


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
