"""`longspan data import texts`, and the commands that use its tasks, on the command line."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny
from longspan.arena import RunPaths
from longspan.arena import predict as prediction
from longspan.arena.protocols.files import register_imports
from longspan.data.imports.texts import load_splits
from longspan.tasks import build
from own_files import reviews, write_csv
from test_cli_errors import check_rejected

HEADER = ("body", "stars", "score")
COLUMNS = ("--text", "body", "--label", "stars")
FLAGS = tiny.short_flags({**tiny.SHORT_RUN, "task.vocabulary": 64})


pytestmark = pytest.mark.usefixtures("no_imports")


@pytest.fixture
def file(tmp_path):
    return write_csv(tmp_path / "reviews.csv", reviews(40), HEADER)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with trained models of classes and of numbers."""
    folder = tmp_path_factory.mktemp("trained")
    path = write_csv(folder / "reviews.csv", reviews(40), HEADER)
    cache = ("--cache", folder / "cache")
    to_import = ("data", "import", "texts", path, *cache)
    places = ("--runs", folder / "runs", "--device", "cpu", *cache)
    tiny.run_commands([
        (*to_import, *COLUMNS),
        (*to_import, *COLUMNS[:2], "--target", "score", "--name", "rated"),
        *(("train", "local", task, *FLAGS, *places) for task in ("reviews", "rated")),
    ])  # fmt: skip
    return folder


def record_of(folder, task="reviews"):
    (record,) = (folder / "runs" / "own" / task).glob("*.json")
    return record


def run_import(cli, tmp_path, *arguments):
    return cli("data", "import", "texts", *arguments, "--cache", tmp_path / "cache")


def test_import_makes_a_task_and_prints_the_next_command(cli, tmp_path, file):
    out, err = run_import(cli.done, tmp_path, file, *COLUMNS)
    assert "task: reviews" in out
    assert "train: 32" in out
    assert "next: longspan train local reviews" in err
    out, _ = run_import(cli.done, tmp_path, file, *COLUMNS, "--name", "again", "--json")
    assert json.loads(out)["task"] == "again"
    for command in (["card", "reviews"], ["show", "reviews"], ["verify"], ["list"]):
        out, _ = cli.done("data", *command, "--cache", tmp_path / "cache")
        assert "reviews" in out or "pos" in out or "neg" in out


def test_import_says_that_small_classes_exceed_the_share(cli, tmp_path):
    rows = [(f"text {n}", f"class {n % 100}", n) for n in range(300)]
    path = write_csv(tmp_path / "many.csv", rows, HEADER)
    _, err = run_import(cli.done, tmp_path, path, *COLUMNS)
    said = " ".join(err.split())
    assert "note: test holds out 33 % of the rows, and a share of 0.1 was asked for" in said
    _, err = run_import(cli.done, tmp_path, path, *COLUMNS[:2], "--target", "score", "--name", "n")
    assert "holds out" not in err


def test_imports_of_the_default_cache_are_listed(cli, tmp_path, file, monkeypatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    assert run_import(cli, tmp_path, file, *COLUMNS)[0] == 0
    for command in (["list", "tasks"], ["list", "protocols"], ["show", "own"]):
        assert "reviews" in cli(*command)[1]
    assert "reviews.csv" in cli("show", "reviews")[1]


def test_protocol_of_imported_texts_is_own_unless_named(cli, tmp_path, file):
    run_import(cli, tmp_path, file, *COLUMNS)
    end = ("--cache", tmp_path / "cache", "--dry-run", "--json", "--mechanisms", "local")
    out, _ = cli.done("arena", "--tasks", "reviews", *end)
    assert "own" in out
    check_rejected(cli("arena", "--tasks", "reviews,listops", *end), "'own'", "reviews")
    named = ("arena", "--protocol", "quick", "--tasks", "reviews", *end)
    check_rejected(cli(*named), "'quick' has no task 'reviews'; reviews is in own")


def test_misspelled_import_is_suggested(cli, tmp_path, file):
    """The default protocol, which a misspelled import gets, has other tasks only."""
    run_import(cli, tmp_path, file, *COLUMNS, "--name", "topics")
    end = ("--cache", tmp_path / "cache", "--runs", tmp_path / "runs")
    check_rejected(cli("train", "local", "topcs", *end), "'topcs'; did you mean topics")
    check_rejected(cli("arena", "--tasks", "topcs", *end), "'topcs'; did you mean topics")
    check_rejected(cli("arena", "--tasks", "topics,topcs", *end), "'topcs'; did you mean topics")
    check_rejected(cli("train", "local", "wxyz", *end), "'wxyz'; there are: ")


def test_trained_records_are_those_of_protocol_own_and_pass_the_checks(cli, trained, monkeypatch):
    for task, metric in (("reviews", "accuracy"), ("rated", "r2")):
        record = json.loads(record_of(trained, task).read_text())
        assert record["metric"] == metric
        assert record["scores"]["test"]["num_examples"] == 4
    monkeypatch.setenv("LONGSPAN_CACHE", str(trained / "cache"))
    _, out, _ = cli("results", "check", trained / "runs", "--json")
    assert [x for x in json.loads(out)["findings"] if x["severity"] == "error"] == []


@pytest.mark.parametrize("task", ["reviews", "rated"])
def test_predictions_have_the_rows_of_the_file(cli, trained, tmp_path, task):
    record = record_of(trained, task)
    rows = [(n, text) for n, (text, *_) in enumerate(reviews(20, seed=5))]
    new = write_csv(tmp_path / "new.csv", rows, ("id", "body"))
    output = tmp_path / "out.csv"
    arguments = ("--text", "body", "--output", output, "--cache", trained / "cache")
    out, _ = cli.done("predict", record, new, *arguments, "--device", "cpu")
    assert out == f"20 predictions in {output}\n"
    with output.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(int(row["id"]), row["body"]) for row in found] == rows
    for row in found:
        if task == "rated":
            assert "probability" not in row
            float(row["predicted"])
        else:
            assert row["predicted"] in ("neg", "pos")
            assert 0.5 <= float(row["probability"]) <= 1


def write_typed(folder, suffix, rows):
    """Write rows of JSON values in one of the formats that have types."""
    path = folder / f"new{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("identifier", [None, "id"])
def test_lines_keep_numbers_booleans_and_nulls(cli, trained, tmp_path, suffix, identifier):
    """An identifier 7 was "7", which a join with the file of the user does not find."""
    rows = [
        {"id": n, "body": text, "share": n / 2, "new": n > 2, "gone": None, "tags": [n, n]}
        for n, (text, *_) in enumerate(reviews(6, seed=5))
    ]
    new = write_typed(tmp_path, suffix, rows)
    record = record_of(trained)
    output, where = tmp_path / "out.jsonl", ("--cache", trained / "cache", "--device", "cpu")
    only = ("--id", identifier) if identifier else ()
    cli.done("predict", record, new, "--output", output, *where, *only)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [*found[0]][-2:] == ["predicted", "probability"]
    names = [identifier] if identifier else [*rows[0]]
    kept = [{name: row[name] for name in names} for row in found]
    assert json.dumps(kept) == json.dumps([{name: row[name] for name in names} for row in rows])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_written_numbers_have_their_digits(cli, trained, tmp_path, monkeypatch, suffix):
    """Numbers of CSV had six digits, as 1.7e+09 of a time, and small probabilities were 0."""
    numbers, rare = [1.7e9 + 3, 1.7e9 + 4], np.array([1.25e-7, 3.5e-6])
    new = write_csv(tmp_path / "new.csv", [("a plot",), ("a film",)], ("body",))
    record = record_of(trained)
    found = prediction.Predictions(numbers, 1 - rare, {"rare": rare})
    monkeypatch.setattr(prediction, "predict", lambda *_, **options: found)
    output, where = tmp_path / f"out{suffix}", ("--cache", trained / "cache")
    cli.done("predict", record, new, "--output", output, *where, "--probabilities")
    with output.open(newline="") as file:
        rows = [*csv.DictReader(file)] if suffix == ".csv" else [json.loads(x) for x in file]
    assert [float(row["predicted"]) for row in rows] == numbers
    assert [float(row["p(rare)"]) for row in rows] == rare.tolist()


@pytest.mark.parametrize("task", ["reviews", "rated"])
def test_predictions_reproduce_the_recorded_score(trained, task):
    """Predict the test split from its texts: the score of the record follows."""
    register_imports(trained / "cache")
    path = record_of(trained, task)
    record = json.loads(path.read_text())
    opened = build(task, record["config"]["task"]["options"])
    opened.open(trained / "cache")
    description = opened.description
    rows = load_splits(opened.folder, description)["test"]
    found = prediction.predict(path, rows.texts, RunPaths(cache=trained / "cache", device="cpu"))
    scores = record["scores"]["test"]["metrics"]
    if task == "rated":
        errors = [(x - y) ** 2 for x, y in zip(found.values, rows.targets, strict=True)]
        assert scores["rmse"] == pytest.approx((sum(errors) / len(errors)) ** 0.5, rel=1e-4)
        return
    wanted = [description.classes[label] for label in rows.targets]
    right = [x == y for x, y in zip(found.values, wanted, strict=True)]
    assert scores["accuracy"] == pytest.approx(sum(right) / len(right))


def test_predictions_follow_the_order_of_the_texts(trained):
    """Batches are sorted by length; predictions are not."""
    register_imports(trained / "cache")
    path = record_of(trained, "rated")
    paths = RunPaths(cache=trained / "cache", device="cpu")
    texts = [("good bad " * n,) for n in (3, 1, 9, 2)] + [("plot " * 4,)]
    together = prediction.predict(path, texts, paths).values
    assert len({f"{x:.6f}" for x in together}) == 5
    one_by_one = [prediction.predict(path, [text], paths).values[0] for text in texts]
    assert together == pytest.approx(one_by_one, rel=1e-5)


# bad input


INVALID = {
    "no text column": (("--label", "stars"), "--text COLUMN"),
    "no target": (("--text", "body"), "--label COLUMN"),
    "two targets": ((*COLUMNS, "--target", "score"), "exclude each other"),
    "missing column": (("--text", "review", "--label", "stars"), "its columns are body, stars"),
    "text as number": (("--text", "body", "--target", "stars"), "must contain finite numbers"),
    "file of the split": ((*COLUMNS, "--test", "absent.csv"), "absent.csv does not exist"),
    "share": ((*COLUMNS, "--test", "2"), "--test must be a share between 0 and 1"),
    "name of a mechanism": ((*COLUMNS, "--name", "local"), "'local' is the name of a mechanism"),
    "name of a task": ((*COLUMNS, "--name", "listops"), "'listops' is the name of a task"),
    "name of the protocol": ((*COLUMNS, "--name", "own"), "'own' is the name of a protocol"),
    "name of the command": ((*COLUMNS, "--name", "beir"), "'beir' is the name of this command"),
    "encoding": ((*COLUMNS, "--encoding", "utf-9"), "--encoding 'utf-9' is unknown"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_import_is_one_line_and_writes_nothing(cli, tmp_path, file, case):
    arguments, part = INVALID[case]
    check_rejected(run_import(cli, tmp_path, file, *arguments), part)
    assert not (tmp_path / "cache").exists()


def test_options_of_files_are_refused_for_published_data(cli, tmp_path):
    command = ("data", "import", "text", tmp_path, "--drop-empty", "--cache", tmp_path / "cache")
    check_rejected(cli(*command), "--drop-empty applies to `data import texts|summaries`, not")


def test_invalid_prediction_is_one_line_and_writes_nothing(cli, trained, tmp_path):
    record = record_of(trained)
    output = tmp_path / "out.csv"
    end = ("--output", output, "--cache", trained / "cache", "--device", "cpu")
    new = write_csv(tmp_path / "new.csv", [("one text", "other"), ("", "x")], ("body", "predicted"))
    cases = {
        ("--text", "absent"): "no column 'absent'",
        ("--text", "body"): "empty text in line 3",
        ("--text", "predicted"): "a column 'predicted' already",
        ("--text", "predicted", "--encoding", "utf-9"): "utf-9",
    }
    for arguments, part in cases.items():
        check_rejected(cli("predict", record, new, *arguments, *end), part)
    pairs = write_csv(tmp_path / "pairs.csv", [("one", "two")], ("a", "b"))
    arguments = ("--text", "a", "--pair", "b")
    check_rejected(cli("predict", record, pairs, *arguments, *end), "single texts")
    assert not output.exists()
    check_rejected(cli("predict", record, new, *end), "empty text in line 3")  # as in training
    output.write_text("precious")
    check_rejected(cli("predict", record, pairs, "--text", "a", *end), "out.csv exists; remove it")
    assert output.read_text() == "precious"


def test_predictions_of_a_folder_have_the_names_of_the_files(cli, trained, tmp_path):
    record = record_of(trained)
    texts = {f"{n}.txt": text for n, (text, *_) in enumerate(reviews(4, seed=6))}
    (tmp_path / "flat").mkdir()
    for name, text in texts.items():
        (tmp_path / "flat" / name).write_text(text)
    output = tmp_path / "out.csv"
    end = ("--output", output, "--cache", trained / "cache", "--device", "cpu")
    cli.done("predict", record, tmp_path / "flat", *end)
    with output.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["file"]: row["text"] for row in found} == texts
    assert {row["predicted"] for row in found} <= {"neg", "pos"}


def test_prediction_needs_a_task_of_texts(cli, finished, tiny_cache, tmp_path):
    record = next(finished.rglob("local-*.json"))
    new = write_csv(tmp_path / "new.csv", [("a", "b")], ("body", "x"))
    end = ("--output", tmp_path / "out.csv", "--cache", tiny_cache, "--device", "cpu")
    check_rejected(cli("predict", record, new, "--text", "body", *end), "inputs are no texts")


def test_folder_of_classes_becomes_a_task(cli, tmp_path):
    for split, count in (("train", 30), ("test", 8)):
        for number, (text, label, _) in enumerate(reviews(count, seed=count)):
            (tmp_path / "films" / split / label).mkdir(parents=True, exist_ok=True)
            (tmp_path / "films" / split / label / f"{number}.txt").write_text(text)
    (tmp_path / "films" / "test" / "mixed").mkdir()
    (tmp_path / "films" / "test" / "mixed" / "1.txt").write_text("neither good nor bad")
    command = ("data", "import", "texts", tmp_path / "films", "--cache", tmp_path / "cache")
    check_rejected(cli(*command, "--text", "body"), "is a folder", "omit --text")
    out, err = cli.done(*command, "--set", "length=10")
    assert "train: 27\nvalidation: 3\ntest: 9\n" in out
    notes = " ".join(err.split())
    assert "1 held-out row has a class that training lacks; scores count it" in notes
    assert "rows: train '" in notes
    assert "train has no row of the class 'mixed' (1 in test): no model learns it" in notes
    assert "38 texts are longer than 10 tokens and were cut" in notes
    check_rejected(cli(*command, "--name", "texts"), "'texts' is the name of this command")
