"""`longspan data import corpus` and `longspan data tokenizer` on the command line."""

import json

import pytest
from transformers import AutoTokenizer

from corpus_files import TEXTS, write_folder
from longspan.data.word_pieces import load_word_pieces
from own_files import write_csv
from test_cli_errors import check_rejected

SMALL = ("--vocab-size", "300")


pytestmark = pytest.mark.usefixtures("no_imports")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "files")


def run_import(cli, tmp_path, name, *arguments):
    end = ("--name", name, "--cache", tmp_path / "cache")
    return cli("data", "import", "corpus", *arguments, *end)


def test_import_makes_a_task(cli, tmp_path, folder):
    out, _ = run_import(cli.done, tmp_path, "mine", folder, *SMALL, "--set", "length=32")
    assert "task: mine" in out
    for command in (["card", "mine"], ["show", "mine"], ["verify"], ["list"], ["build", "mine"]):
        out, _ = cli.done("data", *command, "--cache", tmp_path / "cache")
        assert "mine" in out or "document 0" in out
    assert "the" in cli("data", "show", "mine", "--cache", tmp_path / "cache")[1]


def test_import_reports_what_was_left_out(cli, tmp_path, folder):
    (folder / "latin.txt").write_text("café au lait", encoding="latin-1")
    (folder / "empty.txt").write_text("")
    (folder / "again.txt").write_text(TEXTS[0])
    (folder / "binary.txt").write_bytes(b"\0\1")
    arguments = ("mine", folder, *SMALL, "--encoding", "utf-8,latin-1")
    check_rejected(run_import(cli, tmp_path, *arguments), "binary.txt, line 1", "--skip-bad")
    assert not (tmp_path / "cache" / "corpora").exists()
    _, err = run_import(cli.done, tmp_path, *arguments, "--skip-bad")
    assert "1 empty document was left out" in err
    assert "1 document repeats another one and was" in err
    assert "1 unreadable left out" in err
    assert "26 utf-8, 1 latin-1" in err


def test_options_of_a_corpus_reach_its_description(cli, tmp_path, folder):
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps({"body": x + "!"}) + "\n" for x in TEXTS))
    held = write_csv(tmp_path / "held.txt", [("a", "b")])
    code, _, err = run_import(
        *(cli, tmp_path, "mine", folder, other, *SMALL, "--weights", "3,1", "--text", "body"),
        *("--limit", "20", "--test", held, "--validation", "0.2", "--kind", "wordpiece"),
    )
    assert code == 0, err
    path = tmp_path / "cache" / "corpora" / "mine" / "import.json"
    described = json.loads(path.read_text())
    assert described["weights"] == [3, 1]
    assert described["sizes"] == {"train": 32, "validation": 8, "test": 1}
    assert described["tokenizer"]["name"] == "wordpiece of 300 ids"
    assert [source["split"] for source in described["sources"]] == ["train", "train", "test"]


def test_a_trained_tokenizer_serves_a_corpus(cli, tmp_path, folder):
    made = tmp_path / "tokenizer"
    out, _ = cli.done(
        "data", "tokenizer", folder, "--output", made, "--vocab-size", "290", "--lowercase"
    )
    assert str(made) in out
    fast = AutoTokenizer.from_pretrained(made)
    assert len(fast) == 290
    assert fast("THE").input_ids == fast("the").input_ids
    check_rejected(cli("data", "tokenizer", folder, "--output", made), "exists; remove it")
    run_import(cli.done, tmp_path, "mine", folder, "--tokenizer", made)
    described = json.loads((tmp_path / "cache/corpora/mine/import.json").read_text())
    assert described["tokenizer"]["sha256"] == load_word_pieces(made).sha256


def test_a_tokenizer_is_trained_on_the_training_texts_of_a_folder(cli, tmp_path):
    """It read held-out texts too, so that their words were in its vocabulary."""
    for split, text in (("train", "abc abc"), ("validation", "xyz xyz"), ("test", "uvw uvw")):
        (tmp_path / "mine" / split).mkdir(parents=True)
        (tmp_path / "mine" / split / "one.txt").write_text(text)
    made = tmp_path / "made"
    cli.done("data", "tokenizer", tmp_path / "mine", "--output", made, "--kind", "wordpiece")
    vocabulary = "".join(AutoTokenizer.from_pretrained(made).get_vocab())
    assert "abc" in vocabulary
    assert not set("uvwxyz") & set(vocabulary)


@pytest.mark.parametrize(
    ("arguments", "name", "metric"),
    [
        ([], "bytes", "Bits per byte"),
        (["--vocabulary", "characters"], "characters", "Bits per character"),
        (["--vocab-size", "300"], "byte-level of 300 ids", "Perplexity"),
        (["--vocabulary", "tokenizer", "--kind", "bpe"], "bpe of 8192 ids", "Perplexity"),
    ],
)
def test_a_corpus_of_the_next_token_is_a_task(cli, tmp_path, folder, arguments, name, metric):
    (folder / "short.txt").write_text("q")
    code, out, err = run_import(
        *(cli, tmp_path, "mine", folder, "--objective", "next", "--set", "length=32"), *arguments
    )
    assert code == 0, err
    assert "task: mine" in out
    # the space before a word is a token of a pair encoding of words
    assert ("document of fewer than two tokens was left out" in err) == ("bpe" not in name)
    described = json.loads((tmp_path / "cache/corpora/mine/import.json").read_text())
    assert (described["objective"], described["tokenizer"]["name"]) == ("next", name)
    out, _ = cli.done("data", "card", "mine", "--cache", tmp_path / "cache")
    assert metric in out
    assert "Bits per byte" in out
    out, _ = cli.done("data", "show", "mine", "--cache", tmp_path / "cache")
    assert "document 0" in out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["listops", "FOLDER"], ["'listops' is the name of a task"]),
        (["Mine", "FOLDER"], ["lower-case letters"]),
        (["mine", "FOLDER", "--label", "x"], ["`data import texts`, not to corpus"]),
        (["mine", "FOLDER", "--weights", "a"], ["--weights must be numbers"]),
        (["mine", "FOLDER", "--limit", "0"], ["--limit must be at least 1"]),
        (["mine", "FOLDER", "--document", "word"], ["no document of a text file called 'word'"]),
        (["mine", "FOLDER", "--kind", "bytes"], ["no kind of tokenizer called 'bytes'"]),
        (["mine", "FOLDER", "--tokenizer", "x", "--kind", "bpe"], ["omit them or --tokenizer"]),
        (["mine", "FOLDER", "--tokenizer", "/none"], ["/none does not exist"]),
        (["mine", "FOLDER", "--objective", "last"], ["no objective called 'last'"]),
        (["mine", "FOLDER", "--vocabulary", "words"], ["no vocabulary called 'words'"]),
        (["mine", "FOLDER", "--vocabulary", "bytes"], ["no mask token; pass --objective next"]),
        (
            ["mine", "FOLDER", "--objective", "next", "--weights", "1"],
            ["--weights does not go with --objective next"],
        ),
        (
            ["mine", "FOLDER", "--objective", "next", "--vocabulary", "bytes", "--tokenizer", "x"],
            ["--vocabulary bytes has no tokenizer; omit it or --tokenizer"],
        ),
        (
            ["mine", "FOLDER", "--objective", "next", "--vocabulary", "bytes", "--kind", "bpe"],
            ["omit them or --vocabulary bytes"],
        ),
        (["mine", "missing"], ["missing does not exist", "--name"]),
    ],
)
def test_invalid_imports_are_refused(cli, tmp_path, folder, arguments, parts):
    named = [folder if x == "FOLDER" else x for x in arguments]
    check_rejected(run_import(cli, tmp_path, *named), *parts)


def test_options_of_corpora_are_refused_for_other_tasks(cli, tmp_path, folder):
    end = ("--cache", tmp_path / "cache")
    command = ("data", "import", "texts", folder / "x.csv", "--vocab-size", "300", *end)
    check_rejected(cli(*command), "--vocab-size applies to `data import corpus`, not to texts")
