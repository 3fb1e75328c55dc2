"""The practitioner's road on the command line: files, a table with TF-IDF, predictions."""

import csv
import json

import pytest
from sklearn import metrics as sk
from transformers import RobertaConfig, RobertaModel

from longspan.results import DocumentScores, load_results, load_side_records
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
    code, out, err = cli(*command)
    assert code == 0, err
    assert "columns: texts in 'body', classes in 'stars'" in err
    assert "tokens cover all documents" in err
    (scores,) = load_scores(tmp_path)
    model, tfidf, constant = scores.rows
    assert (model.name, tfidf.name, constant.name) == ("local", "TF-IDF", "most frequent")
    assert tfidf.metrics["accuracy"] == 1.0  # a few words decide
    (result,) = load_results([tmp_path / "runs" / "own"])
    assert model.metrics["accuracy"] == pytest.approx(result.scores["test"].metrics["accuracy"])
    assert result.config.training.patience == 3
    for part in ("TF-IDF", "Class weights: none.", "local loses to TF-IDF", "long-documents.md"):
        assert part in " ".join(out.split())
    # Another run on the same documents is a row of the same table.
    code, out, err = cli(*command, "--mechanism", "full", "--metric", "f1_macro")
    assert code == 0, err
    assert all(f"{name} (length 64" in " ".join(out.split()) for name in ("local", "full"))
    assert {x.metric for x in load_scores(tmp_path)} == {"accuracy", "f1_macro"}


def test_scores_of_the_record_are_those_of_the_confusion_matrix(cli, tmp_path, file, places):
    code, out, err = cli("finetune", "--data", file, *SHORT, *places, "--json")
    assert code == 0, err
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
        recalls = [
            x / max(1, sum(counts))
            for x, counts in zip(
                (c[i] for i, c in enumerate(row["confusion"])), row["confusion"], strict=True
            )
        ]
        assert [x["recall"] for x in row["classes"]] == pytest.approx(recalls)
        gaps = [abs(p - share) * count for p, share, count in row["calibration"]]
        assert row["metrics"]["ece"] == pytest.approx(sum(gaps) / record["documents"])
    assert record["documents"] == sum(map(sum, record["rows"][0]["confusion"]))


def test_encoder_of_transformers_is_extended_to_the_documents(cli, tmp_path, places):
    rows = [(f"{text} " * 3, label) for text, label, _ in reviews(60)]
    path = write_csv(tmp_path / "long.csv", rows, HEADER[:2])
    folder = save_tokenizer(tmp_path / "roberta", [*GOOD, *BAD, "the plot"])
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"vocab_size": 80, "intermediate_size": 16, "max_position_embeddings": 34}
    RobertaModel(RobertaConfig(**config, **sizes)).save_pretrained(folder)
    changes = ("--set", "mechanism.window=4", *flags("training", TRAINING))
    command = ("finetune", "--start", folder, "--data", path, *changes, *places)
    code, _, err = cli(*command)
    assert code == 0, err
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
    code, _, err = cli("finetune", folder, "--data", path, *changes[2:], *places,
                       "--set", "task.length=32")  # fmt: skip
    assert code == 0, err
    assert "full" in {x.mechanism for x in load_results([tmp_path / "runs" / "finetune"])}


def test_weights_of_classes_follow_their_numbers(cli, tmp_path, places):
    rows = [(text, label) for text, label, _ in reviews(90)]
    rare = [row for row in rows if row[1] == "pos"][:10]
    path = write_csv(tmp_path / "rare.csv", [*(x for x in rows if x[1] == "neg"), *rare])
    code, out, err = cli("finetune", "--data", path, *SHORT, *places, "--class-weights", "balanced")
    assert code == 0, err
    assert "Class weights: balanced." in out
    (best,) = (tmp_path / "runs").glob("own/rare/work/*/best-*/config.json")
    weights = json.loads(best.read_text())["class_weights"]
    (result,) = load_results([tmp_path / "runs"])
    counts = json.loads((tmp_path / "cache/own/rare/import.json").read_text())["class_counts"]
    train = counts["train"]
    assert weights == pytest.approx([sum(train) / 2 / count for count in train])
    assert result.config.task.options["class_weights"] == "balanced"
