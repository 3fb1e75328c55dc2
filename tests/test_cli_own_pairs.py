"""`longspan data import questions` and `search`: tasks of `own`, what is printed, refusals."""

import contextlib
import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from transformers import RobertaConfig, RobertaModel

import tiny
from longspan.arena.finished_run import load_run
from longspan.arena.paths import RunPaths
from model_cards import code_of
from own_files import save_tokenizer
from test_cli_errors import check_rejected
from tiny import set_flags

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
    out, err = cli.done("data", "import", kind, table, *cache)
    assert "task: mine" in out
    assert "train: 16" in out
    assert "next: longspan train local mine" in err
    more = () if kind == "questions" else ("--set", "task.vocabulary=128")
    runs = ("--runs", tmp_path / "runs", "--device", "cpu")
    cli.done("train", "local", "mine", *FLAGS, *more, *cache, *runs)
    (path,) = (tmp_path / "runs").rglob("local-*.json")
    assert REPORTED[kind] in json.loads(path.read_text())["scores"]["test"]["metrics"]


@pytest.mark.parametrize("kind", HEADERS)
def test_encoder_of_transformers_starts_them(cli, tmp_path, kind):
    """It is converted, or extended to a longer task; the conversion is stored in the cache."""
    cache = ("--cache", tmp_path / "cache")
    cli("data", "import", kind, write_rows(tmp_path / "mine.csv", kind), *cache)
    folder = save_tokenizer(tmp_path / "roberta", [text for row in ROWS for text in row])
    sizes = {"vocab_size": 80, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(**sizes, intermediate_size=16, max_position_embeddings=34)
    RobertaModel(config).save_pretrained(folder)
    short = set_flags("training", {"steps": 2, "evaluate_every": 1, "batch_size": 4})
    short += () if kind == "search" else ("--set", "task.question_length=8")
    where = (*cache, "--runs", tmp_path / "runs", "--device", "cpu")
    for length, mechanism in ((32, "full"), (96, "longformer")):
        more = ("--set", f"task.length={length}")
        cli.done("finetune", folder, "mine", *short, *more, *where)
        (path,) = (tmp_path / "runs").rglob(f"{mechanism}-*.json")
        config = json.loads(path.read_text())["config"]
        assert config["task"]["options"]["length"] == length
    assert len([*(tmp_path / "cache" / "checkpoints").iterdir()]) == 2


def test_code_of_the_card_answers_as_the_run(cli, tmp_path):
    """The model has global tokens, those of the question, which the code marks."""
    cache = ("--cache", tmp_path / "cache")
    cli("data", "import", "questions", write_rows(tmp_path / "mine.csv", "questions"), *cache)
    flags = tiny.short_flags({**tiny.SHORT_RUN, "mechanism.window": 2})
    runs = ("--runs", tmp_path / "runs", "--device", "cpu")
    cli.done("train", "longformer", "mine", *flags, *cache, *runs)
    (path,) = (tmp_path / "runs").rglob("longformer-*.json")
    cli.done("export", path, "--output", tmp_path / "model", *cache)
    run = load_run(path, RunPaths(cache=tmp_path / "cache", device="cpu"))
    details = run.task.load_details("test", 0)
    (batch,) = run.task.batches("test", batch_size=1, rows=np.array([0]))
    texts = f"texts = {details['question']!r}, {details['context']!r}"
    namespace = {}
    card = code_of(tmp_path / "model")
    exec(re.sub("^texts = .*", texts, card, flags=re.MULTILINE), namespace)
    inputs = namespace["inputs"]
    length = inputs["input_ids"].shape[1]
    real = {name: batch.inputs[name][:, :length] for name in ("input_ids", "global_attention_mask")}
    assert not batch.inputs["attention_mask"][:, length:].any()
    assert torch.equal(inputs["input_ids"], real["input_ids"].long())
    assert 0 < real["global_attention_mask"].sum() < length
    assert torch.equal(inputs["global_attention_mask"], real["global_attention_mask"])
    with torch.no_grad():
        logits = run.model.eval()(**inputs).start_logits
    torch.testing.assert_close(namespace["output"].start_logits, logits)
    assert namespace["document"][namespace["start"]]
    assert namespace["document"][namespace["end"]]


def test_code_of_the_card_searches_as_the_run(cli, tmp_path):
    """One question and two texts, as the card has them, have the scores of the run's model."""
    cache = ("--cache", tmp_path / "cache")
    cli("data", "import", "search", write_rows(tmp_path / "mine.csv", "search"), *cache)
    runs = ("--set", "task.vocabulary=128", "--runs", tmp_path / "runs", "--device", "cpu")
    cli.done("train", "local", "mine", *FLAGS, *cache, *runs)
    (path,) = (tmp_path / "runs").rglob("local-*.json")
    cli.done("export", path, "--output", tmp_path / "model", *cache)
    namespace, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code_of(tmp_path / "model"), namespace)
    run = load_run(path, RunPaths(cache=tmp_path / "cache", device="cpu"))
    kinds = {"query": ["A question."], "document": ["A text.", "Another one."]}
    inputs = {}
    for kind, texts in kinds.items():
        ids = [torch.tensor(run.task.encode(x).astype(int)) for x in texts]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        inputs[f"{kind}_input_ids"] = padded
        inputs[f"{kind}_attention_mask"] = padded != 0
    with torch.no_grad():
        expected = run.model.eval()(**inputs, return_loss=False).similarities
        found = namespace["model"](**namespace["inputs"], return_loss=False).similarities
    assert expected.shape == (1, 2)
    torch.testing.assert_close(found, expected)
    assert said.getvalue().startswith("tensor([[")


def test_what_was_left_out_is_printed(cli, tmp_path):
    rows = [*ROWS, ("Why?", "In house 0 lives Ann0.", ""), ("", "No question.", "x")]
    rows.append(("Where?", "In house 1 lives Ann1.", "Oslo"))
    table = write_rows(tmp_path / "mine.csv", "questions", rows)
    _, err = cli.done("data", "import", "questions", table, "--cache", tmp_path / "cache")
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
