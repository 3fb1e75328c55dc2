"""Every numeric option of every command: a slip is refused at once, in words that name it."""

import time

import pytest
import torch
import typer
from transformers import RobertaConfig, RobertaForMaskedLM

import tiny
from longspan.bench.peaks import PeakMeter
from longspan.cli import app
from longspan.models import LongspanConfig, LongspanForCausalLM
from longspan.results.efficiency import Limits

HUGE = 10**20
SLIPS = {int: (-1, HUGE), float: (-1.0, float("nan"), float("inf"))}
SECONDS = 30.0
# A slip that is as good as the largest number: all of the examples, tokens or seconds there are.
TAKES_HUGE = {"--batch-size", "--samples", "--examples", "--max-seconds"}


def commands(group, path=()):
    """Yield commands with the words that call them."""
    for name, command in getattr(group, "commands", {}).items():
        if getattr(command, "commands", None):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


OPTIONS = [
    pytest.param(
        words, command, option.opts[0], value, id=f"{'-'.join(words)}{option.opts[0]}={value}"
    )
    for words, command in commands(typer.main.get_command(app))
    for option in command.params
    for value in SLIPS.get(option.type_descriptor.annotation, ())
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of a decoder of this project, and of a short encoder of transformers."""
    torch.manual_seed(0)
    folder, sizes = tmp_path_factory.mktemp("checkpoints"), tiny.MODEL
    own = LongspanConfig(**sizes, vocab_size=259, max_position_embeddings=64, attention="local")
    LongspanForCausalLM(own).save_pretrained(folder / "decoder")
    short = {x: y for x, y in sizes.items() if x != "classifier_hidden_size"}
    short |= {"vocab_size": 259, "max_position_embeddings": 34, "pad_token_id": 1}
    RobertaForMaskedLM(RobertaConfig(**short)).save_pretrained(folder / "encoder")
    return folder


@pytest.fixture
def arguments(finished, tiny_cache, checkpoints, tmp_path, monkeypatch):
    """Function that returns arguments of a command by the names of its parameters."""
    monkeypatch.setattr(PeakMeter, "measure", lambda self, make: 2**20)
    limits = Limits(flops_per_second=2e9, bytes_per_second=3e9)
    monkeypatch.setattr("longspan.bench.suite.measure_limits", lambda *_: limits)
    record = next((finished / "smoke" / "listops").glob("local-*.json"))
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} of words\n" for n in range(60)))
    known = {
        **{key: [record] for key in ("record", "records")},
        **{key: [finished] for key in ("folders", "places", "paths")},
        **{key: [text] for key in ("corpus", "file")},
        **{"source": [checkpoints / "encoder"], "checkpoint": [checkpoints / "decoder"]},
        "start": [checkpoints / "encoder"],
        **{"task": ["listops"], "name": ["listops"], "suite": ["layer"], "mechanism": ["local"]},
        "folder": [tmp_path / "new"],
        "path": [text],
    }
    given = {"--cache": tiny_cache, "--runs": tmp_path / "runs", "--device": "cpu"}
    given |= {
        "--prompt-ids": "5,6",
        "--max-new-tokens": 2,
        "--top-k": 2,
        "--lengths": 16,
        "--mechanisms": "local",
        "--max-length": 64,
    }
    given |= {"--document": "line", "--task": "listops"}
    given |= {"--tokens": 64, "--hidden-size": 32, "--heads": 2, "--times": 1}
    given["--output"] = tmp_path / "out"
    tasks = {("data", "import"): ["corpus", text], ("data", "show"): ["listops"]}

    def made(words, command, own):
        found = list(tasks.get(words, ()))
        for x in command.params:
            if x.param_type_name == "argument":
                found += [] if words in tasks else known[x.name]
            elif x.opts[0] in given and x.opts[0] != own:
                found += [x.opts[0], given[x.opts[0]]]
        if words == ("data", "show"):
            found += [y for name, x in tiny.TASK.items() for y in ("--set", f"{name}={x}")]
        return found

    return made


@pytest.mark.parametrize(("words", "command", "option", "value"), OPTIONS)
def test_numbers_are_refused_in_words_or_taken(words, command, option, value, cli, arguments):
    started = time.monotonic()
    code, _, err = cli(*words, *arguments(words, command, option), f"{option}={value}")
    assert time.monotonic() - started < SECONDS
    if code == 0:
        assert value > 0
        assert option in TAKES_HUGE
        return
    assert code == 2
    assert err.startswith("error: ")
