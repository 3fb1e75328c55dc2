"""`longspan generate`: output, error stream, JSON, refusals."""

import json
import re

import pytest

from causal_checkpoints import PROMPT, make_model, save_folder
from longspan.arena import RunPaths, generate
from longspan.cli import common, generating
from longspan.config import DecodingConfig
from test_cli_errors import check_rejected

FLAGS = ("--max-new-tokens", 12, "--seed", 3, "--device", "cpu")
CONFIG = DecodingConfig(max_new_tokens=12, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("causal") / "model")


@pytest.fixture(scope="module")
def expected(folder):
    return generate(folder, PROMPT, config=CONFIG, paths=RunPaths(device="cpu"))


def test_text_is_the_output_and_speeds_are_notes(cli, folder, expected):
    out, err = cli.done("generate", folder, "--prompt", PROMPT, *FLAGS)
    assert out == f"{expected.text}\n"
    number = r"[\d.]+k?"
    assert re.fullmatch(
        rf"speed: {expected.prompt_tokens} prompt tokens at {number} tokens/s, 12 new tokens at "
        rf"{number} tokens/s, state of {number} [KM]iB, cpu\n",
        err,
    )


def test_prompt_of_a_file_is_read_as_it_is(cli, folder, tmp_path, expected):
    (tmp_path / "prompt.txt").write_bytes(f"{PROMPT}\r\n".encode())
    command = ("generate", folder, "--prompt-file", tmp_path / "prompt.txt", "--json", *FLAGS)
    out, _ = cli.done(*command)
    assert json.loads(out)["prompt_tokens"] == expected.prompt_tokens + 2


def test_json_has_text_ids_speeds_state_and_settings(cli, folder, expected):
    command = ("generate", folder, "--prompt", PROMPT, "--json", "--top-k", 257, *FLAGS)
    out, _ = cli.done(*command)
    found = json.loads(out)
    assert (found["text"], found["ids"]) == (expected.text, expected.ids)
    assert found["state_bytes"] == expected.state_bytes
    assert found["tokens_per_second"] == pytest.approx(found["steps"] / found["seconds"])
    read = found["prompt_tokens"] / found["prompt_seconds"]
    assert found["prompt_tokens_per_second"] == pytest.approx(read)
    assert found["config"] == {
        "max_new_tokens": 12,
        "temperature": 1.0,
        "top_k": 257,
        "top_p": None,
        "greedy": False,
        "seed": 3,
        "prefill_chunk_size": 4096,
    }
    assert found["checkpoint"] == str(folder)


def test_ids_continue_ids(cli, tmp_path):
    bare = save_folder(tmp_path, tokenizer=False)
    out, _ = cli.done("generate", bare, "--prompt-ids", "5,6,7", *FLAGS)
    ids = [int(token) for token in out.split(",")]
    assert len(ids) == 12
    config = DecodingConfig(max_new_tokens=12, seed=3)
    assert ids == generate(bare, [5, 6, 7], config=config, paths=RunPaths(device="cpu")).ids


def test_one_new_token_has_no_speed(cli, folder):
    _, err = cli.done("generate", folder, "--prompt", "a", "--max-new-tokens", 1, "--greedy")
    assert ", 1 new token, state of" in err


class Terminal:
    """Output stream that is a terminal."""

    def __init__(self, is_terminal):
        self.text, self.flushed, self.isatty = "", 0, lambda: is_terminal

    def write(self, text):
        self.text += text

    def flush(self):
        self.flushed += 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_terminal_gets_no_control_characters(is_terminal, monkeypatch):
    stream = Terminal(is_terminal)
    monkeypatch.setattr(generating.sys, "stdout", stream)
    generating._write("a\x1b[2J\tb\n")
    generating._write("\x9b")
    expected = "a\ufffd[2J\tb\n\ufffd" if is_terminal else "a\x1b[2J\tb\n\x9b"
    assert (stream.text, stream.flushed) == (expected, 2)


def test_only_the_main_process_writes(monkeypatch):
    stream = Terminal(False)
    monkeypatch.setattr(generating.sys, "stdout", stream)
    monkeypatch.setattr(generating, "IS_MAIN", False)
    assert common.IS_MAIN
    generating._write("a")
    assert stream.text == ""


PROMPTS = ("--prompt", "abc")
INVALID = {
    "no prompt": ((), "generate takes one prompt: --prompt TEXT, --prompt-file FILE or"),
    "two prompts": ((*PROMPTS, "--prompt-ids", "5"), "generate takes one prompt"),
    "empty": (("--prompt", ""), "--prompt is empty; give a value"),
    "no numbers": (("--prompt-ids", "5,a"), "takes comma-separated integers, got '5,a'"),
    "other ids": (("--prompt-ids", "5,300"), "must be in 0..256, got 5..300"),
    "temperature": ((*PROMPTS, "--temperature", "0"), "temperature must be > 0, got 0"),
    "top-k": ((*PROMPTS, "--top-k", "0"), "top_k must be at least 1, got 0"),
    "top-p": ((*PROMPTS, "--top-p", "1.2"), "top_p must be > 0 and at most 1, got 1.2"),
    "max": ((*PROMPTS, "--max-new-tokens", "0"), "max_new_tokens must be at least 1, got 0"),
    "both": ((*PROMPTS, "--greedy", "--top-k", "3"), "greedy decoding samples nothing"),
    "no file": (
        ("--prompt-file", "/gone/x"),
        "/gone/x does not exist; --prompt-file takes a UTF-8",
    ),
    "folder": (("--prompt-file", "/"), "/ is a folder; --prompt-file takes a UTF-8 text file"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_commands_are_refused(case, cli, folder):
    flags, message = INVALID[case]
    check_rejected(cli("generate", folder, *flags, "--device", "cpu"), message)


def test_file_that_is_not_utf8_is_refused(cli, folder, tmp_path):
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    found = cli("generate", folder, "--prompt-file", tmp_path / "latin")
    check_rejected(found, "latin is not UTF-8 at byte 2; convert it to UTF-8")


def test_too_long_prompt_is_refused(cli, tmp_path, capsys):
    save_folder(tmp_path, make_model(position="learned"))
    capsys.readouterr()  # the progress bar of transformers
    found = cli("generate", tmp_path, "--prompt", "a" * 100)
    check_rejected(found, "a prompt of 100 tokens with 256 new ones needs 355 positions", "has 128")
