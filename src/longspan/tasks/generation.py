"""Generation: how a model writes the texts that a task scores."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """Beam search for the texts of a task; equal for validation, test and new texts.

    Attributes:
        beams: number of beams; 1: the most probable token at each step.
        length_penalty: exponent of the length by which the log-probability of a beam is divided.
        no_repeat_ngram_size: length of the token sequences that may occur only once; 0: any may
            be repeated.
        min_tokens: tokens before the end token is allowed.
        max_tokens: maximum number of tokens, the end token included.
        start_token: first input of the decoder, which is no part of the text.
        end_token: token that ends a text.
        padding_token: token behind the end of a text.
        suppressed_tokens: tokens that are never generated, such as unknown words.
    """

    beams: int
    length_penalty: float
    no_repeat_ngram_size: int
    min_tokens: int
    max_tokens: int
    start_token: int
    end_token: int
    padding_token: int
    suppressed_tokens: tuple[int, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """Return the fields of transformers' `GenerationConfig`."""
        has_beams = self.beams > 1
        return {
            "do_sample": False,
            "num_beams": self.beams,
            # Without beams these have no effect, and transformers warns about other values.
            "length_penalty": self.length_penalty if has_beams else 1.0,
            "early_stopping": has_beams,
            "no_repeat_ngram_size": self.no_repeat_ngram_size,
            "min_new_tokens": self.min_tokens,
            "max_new_tokens": self.max_tokens,
            "decoder_start_token_id": self.start_token,
            "eos_token_id": self.end_token,
            "pad_token_id": self.padding_token,
            "suppress_tokens": list(self.suppressed_tokens) or None,
        }
