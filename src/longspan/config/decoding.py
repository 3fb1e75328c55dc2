"""Decoding of a causal language model: length, sampling, and how the prompt is read."""

from longspan.bounds import LARGEST_SEED, LONGEST, MOST_IDS
from longspan.config.base import list_out_of_bounds, setting, settings
from longspan.errors import OptionError

_SINGLE = 1.0  # temperature of the distribution that the model predicts


@settings
class DecodingConfig:
    """Settings of text generation.

    The temperature is applied first, then `top_k`, then `top_p`, as in transformers.
    """

    max_new_tokens: int = setting(
        "maximum number of new tokens, the end token included", 256, bounds=(1, LONGEST)
    )
    temperature: float = setting("divisor of the logits before sampling", _SINGLE)
    top_k: int | None = setting(
        "most probable tokens to sample from; none: all", None, bounds=(1, MOST_IDS)
    )
    top_p: float | None = setting(
        "probability of the smallest set of tokens to sample from; none: all tokens", None
    )
    greedy: bool = setting("take the most probable token, without sampling", False)
    seed: int = setting("seed of the samples", 0, bounds=(0, LARGEST_SEED))
    prefill_chunk_size: int = setting(
        "tokens of the prompt that one call reads", 4096, bounds=(1, LONGEST)
    )

    def __post_init__(self) -> None:
        """Check the ranges, and that sampling has an effect.

        Raises:
            OptionError: a value is out of range, or greedy decoding has options of sampling; the
                message lists every reason.
        """
        reasons = list_out_of_bounds(self)
        if self.temperature <= 0:
            remedy = "for the most probable tokens, set greedy"
            reasons.append(f"temperature must be > 0, got {self.temperature:g}; {remedy}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            reasons.append(f"top_p must be > 0 and at most 1, got {self.top_p:g}")
        if self.greedy and (self.temperature != _SINGLE or self.top_k or self.top_p):
            reasons.append(
                "greedy decoding samples nothing; omit temperature, top_k and top_p, or greedy"
            )
        if reasons:
            raise OptionError("; ".join(reasons))
