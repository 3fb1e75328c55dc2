"""The practitioner's road on the command line: files, a table with TF-IDF, predictions."""

import csv
import dataclasses
import json
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from scipy import stats
from sklearn import metrics as sk
from transformers import RobertaConfig, RobertaModel

import tiny
from longspan.arena.documents.metrics import METRICS
from longspan.arena.documents.start import task_coverage
from longspan.arena.documents.tfidf import fit_baseline
from longspan.cli.documents import _load_rows, _rank, _short_labels, _verdict
from longspan.results import DocumentRow, DocumentScores, load_results, load_side_records
from own_files import BAD, GOOD, reviews, save_tokenizer, write_csv
from test_cli_errors import check_rejected
from tiny import set_flags as flags

HEADER = ("body", "stars", "score")
TRAINING = {"steps": 4, "evaluate_every": 2, "warmup_steps": 0, "batch_size": 8}
MODEL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
SHORT = (*flags("training", TRAINING), *flags("model", MODEL))

pytestmark = pytest.mark.usefixtures("no_imports")


def load_scores(folder):
    return load_side_records(DocumentScores, [folder / "runs"])


@pytest.fixture
def file(tmp_path):
    return write_csv(tmp_path / "mine.csv", [row[:2] for row in reviews(60)], HEADER[:2])


def test_two_columns_suffice_for_a_table_with_the_baseline(cli, tmp_path, file, places):
    command = ("finetune", "--data", file, *SHORT, *places)
    out, err = cli.done(*command)
    assert "columns: texts in 'body', classes in 'stars'" in err
    assert "tokens cover all documents" in err
    (scores,) = load_scores(tmp_path)
    model, tfidf, constant = scores.rows
    assert (model.name, tfidf.name, constant.name) == ("local", "TF-IDF", "constant")
    assert tfidf.metrics["accuracy"] == 1.0  # a few words decide
    (result,) = load_results([tmp_path / "runs" / "own"])
    assert model.metrics["accuracy"] == pytest.approx(result.scores["test"].metrics["accuracy"])
    assert (result.config.training.patience, result.config.training.word_vectors) == (3, "lsa")
    verdict = ("local is not told apart from TF-IDF", "long-documents.md")
    for part in ("TF-IDF", "Class weights: none.", *verdict):
        assert part in " ".join(out.split())
    # Another run on the same documents is a row of the same table.
    out, _ = cli.done(*command, "--mechanism", "full", "--metric", "f1_macro")
    assert all(f"{name} (length 64" in " ".join(out.split()) for name in ("local", "full"))
    assert {x.metric for x in load_scores(tmp_path)} == {"accuracy", "f1_macro"}


def test_scores_of_the_record_are_those_of_the_confusion_matrix(cli, tmp_path, file, places):
    out, _ = cli.done("finetune", "--data", file, *SHORT, *places, "--json")
    record = json.loads(out)
    for row in record["rows"]:
        pairs = [
            (true, predicted)
            for true, counts in enumerate(row["confusion"])
            for predicted, count in enumerate(counts)
            for _ in range(count)
        ]
        truth, predicted = zip(*pairs, strict=True)
        assert row["metrics"]["f1_macro"] == pytest.approx(
            sk.f1_score(truth, predicted, average="macro", zero_division=0)
        )
        recalls = [c[i] / max(1, sum(c)) for i, c in enumerate(row["confusion"])]
        assert [recall for _, recall, *_ in row["classes"].values()] == pytest.approx(recalls)
        gaps = [abs(p - share) * count for p, share, count in row["calibration"]]
        assert row["metrics"]["ece"] == pytest.approx(sum(gaps) / record["documents"])
    assert record["documents"] == sum(map(sum, record["rows"][0]["confusion"]))
    ours, theirs = record["fewer_errors"]
    accuracies = [row["metrics"]["accuracy"] for row in record["rows"][:2]]
    assert ours - theirs == pytest.approx(record["documents"] * (accuracies[0] - accuracies[1]))
    assert record["p_value"] == (
        stats.binomtest(ours, ours + theirs).pvalue if ours + theirs else None
    )


def scores_of(values=(0.5, 0.5), metric="accuracy", **fields):
    """Return a record of a run and TF-IDF with a metric."""
    names = ("local", "TF-IDF", "constant")
    rows = [
        DocumentRow(name=name, options={}, metrics={metric: value}, seconds=1)
        for name, value in zip(names, (*values, 0.5), strict=True)
    ]
    identity = {"protocol": "own", "mechanism": "local", "config_hash": "0" * 10, "seed": 0}
    described = {"task": "mine", "split": "test", "documents": 60, "rows_sha256": "1" * 64}
    covered = {"covered_documents": 1.0, "covered_tokens": 1.0, "class_weights": "none"}
    rest = {"threshold": 0.5, "rows": rows, "date": "2026-01-01T00:00:00+00:00"}
    tested = {"p_value": 0.001, "fewer_errors": [2, 20]}
    return DocumentScores(**{**identity, **described, **covered, **rest, **tested, **fields})


@pytest.mark.parametrize("values", [(0.2, 0.4), (0.4, 0.2), (0.3, 0.3)])
@pytest.mark.parametrize("counts", [[2, 20], [20, 2]])
@pytest.mark.parametrize("metric", METRICS)
def test_winner_is_who_has_fewer_errors_by_the_test_whatever_the_metric(metric, counts, values):
    """The p-value is of the errors: a lower ECE, say, is no reason to call it a win."""
    text, is_worse = _verdict(scores_of(values, metric, fewer_errors=counts), "local")
    assert ("beats" if counts[0] > counts[1] else "loses to") in text
    assert f"fewer errors on {counts[0]} documents against {counts[1]}" in text
    assert is_worse or counts[0] > counts[1]
    tied, _ = _verdict(scores_of(values, metric, fewer_errors=counts, p_value=0.2), "local")
    assert "is not told apart from" in tied


def test_rows_of_a_table_average_seeds_and_no_other_runs(tmp_path):
    """Checkpoints of one name in two folders are two ways to classify."""
    scores = scores_of((0.4, 0.5))
    others = {"seed": {"seed": 1}, "checkpoint": {"config_hash": "f" * 10}}
    for fields in ({}, *others.values()):
        scores_of((0.6 if fields else 0.4, 0.5), **fields).save(tmp_path / "own" / "mine")
    rows = list(_load_rows(scores, tmp_path))
    assert [row.options.get("seeds", 1) for row in rows] == [2, 1]
    assert [row.metrics["accuracy"] for row in rows] == pytest.approx([0.5, 0.6])
    assert rows[0].label == "local (seeds 2, accuracy 0.400 to 0.600)"


def test_rows_are_ranked_by_the_metric_of_the_table(tmp_path):
    """Another command may have scored a run on the same documents by another main metric."""
    rows = [
        DocumentRow(name=name, options={"window": [2, x]}, metrics=metrics, seconds=1)
        for x, (name, metrics) in enumerate(
            {"a": {"f1_macro": 0.9, "accuracy": 0.5}, "b": {"accuracy": 0.6}, "c": {}}.items()
        )
    ]
    ranked = sorted(rows, key=lambda row: _rank(row, "accuracy"))
    assert [row.name for row in ranked] == ["b", "a", "c"]
    assert _short_labels(rows)[1] == [
        f"{row.name} (window {row.options['window']})" for row in rows
    ]
    assert _short_labels(rows[:1] * 2) == ({"window": [2, 0]}, ["a", "a"])


def test_coverage_of_characters_counts_characters(cli, tmp_path):
    """Bytes were counted, of which a letter of Cyrillic has two."""
    rows = [(f"{number:02}" + 10 * "я", "ab"[number % 2]) for number in range(20)]
    file, cache = write_csv(tmp_path / "mine.csv", rows, HEADER[:2]), tmp_path / "cache"
    columns = ("--text", "body", "--label", "stars")
    cli.done("data", "import", "texts", file, *columns, "--cache", cache)
    options = {"vocabulary": "characters", "length": 12, "end": False}
    assert task_coverage("mine", options)[1:] == (12, 1.0, 1.0)
    assert task_coverage("mine", {**options, "end": True})[1:] == (13, 0.0, 12 / 13)


def save_roberta(folder):
    """Save an encoder of transformers for 32 tokens with its tokenizer."""
    save_tokenizer(folder, [*GOOD, *BAD, "the plot"])
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"vocab_size": 80, "intermediate_size": 16, "max_position_embeddings": 34}
    RobertaModel(RobertaConfig(**config, **sizes)).save_pretrained(folder)
    return folder


def test_encoder_of_transformers_is_extended_to_the_documents(cli, tmp_path, places):
    rows = [(f"{text} " * 3, label) for text, label, _ in reviews(60)]
    path = write_csv(tmp_path / "long.csv", rows, HEADER[:2])
    folder = save_roberta(tmp_path / "roberta")
    changes = ("--set", "mechanism.window=4", *flags("training", TRAINING))
    command = ("finetune", folder, "--data", path, *changes, *places)
    cli.done(*command)
    (result,) = load_results([tmp_path / "runs" / "finetune"])
    assert result.mechanism == "longformer"
    assert result.config.mechanism.options["window"] == 4
    assert result.config.task.options["length"] == 512  # all are shorter, and one unit is the least
    assert result.config.start.positions == 512
    (converted,) = (tmp_path / "cache" / "checkpoints").iterdir()
    before = converted.stat().st_mtime_ns
    # The conversion is read again; a short length needs no longer positions.
    code, _, err = cli(*command, "--seed", 1)
    assert (code, converted.stat().st_mtime_ns) == (0, before), err
    cli.done("finetune", folder, "--data", path, *changes[2:], *places,
                       "--set", "task.length=32")  # fmt: skip
    assert "full" in {x.mechanism for x in load_results([tmp_path / "runs" / "finetune"])}


@pytest.mark.parametrize(
    ("start", "length"), [("new", 600), ("transformers", 1_024), ("longspan", 24)]
)
def test_settings_that_name_the_only_task_are_those_of_the_command(
    cli, tmp_path, places, start, length
):
    """`long.length` made the head of --compare the whole text; checkpoints had another length."""
    rows = [(f"{text} " + "word " * 600, label) for text, label, _ in reviews(40)]
    path = write_csv(tmp_path / "long.csv", rows, HEADER[:2])
    columns = ("--text", "body", "--label", "stars", "--cache", tmp_path / "cache")
    cli.done("data", "import", "texts", path, *columns)
    folder = save_roberta(tmp_path / "roberta")
    if start == "longspan":
        cli.done("convert", folder, "--output", folder := tmp_path / "converted")
    words = ["finetune"] if start == "new" else ["finetune", folder, "long"]
    words += ["--data", path, "--compare"] if start == "new" else []

    def plan(*settings):
        given = [x for setting in settings for x in ("--set", setting)]
        out, _ = cli.done(*words, *given, *places, "--dry-run", "--json")
        return [run["name"] for run in json.loads(out)["runs"]]

    expected = plan(f"task.length={length}")
    assert plan(f"long.length={length}") == plan(f"long.task.length={length}") == expected
    assert plan("task.length=16", f"long.length={length}") == expected
    assert len(set(expected)) == len(expected)
    if start == "new":
        command = (*words, *places, "--dry-run", "--set", "long.pooling=max")
        check_rejected(cli(*command), "--compare sets model.pooling in some of its rows")


def test_checkpoint_that_reads_the_documents_is_not_extended(cli, tmp_path, places):
    """Below 512 tokens it was, with another mechanism, though every document was shorter."""
    rows = [(f"the plot {text[:4]}", label) for text, label, _ in reviews(200)]
    path = write_csv(tmp_path / "short.csv", rows, HEADER[:2])
    start = save_roberta(tmp_path / "roberta")
    for seed in range(2):  # from the checkpoint of transformers, and from that run
        command = ("finetune", start, "--data", path, "--seed", seed, *flags("training", TRAINING))
        cli.done(*command, *places)
        (start,) = (tmp_path / "runs" / "finetune" / "short").glob(f"full-*-{seed}.json")
    found = load_results([tmp_path / "runs" / "finetune"])
    assert [x.config.task.options["length"] for x in found] == [32, 32]
    assert all(x.start.positions is None for x in found)


def test_weights_of_classes_follow_their_numbers(cli, tmp_path, places):
    rows = [(text, label) for text, label, _ in reviews(90)]
    rare = [row for row in rows if row[1] == "pos"][:10]
    path = write_csv(tmp_path / "rare.csv", [*(x for x in rows if x[1] == "neg"), *rare])
    out, _ = cli.done("finetune", "--data", path, *SHORT, *places, "--class-weights", "balanced")
    assert "Class weights: balanced." in out
    (best,) = (tmp_path / "runs").glob("own/rare/work/*/best-*/config.json")
    weights = json.loads(best.read_text())["class_weights"]
    (result,) = load_results([tmp_path / "runs"])
    counts = json.loads((tmp_path / "cache/own/rare/import.json").read_text())["class_counts"]
    train = counts["train"]
    assert weights == pytest.approx([sum(train) / 2 / count for count in train])
    assert result.config.task.options["class_weights"] == "balanced"


def test_ways_to_read_documents_are_rows_of_one_table(cli, tmp_path, places, monkeypatch):
    fits = Mock(wraps=fit_baseline)
    monkeypatch.setattr("longspan.arena.documents.scores.fit_baseline", fits)
    rows = [(f"{text} " + "word " * 600, label) for text, label, _ in reviews(40)]
    path = write_csv(tmp_path / "long.csv", rows, HEADER[:2])
    model = flags("model", {"hidden_size": 16, "num_attention_heads": 2})
    command = ("finetune", "--data", path, "--compare", *flags("training", TRAINING), *model)
    out, _ = cli.done(*command, *places)
    assert fits.call_count == 1
    shown = " ".join(out.split())
    ways = (
        *("local (length 640)", "local (length 512)", "local (length 512, truncation head_tail)"),
        *("disjoint (length 640, block 512)", "disjoint (length 640, block 512, pooling max)"),
        "disjoint (length 640, block 512, pooling attention)",
        "local (length 640, num_hidden_layers 0)",
    )
    assert [f"{way} is not told apart from TF-IDF" in shown for way in ways] == [True] * len(ways)
    assert "All runs: steps 4, evaluate_every 2, warmup_steps 0, batch_size 8" in shown
    fields = ("length", "truncation", "block", "pooling", "num_hidden_layers")
    rows = [x.rows[0].options for x in load_scores(tmp_path)]
    assert {tuple(x.get(field) for field in fields) for x in rows} == {
        *((length, None, None, None, None) for length in (640, 512)),
        (512, "head_tail", None, None, None),
        (640, None, None, None, 0),
        *((640, None, 512, pooling, None) for pooling in (None, "max", "attention")),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "the same for runs on 64 tokens; omit it"),
        (("--set", "model.pooling=max"), "--compare sets model.pooling in some of its rows"),
        (("--all",), "none is left to score, got --compare; omit either"),
    ],
)
def test_comparisons_of_nothing_are_refused(cli, tmp_path, file, places, options, message):
    code, _, err = cli("finetune", "--data", file, "--compare", *SHORT, *places, *options)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """Folder with a file of labels and a model that was trained on it."""
    folder = tmp_path_factory.mktemp("labeled")
    rows = [
        (n, text, ";".join(x for x in (label, "high" if score > 10 else "") if x), score)
        for n, (text, label, score) in enumerate(reviews(80))
    ]
    path = write_csv(folder / "tagged.csv", rows, ("id", "body", "tags", "score"))
    columns = ("--text", "body", "--label", "tags", "--separator", ";")
    places = ("--runs", folder / "runs", "--device", "cpu", "--cache", folder / "cache")
    tiny.run_commands([("finetune", "--data", path, *columns, *SHORT, *places)])
    return folder


def record_of(folder):
    (record,) = (folder / "runs" / "own" / "tagged").glob("*.json")
    return record


def test_texts_have_any_number_of_labels(labeled):
    (result,) = load_results([labeled / "runs"])
    (scores,) = load_scores(labeled)
    model, tfidf, _ = scores.rows
    assert [*model.classes] == ["high", "neg", "pos"]
    assert model.metrics["f1_micro"] == pytest.approx(result.scores["test"].metrics["f1"])
    assert model.confusion == []
    assert tfidf.metrics["auc"] == 1.0


def test_predictions_have_the_threshold_of_the_scores(cli, labeled, tmp_path):
    """`finetune --threshold` decides on new texts too, as the scores of its table did."""
    shutil.copytree(labeled / "runs", tmp_path / "runs")
    record = record_of(tmp_path)
    (scores,) = load_scores(tmp_path)
    dataclasses.replace(scores, threshold=0.0).save(record.parent)
    new = write_csv(tmp_path / "new.csv", [("good plot",)], ("body",))
    written = {}
    for name, options in {"scored": (), "given": ("--threshold", 1)}.items():
        output = ("--output", tmp_path / f"{name}.jsonl", "--cache", labeled / "cache")
        cli.done("predict", record, new, *output, "--device", "cpu", *options)
        written[name] = json.loads((tmp_path / f"{name}.jsonl").read_text())["predicted"]
    assert written == {"scored": "high;neg;pos", "given": ""}


def test_predictions_keep_identifiers_and_have_all_probabilities(cli, labeled, tmp_path):
    new = write_csv(tmp_path / "new.csv", [("a", "good plot"), ("b", "weak plot")], ("id", "body"))
    where = ("--cache", labeled / "cache", "--device", "cpu", "--probabilities", "--id", "id")
    predicted = {}
    for name, threshold in (("out.csv", 0.0), ("out.jsonl", 1.0)):
        command = ("predict", record_of(labeled), new, "--output", tmp_path / name)
        cli.done(*command, *where, "--threshold", threshold)
        predicted[threshold] = tmp_path / name
    with predicted[0.0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in predicted[1.0].read_text().splitlines()]
    assert [row["id"] for row in rows] == [row["id"] for row in lines] == ["a", "b"]
    assert {row["predicted"] for row in rows} == {"high;neg;pos"}
    assert {row["predicted"] for row in lines} == {""}
    for row, line in zip(rows, lines, strict=True):
        assert [*row] == [*line] == ["id", "predicted", "p(high)", "p(neg)", "p(pos)"]
        assert all(float(row[x]) == line[x] for x in row if x.startswith("p("))


def test_labels_of_several_columns_are_those_of_one(cli, labeled, tmp_path, places):
    with (labeled / "tagged.csv").open(newline="") as file:
        rows = [
            (x["body"], *(int(tag in x["tags"].split(";")) for tag in ("high", "neg", "pos")))
            for x in csv.DictReader(file)
        ]
    path = write_csv(tmp_path / "tagged.csv", rows, ("body", "high", "neg", "pos"))
    columns = ("--text", "body", "--label", "high,neg,pos")
    cli.done("data", "import", "texts", path, *columns, *places[2:4])
    imports = [
        json.loads((folder / "cache/own/tagged/import.json").read_text())
        for folder in (tmp_path, labeled)
    ]
    assert imports[0]["rows_sha256"] == imports[1]["rows_sha256"]
    _, out, _ = cli("data", "card", "tagged", *places[2:4])
    assert "0: high" in out
    wrong = write_csv(tmp_path / "wrong.csv", [("text", "0", "maybe")], ("body", "a", "b"))
    command = ("finetune", "--data", wrong, "--text", "body", "--label", "a,b", *places)
    check_rejected(cli(*command), "column 'b' must be 0 or 1", "got 'maybe'")
    never = write_csv(tmp_path / "never.csv", [(*x, 0) for x in rows], ("body", *"abcd"))
    command = ("finetune", "--data", never, "--text", "body", "--label", "a,b,c,d", *places)
    check_rejected(cli(*command), "the label 'd' applies to no text; omit its column")


def test_names_of_labels_with_a_separator_stay_whole(cli, tmp_path, places):
    """A column "b;c" was two labels, and predictions of "a" and "b;c" read as three."""
    rows = [(text, int(x == "pos"), int(score > 10)) for text, x, score in reviews(40)]
    path = write_csv(tmp_path / "mine.csv", rows, ("body", "a", "b;c"))
    command = ("finetune", "--data", path, "--text", "body", "--label", "a,b;c", *SHORT, *places)
    check_rejected(cli(*command), "'b;c' has the separator ';'", "pass --separator")
    cli.done(*command, "--separator", "|")
    (record,) = (tmp_path / "runs" / "own" / "mine").glob("*.json")
    output = tmp_path / "out.jsonl"
    command = ("predict", record, path, "--output", output, "--threshold", "0", *places[2:])
    out, _ = cli.done(*command, "--json")
    assert {json.loads(line)["predicted"] for line in output.open()} == {"a|b;c"}
    share = sum(a + b for _, a, b in rows) / 80
    assert json.loads(out)["metrics"]["f1_micro"] == pytest.approx(2 * share / (1 + share))


ROWS = [row[:2] for row in reviews(30)]
BAD_FILES = {
    "three documents": (ROWS[:3], (), "3 texts of 2 classes"),
    "one class": ([(text, "pos") for text, _ in ROWS], (), "has one class ('pos')"),
    "equal texts": ([("the plot", label) for _, label in ROWS], (), "1 different text cannot"),
    "metric of numbers": (ROWS, ("--metric", "rmse"), "rmse does not fit one class a text"),
    "unknown metric": (ROWS, ("--metric", "f1_marco"), "f1_macro"),
    "threshold": (ROWS, ("--threshold", "1.5"), "--threshold must be a probability in [0, 1]"),
    "weights": (ROWS, ("--class-weights", "equal"), "class weights called 'equal'"),
    "three columns": ([(*x, "z") for x in ROWS], (), "has the columns a, b, c: pass --text COLUMN"),
    "doubled column": (ROWS, ("--text", "a", "--label", "a"), "name one column"),
    "pair of one text": (ROWS, ("--pair", "a"), "--pair a is a column of the texts"),
    "no separator": (ROWS, ("--separator", ""), "--separator is empty"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_documents_are_one_sentence_with_a_remedy(cli, tmp_path, places, case):
    rows, options, *parts = BAD_FILES[case]
    path = write_csv(tmp_path / "mine.csv", rows, "abc"[: len(rows[0])])
    columns = ("--text", "a", "--label", "b") if len(rows[0]) == 2 else ()
    command = ("finetune", "--data", path, *SHORT, *places, *columns)
    check_rejected(cli(*command, *options), *parts)
    assert not (tmp_path / "runs").exists()


BAD_PREDICTIONS = {
    "identifier missing": ([("", "x")], ("--id", "id"), "is missing in line 2"),
    "identifier doubled": ([("a", "x"), ("a", "y")], ("--id", "id"), "doubled in line 2, line 3"),
    "no such column": ([("a", "x")], ("--id", "key"), "has no column 'key'"),
    "threshold": ([("a", "x")], ("--threshold", "-0.1"), "in [0, 1], got -0.1"),
}


@pytest.mark.parametrize("case", BAD_PREDICTIONS)
def test_bad_predictions_are_one_sentence_with_a_remedy(cli, labeled, tmp_path, case):
    rows, options, part = BAD_PREDICTIONS[case]
    new = write_csv(tmp_path / "new.csv", rows, ("id", "body"))
    end = ("--output", tmp_path / "out.csv", "--cache", labeled / "cache", "--device", "cpu")
    check_rejected(cli("predict", record_of(labeled), new, *options, *end), part)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("options", [(), ("--probabilities",)])
def test_predictions_replace_no_column_of_the_file(cli, labeled, tmp_path, options):
    """A column that predict would write is refused, and so are two columns of one name."""
    end = ("--cache", labeled / "cache", "--device", "cpu", *options)

    def predict(names, output):
        new = write_csv(tmp_path / f"{output}.new.csv", [["good plot"] * len(names)], names)
        command = ("predict", record_of(labeled), new, "--output", tmp_path / output)
        return cli(*command, *end, "--json")

    code, out, err = predict(("body", "id"), "out.csv")
    assert code == 0, err
    for name in {*json.loads(out)["columns"]} - {"body", "id"}:
        check_rejected(predict(("body", name), "no.csv"), f"a column '{name}' already")
    check_rejected(predict(("body", "x", "x"), "no.csv"), "several columns 'x'")
    for suffix in ("", ".parquet", ".json", ".tsv", ".csv.gz", ".xlsx"):
        check_rejected(predict(("body",), f"no{suffix}"), "--output must end in .csv, .jsonl")
    assert not (tmp_path / "no.csv").exists()


def test_next_commands_name_the_folders_as_a_shell_takes_them(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_csv(tmp_path / "my file.csv", [row[:2] for row in reviews(60)], HEADER[:2])
    places = ("--cache", "my cache", "--runs", "my runs")
    commands = {
        "import": ("data", "import", "texts", path, "--name", "mine", *places[:2]),
        "finetune": ("finetune", "--data", path, "--name", "mine", *SHORT, *places),
        "train": ("train", "full", "mine", *SHORT, *places),
    }
    for name, command in commands.items():
        _, err = cli.done(*command)
        lines = [x.removeprefix("next: ") for x in err.splitlines() if x.startswith("next: ")]
        assert lines
        for words in map(shlex.split, lines):
            assert "report" in words or words[-2:] == ["--cache", "my cache"]
            assert name == "import" or Path(words[2]).is_file()


@pytest.mark.parametrize(
    ("options", "what", "kind"),
    [
        ((), "classes", "class"),
        (("--separator", ";"), "labels", "labels"),
        (("--target", "stars, 1-5"), "numbers", "number"),
    ],
)
def test_guessed_columns_are_named_with_their_kind(cli, tmp_path, options, what, kind):
    """A comma in the name of the only other column makes no labels of its classes."""
    rows = [(text, n % 3) for n, (text, *_) in enumerate(reviews(60))]
    path = write_csv(tmp_path / "mine.csv", rows, ("body", "stars, 1-5"))
    cache = tmp_path / "cache"
    _, err = cli.done("data", "import", "texts", path, *options, "--cache", cache)
    assert f"columns: texts in 'body', {what} in 'stars, 1-5'" in err
    assert json.loads((cache / "own" / "mine" / "import.json").read_text())["kind"] == kind


def test_labels_of_texts_to_predict_score_them(cli, labeled, tmp_path):
    """Scores are those of the written predictions; a label that training lacks scores nothing."""
    with (labeled / "tagged.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    end = ("--cache", labeled / "cache", "--device", "cpu", "--threshold", "0.4")
    command = ("predict", record_of(labeled), labeled / "tagged.csv", *end)
    out, _ = cli.done(*command, "--output", tmp_path / "out.csv", "--json")
    with (tmp_path / "out.csv").open(newline="") as file:
        predicted = [{*x["predicted"].split(";")} - {""} for x in csv.DictReader(file)]
    given = [{*row["tags"].split(";")} - {""} for row in rows]
    both = sum(len(a & b) for a, b in zip(given, predicted, strict=True))
    f1 = 2 * both / (sum(map(len, given)) + sum(map(len, predicted)))
    assert json.loads(out)["metrics"]["f1_micro"] == pytest.approx(f1)
    code, out, _ = cli(*command, "--output", tmp_path / "again.csv")
    assert (code, f"80 texts with a target: f1_micro {f1:.3f}" in out) == (0, True)
    other = write_csv(
        tmp_path / "other.csv", [("good plot", "new"), ("a", "neg")], ("body", "tags")
    )
    code, out, err = cli(*command[:2], other, *end, "--output", tmp_path / "third.csv")
    assert (code, "2 predictions" in out, "with a target" in out) == (0, True, False)
    assert "the training has no 'new', but 'high', 'neg', 'pos'" in " ".join(err.split())
