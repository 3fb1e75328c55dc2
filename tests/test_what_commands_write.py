"""Every command reads the folders and records that another one wrote, or names the next command."""

import csv
import json
from pathlib import Path

import pytest

from own_files import reviews, write_csv

SHORT = (
    *("--set", "training.steps=4", "--set", "training.evaluate_every=2"),
    *("--set", "training.warmup_steps=1"),
)
SMALL = (
    *("--set", "model.hidden_size=16", "--set", "model.num_attention_heads=2"),
    *("--set", "model.num_hidden_layers=1", "--set", "model.intermediate_size=16"),
)
NEXT, MASKED = ("clm", "--objective", "next"), ("mlm", "--vocab-size", "300")


@pytest.mark.timeout(600)
def test_commands_read_what_commands_wrote(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = ("--runs", "runs", "--cache", "cache")

    def run(*arguments):
        code, out, err = cli(*arguments)
        assert code == 0, (arguments, err)
        return out

    def record(command, *arguments):
        """Return the record that a command of training names."""
        before = {*Path("runs").glob("*/*/*.json")}
        run(command, *arguments, *SHORT, *places)
        (made,) = {*Path("runs").glob("*/*/*.json")} - before
        return made

    write_csv(Path("r.csv"), [row[:2] for row in reviews(60)], ("text", "label"))
    write_csv(Path("new.csv"), [row[:1] for row in reviews(4, seed=1)], ("text",))
    Path("c.txt").write_text("\n\n".join(text for text, *_ in reviews(60)))
    classifier = record("finetune", "--data", "r.csv", *SMALL, "--set", "task.length=32")
    models = {}
    for name, *options in (NEXT, MASKED):
        run(
            *("data", "import", "corpus", "c.txt", "--name", name, "--document", "paragraph"),
            *options,
            *("--cache", "cache"),
        )
        made = record("pretrain", "local", name, *SMALL, "--set", "task.length=32")
        models[name] = [made, f"exported-{name}"]
        run("export", made, "--cache", "cache", "--output", f"exported-{name}")

    # A language model and its folder continue with the same tokens.
    ids = [
        json.loads(run("generate", x, "--prompt", "a plot", "--cache", "cache", "--json"))["ids"]
        for x in models["clm"]
    ]
    assert ids[0] == ids[1]

    # Pretrained models, as a record, a folder and a longer folder, are classifiers' starts.
    run(
        *("longify", "exported-mlm", "--mechanism", "longformer", "--max-length", "64"),
        *("--output", "longer"),
    )
    for start in (*models["mlm"], "longer", *models["clm"]):
        finetuned = record("finetune", start, "r")
        run("eval", finetuned, "--cache", "cache", "--examples", "2")
    record("pretrain", "longer", "mlm")
    for number, made in enumerate((classifier, finetuned)):
        output = f"predicted-{number}.csv"
        run("predict", made, "new.csv", "--output", output, "--cache", "cache")
        with Path(output).open(newline="") as file:
            assert len([*csv.DictReader(file)]) == 4
    run("export", classifier, "--output", "exported-classifier", "--cache", "cache")
    for made in (classifier, "exported-classifier"):
        output = "by-folder.csv" if made == "exported-classifier" else "by-record.csv"
        run("predict", made, "new.csv", "--output", output, "--cache", "cache")
    assert Path("by-folder.csv").read_text() == Path("by-record.csv").read_text()
    run("longify", "longer", "--mechanism", "bigbird", "--max-length", "96", "--output", "longest")
    run("report", "runs", "--output", "report.html")

    # What a command does not read, it says where to take.
    refusals = {
        ("eval", "exported-mlm"): "exported-mlm is a model; expected records of runs",
        ("longify", models["mlm"][0], "--max-length", "64", "--output", "x"): "longspan export",
        ("convert", "exported-mlm", "--output", "x"): "which is ours already",
        ("export", classifier, "--cache", "other", "--output", "x"): "--cache FOLDER",
    }
    for arguments, message in refusals.items():
        code, _, err = cli(*arguments)
        assert (code, message in err) == (2, True), (arguments, err)
        assert not Path("x").exists()
