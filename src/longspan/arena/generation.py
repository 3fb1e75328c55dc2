"""Text generation with a saved causal language model."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch import nn

from longspan.arena.paths import RunPaths
from longspan.arena.run_state import read_state
from longspan.arena.saved_checkpoint import SavedCheckpoint, open_checkpoint
from longspan.config import DecodingConfig
from longspan.data.text_codec import IncrementalDecoder, PromptTokenizer, TextCodec, encode_prompt
from longspan.data.word_pieces import has_word_pieces, load_word_pieces
from longspan.errors import DataError, LongspanError, OptionError, UnknownNameError
from longspan.models import Continuation, LongspanForCausalLM, LongspanForConditionalGeneration
from longspan.tasks import TASKS, build
from longspan.training.checkpoint_folder import load_pretrained

TextCallback = Callable[[str], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generated:
    """Continuation of a prompt.

    Attributes:
        text: text of the new tokens without the end token; None without a vocabulary.
        ids: new tokens, the end token included.
        has_ended: True if the last one is the end token.
        prompt_tokens: number of tokens of the prompt.
        prompt_seconds: time in which the model has read them.
        steps: number of new tokens that the model has read, each in a call of its own.
        seconds: time of these calls.
        state_bytes: memory of the model's state after the last call.
        device: type of the device.
        config: settings.
    """

    text: str | None
    ids: list[int]
    has_ended: bool
    prompt_tokens: int
    prompt_seconds: float
    steps: int
    seconds: float
    state_bytes: int
    device: str
    config: DecodingConfig

    @property
    def prompt_tokens_per_second(self) -> float:
        """Speed of reading the prompt."""
        return self.prompt_tokens / self.prompt_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Speed of decoding; None for one new token, which follows from the prompt."""
        return self.steps / self.seconds if self.steps else None


def generate(
    checkpoint: str | Path,
    prompt: str | Sequence[int] | np.ndarray,
    *,
    config: DecodingConfig | None = None,
    paths: RunPaths | None = None,
    on_text: TextCallback | None = None,
) -> Generated:
    """Continue a prompt with a saved causal language model.

    Args:
        checkpoint: record or directory of a finished run, or a folder that `save_pretrained`,
            `longify` or `convert` has written.
        prompt: text, or token ids.
        config: settings; None: the defaults.
        paths: folders of a run's data, and the device; None: the defaults.
        on_text: called with the new text piece by piece, in complete characters; without a
            vocabulary, with the ids separated by commas.

    Raises:
        OptionError: the checkpoint is of no causal language model, or the prompt is a text and the
            checkpoint has no vocabulary.
        DataError: the checkpoint or the data of its run cannot be read, or the prompt is empty or
            has characters that are not in the vocabulary.
        InputError: the prompt has ids outside the vocabulary, or is too long.
        UnknownNameError: a plug-in that registers the task of a run is not loaded.
    """
    model, codec = _open(checkpoint, paths or RunPaths(), needs_codec=isinstance(prompt, str))
    if isinstance(prompt, str):
        assert codec is not None
        prompt = encode_prompt(codec, prompt)
    config = config or DecodingConfig()
    run = Continuation(model, prompt, config)
    decoder = None if codec is None else IncrementalDecoder(codec.decode, prompt)
    ids: list[int] = []
    pieces: list[str] = []
    for piece in _pieces(run, decoder, ids):
        pieces.append(piece)
        if on_text is not None and piece:
            on_text(piece)
    return Generated(
        text=None if codec is None else "".join(pieces),
        ids=ids,
        has_ended=run.has_ended,
        prompt_tokens=run.prompt_tokens,
        prompt_seconds=run.prompt_seconds,
        steps=run.steps,
        seconds=run.seconds,
        state_bytes=0 if run.state is None else run.state.num_bytes,
        device=model.device.type,
        config=config,
    )


def _pieces(run: Continuation, decoder: IncrementalDecoder | None, ids: list[int]) -> Iterator[str]:
    """Yield the new text piece by piece, or the ids separated by commas; collect the ids."""
    for token in run:
        if decoder is None:
            yield f",{token}" if ids else str(token)
        elif not run.has_ended:
            yield decoder.add(token)
        ids.append(token)
    if decoder is not None:
        yield decoder.finish()


def _open(
    checkpoint: str | Path, paths: RunPaths, *, needs_codec: bool
) -> tuple[LongspanForCausalLM, TextCodec | None]:
    """Load a saved causal language model with its vocabulary, which may be unknown."""
    source = open_checkpoint(checkpoint)
    _check_causal(source)
    try:
        codec = _find_codec(source, paths)
    except LongspanError:
        # Ids need no vocabulary; they are printed as they are.
        if needs_codec:
            raise
        codec = None
    if codec is None and needs_codec:
        raise OptionError(
            f"{source.folder} has no tokenizer, and is of no run on a task of texts; save a "
            "tokenizer into the folder, or give the prompt as token ids"
        )
    model = load_pretrained(LongspanForCausalLM, source.folder, "write the checkpoint again")
    cast(nn.Module, model).to(paths.device_type).eval()
    return model, codec


def _check_causal(source: SavedCheckpoint) -> None:
    """Refuse a checkpoint of another model than a causal language model."""
    names = source.config.architectures or []
    if LongspanForCausalLM.__name__ in names:
        return
    description = f"is of {names[0]}" if names else "names no model in its config.json"
    other = (
        "; longspan predict writes the texts of a run of it"
        if LongspanForConditionalGeneration.__name__ in names
        else ""
    )
    raise OptionError(
        f"{source.folder} {description}; longspan generate continues texts with "
        f"{LongspanForCausalLM.__name__}, a decoder trained to predict the next token{other}"
    )


def _find_codec(source: SavedCheckpoint, paths: RunPaths) -> TextCodec | None:
    """Return the vocabulary of a checkpoint: its folder's tokenizer, or its run's task."""
    if has_word_pieces(source.folder):
        return PromptTokenizer(load_word_pieces(source.folder))
    if source.task is None:
        return None
    name = source.task.name
    if name not in TASKS:
        raise UnknownNameError(
            f"{source.folder} was trained on task {name!r}, which is not registered here; pass the "
            "file that registers it, --import FILE, or of an import its --cache FOLDER"
        )
    task = build(name, source.task.options)
    if not isinstance(task, TextCodec):
        return None
    # The vocabulary may have been learned from the data.
    task.open(paths.cache, paths.data)
    state = read_state(source.folder.parent)
    if state is not None and state.data_checksum != task.checksum:
        raise DataError(
            f"{source.folder} was trained on data {state.data_checksum[:12]}, but the data here is "
            f"{task.checksum[:12]}; pass the same source with --data"
        )
    return task
