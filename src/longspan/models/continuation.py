"""Continuation of a prompt: a long prompt read in pieces, new tokens drawn one by one.

The samples are those of transformers' `generate` with the same logits. Differences: the prompt is
read in several calls, so that memory does not grow with its length if the mechanism's state does
not; samples come from an explicit generator on the CPU, so that they do not depend on the device or
the global seed; tokens are available as soon as they are drawn.
"""

import time
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers.generation import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from longspan.config import DecodingConfig
from longspan.errors import InputError, RunError
from longspan.models.cache import LongspanCache
from longspan.models.config import LongspanConfig
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.shapes import Float


class Continuation:
    """New tokens of a causal language model after a prompt; iterate over them once.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        prompt_seconds: time in which the model has read them.
        steps: number of generated tokens that the model has read, each in a call of its own.
        seconds: time of these calls and of drawing the tokens after them.
        has_ended: True once the end token is drawn.
        state: state after the last token that the model has read.
    """

    def __init__(
        self,
        model: LongspanForCausalLM,
        prompt: Sequence[int] | np.ndarray,
        config: DecodingConfig,
    ):
        """Read the prompt.

        Args:
            model: model in evaluation mode.
            prompt: token ids.
            config: settings.

        Raises:
            InputError: the prompt is empty, has ids outside the vocabulary, or is too long for the
                positions of the model together with the new tokens.
        """
        ids = np.asarray(prompt)
        _check_prompt(ids, model.config, config)
        self.model, self.config = model, config
        self.prompt_tokens, self.prompt_seconds = len(ids), 0.0
        self.steps, self.seconds, self.has_ended = 0, 0.0, False
        self.state: LongspanCache | None = None
        self._processors = _logits_processors(config)
        self._generator = torch.Generator().manual_seed(config.seed)
        self._ends = _end_tokens(model)
        started = time.perf_counter()
        for start in range(0, len(ids), config.prefill_chunk_size):
            scores = self._read(ids[start : start + config.prefill_chunk_size])
        # The copy to the CPU waits for the device.
        self._scores = scores.float().cpu()
        self.prompt_seconds = time.perf_counter() - started

    def __iter__(self) -> Iterator[int]:
        """Draw tokens up to the end token or the maximum number, and yield each of them.

        Raises:
            RunError: the model predicts NaN.
        """
        token = self._draw()
        for _ in range(self.config.max_new_tokens - 1):
            self.has_ended = token in self._ends
            yield token
            if self.has_ended:
                return
            started = time.perf_counter()
            self._scores = self._read(np.array([token])).float().cpu()
            token = self._draw()
            self.seconds += time.perf_counter() - started
            self.steps += 1
        self.has_ended = token in self._ends
        yield token

    @torch.no_grad()
    def _read(self, ids: np.ndarray) -> Float[Tensor, "1 V"]:
        """Read tokens; return the logits of the token after the last one."""
        inputs = torch.from_numpy(ids.astype(np.int64))[None].to(self.model.device)
        output = self.model(
            inputs, cache=self.state, use_cache=True, logits_to_keep=1, return_dict=True
        )
        self.state = output.cache
        return output.logits[:, -1]

    def _draw(self) -> int:
        """Return the next token."""
        scores = self._scores
        if scores.isnan().any():
            raise RunError("the model predicts NaN; train the checkpoint again, or use another")
        if self.config.greedy:
            return int(scores.argmax())
        # The processors of sampling do not read the tokens before.
        warped = self._processors(cast(torch.LongTensor, None), cast(torch.FloatTensor, scores))
        return int(torch.multinomial(warped.softmax(-1), 1, generator=self._generator))


def _logits_processors(config: DecodingConfig) -> LogitsProcessorList:
    """Return the changes of the logits before sampling, in the order of transformers."""
    processors = LogitsProcessorList()
    if config.temperature != 1:
        processors.append(TemperatureLogitsWarper(float(config.temperature)))
    if config.top_k is not None:
        processors.append(TopKLogitsWarper(config.top_k))
    if config.top_p is not None and config.top_p < 1:
        processors.append(TopPLogitsWarper(float(config.top_p)))
    return processors


def _end_tokens(model: LongspanForCausalLM) -> frozenset[int]:
    """Return the tokens that end a text, as the checkpoint names them for `generate`."""
    settings = model.generation_config
    ends = None if settings is None else settings.eos_token_id
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def _check_prompt(ids: np.ndarray, model: LongspanConfig, config: DecodingConfig) -> None:
    if ids.ndim != 1 or not len(ids):
        raise InputError("the prompt has no tokens; give at least one")
    if not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"token ids must be integers, got {ids.dtype}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= model.vocab_size:
        raise InputError(
            f"token ids of the prompt must be in 0..{model.vocab_size - 1}, got {low}..{high}; "
            "encode it with the checkpoint's tokenizer"
        )
    # The last new token is not read.
    needed, most = len(ids) + config.max_new_tokens - 1, model.max_position_embeddings
    if model.limits_length and needed > most:
        shorter = most - config.max_new_tokens + 1
        remedies = [f"shorten the prompt to {shorter:,} tokens"] if shorter > 0 else []
        if len(ids) <= most:
            remedies.append(f"set max_new_tokens to {most - len(ids) + 1:,} or less")
        raise InputError(
            f"a prompt of {len(ids):,} tokens with {config.max_new_tokens:,} new ones needs "
            f"{needed:,} positions, the model has {most:,}; "
            f"{', or '.join(remedies or ['shorten both'])}"
        )
