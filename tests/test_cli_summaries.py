"""Summarization on the command line: papers, summaries of one's own, checkpoints to start from."""

import csv
import re
import shutil

import pytest
import torch
from transformers import AutoTokenizer

import paper_files
from longspan.data.word_pieces import tokenizer_sha256
from longspan.models import LongspanConfig, LongspanForConditionalGeneration, LongspanForMaskedLM
from longspan.results import load_results
from longspan.validation import validate_records
from own_files import save_tokenizer, write_csv
from test_cli_errors import check_rejected
from tiny import set_flags as flags

HEADER = ("body", "gist")
COLUMNS = ("--text", "body", "--summary", "gist")
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
TRAINING = {"steps": 4, "evaluate_every": 2, "warmup_steps": 0, "batch_size": 8}
SHORT = {"length": 32, "target_length": 12, "beams": 2}


def rows(count):
    """Return texts, and their first sentences as summaries."""
    papers = (paper_files.paper(number)["article_text"] for number in range(count))
    return [(" ".join(sentences), sentences[0]) for sentences in papers]


pytestmark = pytest.mark.usefixtures("no_imports")


@pytest.fixture
def notes(tmp_path):
    return write_csv(tmp_path / "notes.csv", rows(24), HEADER)


def save_checkpoint(folder, model_class, **fields):
    """Save a small model of random weights with a tokenizer for the texts."""
    save_tokenizer(folder, [text for row in rows(24) for text in row])
    size = len(AutoTokenizer.from_pretrained(folder))
    torch.manual_seed(1)
    config = LongspanConfig(
        vocab_size=size, max_position_embeddings=32, attention="local",
        attention_options={"window": 4}, intermediate_size=16, **SIZES, **fields,
    )  # fmt: skip
    model_class(config).save_pretrained(folder)
    return folder


def save_summarizer(folder, **decoder):
    """Save a small encoder-decoder; its decoder may have sizes of its own."""
    fields = {"is_encoder_decoder": True, "decoder_start_token_id": 2}
    model_class = LongspanForConditionalGeneration
    return save_checkpoint(folder, model_class, decoder_overrides=decoder, **fields)


def finetune(cli, checkpoint, path, places, *more):
    return cli(
        "finetune", checkpoint, "--data", path, *COLUMNS, *flags("training", TRAINING), *more,
        *places,
    )  # fmt: skip


def test_papers_are_trained_evaluated_and_summarized(cli, tmp_path, places):
    papers = paper_files.write_papers(tmp_path / "papers")
    data = ("--data", papers)
    sizes = [*flags("model", SIZES), *flags("training", TRAINING)]
    options = flags("task", {**SHORT, "vocabulary": 40, "global_tokens": "first"})
    window = ("--set", "mechanism.window=4")
    protocol = ("--protocol", "documents-small")
    out, _ = cli.done(
        "train", "longformer", "pubmed_summarization", *protocol, *sizes, *options, *window,
        *data, *places,
    )  # fmt: skip
    assert "rule: lead" in out
    (record,) = (tmp_path / "runs").rglob("longformer-*.json")
    common = (*data, "--cache", tmp_path / "cache", "--device", "cpu")
    out, _ = cli.done("eval", record, *common)
    (result,) = load_results([tmp_path / "runs"])
    assert f"ROUGE-1 {100 * result.score():.1f} %" in out
    assert "4 examples" in out
    new = write_csv(tmp_path / "new.csv", rows(3), HEADER)
    output = tmp_path / "out.csv"
    cli.done("predict", record, new, "--text", "body", "--output", output, *common)
    with output.open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["body"] for row in written] == [text for text, _ in rows(3)]
    known = set(paper_files.WORDS)
    assert all(set(row["predicted"].split()) <= known for row in written)
    assert all(len(row["predicted"].split()) <= 12 for row in written)
    # Decoding is an option of the task: no data is built again, and the evaluation names it.
    out, _ = cli.done("eval", record, "--set", "task.beams=1", *common)
    assert "beams=1" in out


def test_encoder_starts_a_summarizer(cli, tmp_path, places, notes):
    checkpoint = save_checkpoint(tmp_path / "encoder", LongspanForMaskedLM)
    finetune(cli.done, checkpoint, notes, places, *flags("task", {"target_length": 12}))
    (result,) = load_results([tmp_path / "runs"])
    assert result.config.task.options["vocabulary"] == f"tokenizer:{checkpoint}"
    assert result.config.task.options["length"] == 32
    drawn = {name.split(".")[1] for name in result.start.new if name.startswith("model.")}
    assert drawn == {"decoder"}
    assert "model.decoder.embeddings.words.weight" not in result.start.new  # tied to the encoder's
    assert not any("encoder.layers" in name for name in result.start.new + result.start.dropped)
    assert any("transform" in name for name in result.start.dropped)


def test_copied_checkpoint_loads_the_finished_run(cli, tmp_path, places, notes):
    """The tokenizer is known by its files, wherever their folder is."""
    checkpoint = save_checkpoint(tmp_path / "encoder", LongspanForMaskedLM)
    copy = shutil.copytree(checkpoint, tmp_path / "elsewhere" / "copy")
    for folder in (checkpoint, copy):
        finetune(cli.done, folder, notes, places, *flags("task", {"target_length": 12}))
    (result,) = load_results([tmp_path / "runs"])
    assert result.config.start.tokenizer == tokenizer_sha256(checkpoint)
    assert [str(x) for x in validate_records([tmp_path / "runs"]).of("error")] == []


def test_encoder_decoder_starts_a_summarizer(cli, tmp_path, places, notes):
    checkpoint = save_summarizer(tmp_path / "both", max_position_embeddings=16)
    finetune(cli.done, checkpoint, notes, places, *flags("task", {"target_length": 12}))
    (result,) = load_results([tmp_path / "runs"])
    assert result.start.new == []
    assert result.start.dropped == []
    (record,) = (tmp_path / "runs").rglob("local-*.json")
    hub = tmp_path / "hub"
    cli.done("export", record, "--output", hub, "--cache", tmp_path / "cache")
    card = (hub / "README.md").read_text()
    assert "tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)" in card
    assert 'text = " ".join("A text.".split())  # white space as in training' in card
    assert "over rule: lead" in card
    options = flags("task", {"target_length": 17})
    code, _, err = finetune(cli, checkpoint, notes, places, *options)
    assert code == 2
    assert "up to 17 tokens, the checkpoint's decoder 16 positions" in err
    assert "set notes.task.target_length=16" in err


@pytest.mark.parametrize(("given", "expected"), [(None, 16), (9, 9)])
def test_summaries_are_as_long_as_the_decoder_of_the_checkpoint(
    cli, tmp_path, places, notes, given, expected
):
    """The recipe's number is lowered, as that of texts is; a user's own is kept."""
    checkpoint = save_summarizer(tmp_path / "both", max_position_embeddings=16)
    options = {} if given is None else {"target_length": given}
    finetune(cli.done, checkpoint, notes, places, *flags("task", options))
    (result,) = load_results([tmp_path / "runs"])
    assert result.config.task.options["target_length"] == expected
    assert result.config.task.options["length"] == 32
    changed = {"task.target_length": expected} if given else {}
    assert {x: y for x, y in result.overrides.items() if "target_length" in x} == changed
    assert [str(x) for x in validate_records([tmp_path / "runs"]).of("error")] == []


@pytest.mark.parametrize("decoder", [{}, {"max_position_embeddings": 16}])
def test_positions_of_an_encoder_decoder_are_extended(cli, tmp_path, places, notes, decoder):
    checkpoint = save_summarizer(tmp_path / "both", **decoder)
    options = flags("task", {"length": 48, "target_length": 12})
    tile = ("--extend-positions", "tile")
    finetune(cli.done, checkpoint, notes, places, *options, *tile)
    (result,) = load_results([tmp_path / "runs"])
    assert result.length == 48
    # Without sizes of its own the decoder has as many positions as the encoder.
    alike = "; decoder: tiled, 32 to 48 rows"
    assert result.start.positions == "tiled, 32 to 48 rows" + ("" if decoder else alike)
    assert result.start.new == []


def test_checkpoint_of_another_tokenizer_is_refused(cli, tmp_path, places, notes):
    checkpoint = save_checkpoint(tmp_path / "encoder", LongspanForMaskedLM)
    options = flags("task", {"target_length": 12, "vocabulary": 40})
    code, _, err = finetune(cli, checkpoint, notes, places, *options)
    assert code == 2
    assert "token ids of notes are not those of" in err


def test_summaries_are_imported(cli, tmp_path, notes):
    cache = ("--cache", tmp_path / "cache")
    command = ("data", "import", "summaries", notes, *COLUMNS, *cache)
    out, err = cli.done(*command)
    assert "longspan train local notes" in err + out
    assert cli(*command)[0] == 0  # the same rows
    out, _ = cli.done("data", "show", "notes", "--split", "test", *cache)
    assert " = word" in out
    notes.write_text(notes.read_text() + "a new text .,a summary .\n")
    check_rejected(cli(*command), "'notes' is the name of another import of texts", "--replace")
    assert cli(*command, "--replace")[0] == 0


def test_summaries_in_a_script_without_spaces_are_bytes(cli, tmp_path):
    """Words were whole clauses, of which a new summary has none that training has."""
    clauses = [f"{chr(0x4E00 + n)}{'今天天气很好我们' * 2}" for n in range(48)]
    rows = [(f"{'，'.join(clauses[n : n + 9])}。", f"{clauses[n]}。") for n in range(24)]
    path = write_csv(tmp_path / "notes.csv", rows, HEADER)
    cli.done("data", "import", "summaries", path, *COLUMNS, "--cache", tmp_path / "cache")
    out, _ = cli.done("data", "card", "notes", "--protocol", "own", "--cache", tmp_path / "cache")
    options = dict(re.findall(r"\| `(\w+)` \|.*\| `(.*)` \| `.*` \|", out))
    assert options["vocabulary"] == "bytes"
    # 9 clauses of 17 characters and a mark, and one of them with its end.
    assert (options["length"], options["target_length"]) == ("512", "64")


def test_unusable_summaries_are_refused(cli, tmp_path, notes):
    cache = ("--cache", tmp_path / "cache")
    empty = write_csv(tmp_path / "empty.csv", [*rows(20), ("a text", "")], HEADER)
    for path, arguments, parts in (
        (notes, ("--text", "body"), ["takes --text COLUMN and --summary COLUMN"]),
        (notes, ("--text", "body", "--summary", "none"), ["no column 'none'", "body, gist"]),
        (notes, (*COLUMNS, "--label", "gist"), ["--label applies to `data import texts`"]),
        (empty, COLUMNS, ["empty text or target in line 22", "--drop-empty"]),
        (tmp_path, COLUMNS, ["several files of train", "pass its file"]),
    ):
        check_rejected(cli("data", "import", "summaries", path, *arguments, *cache), *parts)
    check_rejected(cli("data", "import", "texts", notes, *COLUMNS, *cache), "--summary applies to")
    _, err = cli.done("data", "import", "summaries", empty, *COLUMNS, "--drop-empty", *cache)
    assert "1 row without a text or summary was" in err
    assert "no word for ROUGE" not in err
    mute = write_csv(tmp_path / "mute.csv", [*rows(20), ("a text", "..."), ("и", "…")], HEADER)
    _, err = cli.done("data", "import", "summaries", mute, *COLUMNS, *cache)
    assert "2 summaries have no word for ROUGE, which scores them 0" in err
