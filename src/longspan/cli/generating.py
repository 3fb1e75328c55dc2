"""`longspan generate`: continuation of a prompt with a causal language model."""

import dataclasses
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.cli.common import IS_MAIN, print_json, print_note
from longspan.cli.finetuning import Checkpoint
from longspan.cli.options import DeviceOptions, Json, field
from longspan.config import DecodingConfig
from longspan.errors import DataError, OptionError
from longspan.files import SMALL, read_file
from longspan.wording import counted, device_text

if TYPE_CHECKING:
    from longspan.arena.generation import Generated


def generate(
    checkpoint: Checkpoint,
    config: DecodingConfig,
    folders: DeviceOptions,
    prompt: str | None = field("Text to continue."),
    prompt_file: Path | None = field("UTF-8 file of the text to continue, of any size."),
    prompt_ids: str | None = field(
        "Comma-separated token ids to continue, for a model without a vocabulary."
    ),
    as_json: Json = False,
) -> None:
    """Continue a text with a causal language model; the new text streams to the output.

    The tokenizer is that of the checkpoint's folder, or the vocabulary of the run's task. A long
    prompt is read in pieces, so that memory does not grow with it where the mechanism's state is
    bounded. Speeds and the memory of the state follow on the error stream.
    """
    from longspan.arena.generation import generate as generate_text

    continuation = generate_text(
        checkpoint,
        _read_prompt(prompt, prompt_file, prompt_ids),
        config=config,
        paths=folders.run_paths(),
        on_text=None if as_json else _write,
    )
    if as_json:
        print_json({"checkpoint": str(checkpoint), **_describe(continuation)})
    else:
        _write("\n")
        print_note("speed:", _summary(continuation))


def _read_prompt(text: str | None, file: Path | None, ids: str | None) -> str | list[int]:
    """Return the prompt: a text, or token ids.

    Raises:
        OptionError: there is none, or several; or an id is not an integer.
        DataError: the file does not exist, or is not UTF-8.
    """
    if sum(x is not None for x in (text, file, ids)) != 1:
        raise OptionError(
            "generate takes one prompt: --prompt TEXT, --prompt-file FILE or --prompt-ids 5,6,7"
        )
    if file is not None:
        try:
            return read_file(file, SMALL).decode()
        except OSError as error:
            what = "is a folder" if file.is_dir() else "does not exist"
            raise DataError(f"{file} {what}; --prompt-file takes a UTF-8 text file") from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file} is not UTF-8 at byte {error.start:,}; convert it to UTF-8"
            ) from None
    if text is not None:
        return text
    try:
        return [int(token) for token in str(ids).split(",")]
    except ValueError:
        raise OptionError(f"--prompt-ids takes comma-separated integers, got {ids!r}") from None


def _write(piece: str) -> None:
    """Write a piece of the text at once; a terminal gets no control characters."""
    if not IS_MAIN:
        return
    if sys.stdout.isatty():
        piece = "".join(
            "\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in piece
        )
    sys.stdout.write(piece)
    sys.stdout.flush()


def _describe(continuation: "Generated") -> dict[str, Any]:
    speeds = {
        "prompt_tokens_per_second": continuation.prompt_tokens_per_second,
        "tokens_per_second": continuation.tokens_per_second,
    }
    return dataclasses.asdict(continuation) | speeds


def _summary(continuation: "Generated") -> str:
    from longspan.report.numbers import magnitude, memory

    decoded = (
        f"{len(continuation.ids):,} new tokens at "
        f"{magnitude(continuation.tokens_per_second)} tokens/s"
        if continuation.steps
        else "1 new token"
    )
    return (
        f"{counted(continuation.prompt_tokens, 'prompt token|tokens')} at "
        f"{magnitude(continuation.prompt_tokens_per_second)} tokens/s, {decoded}, "
        f"state of {memory(continuation.state_bytes)}, {device_text(continuation.device)}"
    )
