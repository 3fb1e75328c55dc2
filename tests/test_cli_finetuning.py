"""`longspan pretrain` and `longspan finetune` on the command line, with texts of one's own."""

import shutil

import pytest

import toy_heads
from longspan.data.imports.texts import TextsDescription
from longspan.results import load_results
from longspan.tasks import TASKS, register
from own_files import reviews, write_csv
from short_sources import save_tokenizer
from test_cli_errors import check_rejected
from tiny import set_flags as flags

HEADER = ("body", "stars", "score")
COLUMNS = ("--text", "body", "--label", "stars")
TRAINING = {"steps": 4, "evaluate_every": 4, "warmup_steps": 0, "batch_size": 8}
MODEL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}


pytestmark = pytest.mark.usefixtures("no_imports")


@pytest.fixture
def trained(request, cli, tmp_path, places):
    """Return the record of a run on bytes of imported texts; the parameter is its positions."""
    path = write_csv(tmp_path / "first.csv", reviews(40), HEADER)
    cli("data", "import", "texts", path, *COLUMNS, "--cache", tmp_path / "cache")
    model = MODEL | {"position": getattr(request, "param", "learned")}
    sizes = [*flags("training", TRAINING), *flags("model", model)]
    encoding = flags("task", {"vocabulary": "bytes", "length": 64})
    code, _, err = cli("train", "local", "first", *sizes, *encoding, *places)
    assert code == 0, err
    (record,) = (tmp_path / "runs" / "own" / "first").glob("*.json")
    return record


@pytest.mark.parametrize("trained", ["learned", "rotary", "sinusoidal", "none"], indirect=True)
def test_own_texts_are_imported_and_finetuned_in_one_call(cli, tmp_path, trained, places):
    path = write_csv(tmp_path / "second.csv", reviews(30, seed=1), HEADER)
    command = ("finetune", trained, "--data", path, *COLUMNS, *flags("training", TRAINING), *places)
    code, out, err = cli(*command)
    assert code == 0, err
    assert "second" in out
    (result,) = load_results([tmp_path / "runs" / "finetune"])
    options = result.config.task.options
    # as far as the texts need, in the vocabulary of the checkpoint
    assert (options["length"], options["vocabulary"]) == (512, "bytes")
    is_learned = result.config.model.position == "learned"
    assert result.start.positions == ("tiled, 64 to 512 rows" if is_learned else None)
    assert result.start.sha256 == result.config.start.checkpoint
    # The same command loads the result.
    code, _, err = cli(*command)
    assert code == 0, err
    assert load_results([tmp_path / "runs" / "finetune"]) == [result]


@pytest.mark.parametrize("option", ["--dry-run", "--measure"])
def test_plan_imports_nothing(cli, tmp_path, trained, places, option):
    def content():
        files = sorted(x for x in (tmp_path / "cache").rglob("*") if x.is_file())
        return [(x, x.stat().st_mtime_ns, x.read_bytes()) for x in files]

    before = content()
    path = write_csv(tmp_path / "second.csv", reviews(30, seed=1), HEADER)
    command = ("finetune", trained, "--data", path, *COLUMNS, *flags("training", TRAINING), *places)
    check_rejected(
        cli(*command, option),
        "was not imported as 'second'",
        f"run longspan data import texts {path} first",
    )
    assert content() == before
    assert "second" not in TASKS
    settings = (*flags("training", TRAINING), "--set", "task.length=64")  # that of the built data
    code, out, err = cli("finetune", trained, "first", *settings, *places, option)
    assert (code, "first" in out) == (0, True), err
    assert content() == before


@pytest.mark.parametrize("option", ["--dry-run", "--measure"])
def test_run_on_imported_texts_is_planned_by_its_own_command(cli, tmp_path, places, option):
    """A new model on own texts had no plan: neither --data nor its name as a TASK was taken."""
    path = write_csv(tmp_path / "mine.csv", reviews(40), HEADER)
    command = ("finetune", "--data", path, *COLUMNS, *flags("training", TRAINING))
    command = (*command, *flags("model", MODEL), *places)
    code, _, err = cli("data", "import", "texts", path, *COLUMNS, *places[2:4])
    assert code == 0, err
    code, out, err = cli(*command, option)
    assert (code, "mine" in out) == (0, True), err
    assert not (tmp_path / "runs").exists()
    other = ("finetune", "--data", path, *COLUMNS[:2], "--label", "score", *places)
    check_rejected(cli(*other, option), "imported with the target 'stars', got 'score'")
    write_csv(path, reviews(50), HEADER)
    check_rejected(cli(*command, option), "has changed since it was imported", "--replace first")


def test_numbers_are_finetuned_from_classes(cli, tmp_path, trained, places):
    path = write_csv(tmp_path / "rated.csv", reviews(30, seed=1), HEADER)
    columns = ("--text", "body", "--target", "score", "--name", "numbers")
    code, out, err = cli(
        "finetune", trained, "--data", path, *columns, *flags("training", TRAINING), *places
    )
    assert code == 0, err
    (result,) = load_results([tmp_path / "runs" / "finetune"])
    assert result.task == "numbers"
    assert all(part in out for part in ("r2", "rmse", "TF-IDF", "numbers: 3 documents of test"))
    names = result.start.new, result.start.dropped
    heads = [sorted(x for x in part if "classifier" in x) for part in names]
    assert heads[0] == heads[1]
    assert len(heads[0]) == 4  # the hidden layer too, whose shape is equal


def test_other_tokens_are_refused(cli, tmp_path, trained, places):
    path = write_csv(tmp_path / "words.csv", reviews(30), HEADER)
    command = ("finetune", trained, "--data", path, *COLUMNS, *flags("training", TRAINING))
    code, _, err = cli(*command, "--set", "task.vocabulary=64", *places)
    assert code == 2
    assert "token ids of words are not those of" in err
    assert "(first)" in err
    assert "encode the task with the checkpoint's tokenizer" in err


@pytest.mark.parametrize("vocabulary", ["64", "characters"])
def test_run_with_a_learned_vocabulary_is_finetuned_from_its_export(
    cli, tmp_path, places, vocabulary
):
    old, new = (write_csv(tmp_path / f"{x}.csv", reviews(30, len(x)), HEADER) for x in ("old", "n"))
    cli("data", "import", "texts", old, *COLUMNS, "--cache", tmp_path / "cache")
    training = flags("training", TRAINING)
    sizes = [*flags("model", MODEL), "--set", f"task.vocabulary={vocabulary}"]
    code, _, err = cli("train", "local", "old", *training, *sizes, *places)
    assert code == 0, err
    (record,) = (tmp_path / "runs" / "own" / "old").glob("*.json")
    command = ("--data", new, *COLUMNS, *training, *places)
    code, _, err = cli("finetune", record, *command)
    assert code == 2
    for part in ("(old)", "other tokens", "longspan export RECORD --output FOLDER"):
        assert part in err
    # The learned tokens are not known without the data.
    (tmp_path / "cache" / "old").rename(tmp_path / "moved")
    code, _, err = cli("finetune", record, *command)
    assert code == 2
    assert "(old): its data set is not built" in err
    (tmp_path / "moved").rename(tmp_path / "cache" / "old")
    folder = tmp_path / "exported"
    cli("export", record, "--output", folder, "--cache", tmp_path / "cache")
    code, _, err = cli("finetune", folder, *command)
    assert code == 0, err
    # On its own task the ids are the same.
    code, _, err = cli("finetune", record, "old", *training, *places)
    assert code == 0, err


def test_checkpoint_of_another_tokenizer_is_refused(cli, tmp_path, trained, places):
    (best,) = (trained.parent / "work" / trained.stem).glob("best-*")
    shutil.copytree(best, tmp_path / "model")
    save_tokenizer(tmp_path / "model", 40)
    path = write_csv(tmp_path / "mine.csv", reviews(30), HEADER)
    command = ("finetune", tmp_path / "model", "--data", path, *COLUMNS, *places)
    code, _, err = cli(*command, *flags("training", TRAINING), "--set", "task.vocabulary=bytes")
    assert code == 2
    assert "token ids of mine are not those of" in err
    assert "(its tokenizer): 39 ids" in err


def test_unusable_commands_are_refused(cli, tmp_path, trained, places):
    path = write_csv(tmp_path / "mine.csv", reviews(30), HEADER)
    for arguments, parts in (
        ((trained,), ["a TASK, or --data FILE"]),
        ((tmp_path / "gone", "--data", path, *COLUMNS), ["gone is no folder; name the record"]),
        ((trained, "--data", path, "--text", "body"), ["either --label COLUMN"]),
        ((trained, "listops", *COLUMNS), ["--text, --label: for own texts", "got listops"]),
        ((trained, "listpos"), ["no task of protocol 'finetune' called 'listpos'"]),
    ):
        check_rejected(cli("finetune", *arguments, *places), *parts)
    # Nothing is imported for a checkpoint that cannot be read.
    assert sorted(x.name for x in (tmp_path / "cache" / TextsDescription.folder).iterdir()) == [
        "first"
    ]


def test_corpora_are_pretrained(cli, registries, tmp_path, places):
    register(toy_heads.ToyMasked)
    sizes = [*flags("training", TRAINING), *flags("model", MODEL)]
    command = ("toy_masked", *sizes, *places)
    code, out, err = cli("pretrain", "local", *command)
    assert code == 0, err
    assert "perplexity" in out
    (record,) = (tmp_path / "runs" / "pretrain" / "toy_masked").glob("*.json")
    assert f"next: longspan finetune {record} TASK" in err
    code, _, err = cli("pretrain", record, *command)
    assert code == 0, err
    results = load_results([tmp_path / "runs"])
    assert sorted(x.start is None for x in results) == [False, True]
    check_rejected(cli("pretrain", "locl", *command), "mechanism or checkpoint called 'locl'; did")
    check_rejected(
        cli("pretrain", "full", *command, "--mechanism", "local"), "--mechanism replaces that of a"
    )
    check_rejected(
        cli("pretrain", "full", "listops", *places), "listops has neither masked nor next tokens"
    )
    check_rejected(
        cli("pretrain", "full", tmp_path, *places), f"longspan data import corpus {tmp_path}"
    )
    check_rejected(
        cli("pretrain", "full", "novels", *places),
        "no task of protocol 'pretrain' called 'n",
        "longspan data import corpus PATH --name novels",
    )
