"""Language models on the command line: import, and a staged protocol of one's own."""

import json
import re
from pathlib import Path

import pytest

from corpus_files import write_folder
from longspan.results import load_results

PAGE = Path(__file__).parent.parent / "docs" / "recipes" / "train-a-language-model.md"
SMALL = {
    "model.hidden_size": 8,
    "model.num_attention_heads": 1,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 8,
    "training.evaluate_every": 5,
    "training.eval_batch_size": 4,
    "task.held_out_tokens": 100,
}


@pytest.fixture
def places(tmp_path, cli, registries):
    cache = tmp_path / "cache"
    code, _, message = cli(
        *("data", "import", "corpus", write_folder(tmp_path / "novels")),
        *("--objective", "next", "--validation", "0.2", "--test", "0.2", "--cache", cache),
    )
    assert code == 0, message
    return ["--cache", cache, "--runs", tmp_path / "runs"]


def documented_file(folder):
    """Write the protocol of the page, with smaller sizes."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    small = block.replace("2048", "32").replace("512", "16").replace("10_000", "10")
    path = folder / "staged.toml"
    path.write_text(small, encoding="utf-8")
    return path


def test_the_documented_stages_run(places, cli, tmp_path):
    path = documented_file(tmp_path)
    changes = [x for name, value in SMALL.items() for x in ("--set", f"{name}={value}")]
    code, _, message = cli(
        *("arena", "--protocol", path, "--mechanisms", "local,full"), *changes, *places
    )
    assert code == 0, message
    results = {x.mechanism: x for x in load_results([tmp_path / "runs"])}
    assert set(results) == {"local", "full"}
    for result in results.values():
        first, last = result.config.stages()
        assert (first.task.options["length"], last.task.options["length"]) == (16, 32)
        assert first.training.steps == 8
        assert result.steps == 10
        record = json.loads(
            next((tmp_path / "runs").rglob(result.filename)).read_text(encoding="utf-8")
        )
        assert len(record["config"]["training"]["stages"]) == 2
    first, _ = results["local"].config.stages()
    assert first.mechanism.options["window"] == 64


def test_a_protocol_without_its_corpus_says_how_to_import_it(cli, tmp_path, registries):
    code, output, message = cli(
        *("arena", "--protocol", "char-small", "--dry-run"),
        *("--cache", tmp_path / "cache", "--runs", tmp_path / "runs"),
    )
    assert (code, output) == (2, "")
    assert "needs novels, which is not imported; run longspan data import corpus FOLDER --name" in (
        " ".join(message.split())
    )
