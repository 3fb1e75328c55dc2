"""State, mask, positions and rotations of a model's call, from the arguments of its caller."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from longspan.attention import Traits
from longspan.errors import InputError
from longspan.models.cache import LongspanCache, past_refusals
from longspan.models.config import LongspanConfig
from longspan.models.inputs import (
    check_integers,
    drop_full_mask,
    is_readable,
    prepend,
    to_boolean_mask,
)
from longspan.models.positions import rotary_table
from longspan.models.relative import TRAITS, has_buckets


def select_cache(
    config: LongspanConfig,
    past: LongspanCache | None,
    use_cache: bool | None,
    global_mask: Tensor | None,
    inputs: Tensor,
    default: bool,
) -> LongspanCache | None:
    """Return an empty cache for the state after a call, or None.

    Args:
        config: configuration of the model.
        past: state before the call, or None.
        use_cache: whether the caller wants the state; None: see `default`.
        global_mask: mask of the global tokens, or None.
        inputs: new tokens.
        default: whether decoders return their state if the configuration says so.

    Raises:
        InputError: the state is of another model or batch, or the model or the call supports none.
    """
    layers = config.num_hidden_layers
    reasons = [] if past is None else past_refusals(past, layers, len(inputs))
    if (past is not None or use_cache) and not config.is_decoder:
        reasons.append("a state between calls requires is_decoder=True")
    if past is not None and global_mask is not None:
        reasons.append("tokens that continue a state cannot be global")
    if reasons:
        raise InputError(f"cache and use_cache: {'; '.join(reasons)}")
    if use_cache is None:
        by_default = default and config.is_decoder and config.use_cache and global_mask is None
        use_cache = past is not None or by_default
    if use_cache and global_mask is not None:
        raise InputError("use_cache=True does not support global_attention_mask")
    if not use_cache:
        return None
    return LongspanCache(layers) if past is None else past.successor()


def select_mask(
    config: LongspanConfig, mask: Tensor | None, inputs: Tensor, past: LongspanCache | None
) -> Tensor | None:
    """Return the mask of the new tokens; refuse an input that becomes too long."""
    seen = 0 if past is None else past.get_seq_length()
    config.sequence_length(seen + inputs.shape[1])
    real = to_boolean_mask("attention_mask", mask, inputs, seen)
    # The state of a decoder knows which tokens are real.
    return real if config.is_decoder else drop_full_mask(real)


def check_gaps(
    config: LongspanConfig, traits: Sequence[Traits], past: LongspanCache, real: Tensor | None
) -> None:
    """Refuse new tokens behind padding, where a distance, block or segment counts it.

    Args:
        config: configuration of the model.
        traits: those of the mechanism of each layer.
        past: state before the call.
        real: True at the real ones of the new tokens, or None for all.

    Raises:
        InputError: see above. Traced calls assert it on the device.
    """
    counts_distances = config.position in TRAITS or has_buckets(config) or config.short_convolution
    if all(each.ignores_gaps for each in traits) and not counts_distances:
        return
    gaps = past.gaps(real, anchored=any(each.anchored for each in traits))
    if gaps is None:
        return
    counting = (
        f"{', '.join(dict.fromkeys(config.attention_names))} with position={config.position!r}"
    )
    if config.short_convolution:
        counting += f" and short_convolution={config.short_convolution}"
    reason = (
        "new tokens must follow the last token of their row, without padding between them: "
        f"{counting} counts it; pad prompts on the left (tokenizer.padding_side='left'), in one "
        "call"
    )
    if torch.compiler.is_compiling():
        torch._assert_async(~gaps.any(), reason)
    elif is_readable(gaps) and gaps.any():
        raise InputError(f"{reason}; got padding in rows {gaps.nonzero()[:4, 0].tolist()}")


def select_positions(
    config: LongspanConfig,
    positions: Tensor | None,
    inputs: Tensor,
    real: Tensor | None,
    past: LongspanCache | None,
) -> Tensor | None:
    """Return the position of each token, summary token included; None: its index.

    Raises:
        InputError: the positions that are given have another shape.
    """
    if positions is None:
        counted = _counted_tokens(config, inputs, real, past)
        if counted is None:
            return None
        positions = (LongspanCache(0) if past is None else past).positions(counted)
    else:
        B, T = inputs.shape[:2]
        check_integers("position_ids", positions, (B, T), (1, T))
    if config.pooling == "cls":
        return torch.cat((torch.zeros_like(positions[:, :1]), positions + 1), dim=1)
    return positions


def _counted_tokens(
    config: LongspanConfig, inputs: Tensor, real: Tensor | None, past: LongspanCache | None
) -> Tensor | None:
    """Return True at tokens (B, T) that move the positions after them; None: all do."""
    if config.is_decoder:
        every = None if past is None else inputs.new_ones(inputs.shape[:2], dtype=torch.bool)
        return every if real is None else real
    if config.positions_skip_padding and inputs.ndim == 2:
        return inputs.ne(cast(int, config.pad_token_id))
    return None


def prepend_global_summary(
    config: LongspanConfig, mask: Tensor | None, inputs: Tensor
) -> Tensor | None:
    """Extend the global mask by the summary token, global if the mechanism supports that."""
    if not config.supports_global_tokens:
        return None
    if mask is None:
        mask = inputs.new_zeros(inputs.shape[:2], dtype=torch.bool)
    return prepend(mask, True)


def rotary_tables(
    config: LongspanConfig, x: Tensor, positions: Tensor | None
) -> dict[float, Tensor]:
    """Return the rotations of the states (B, T, M) for the base of each layer."""
    if config.position_encoding != "rotary":
        return {}
    if positions is None:
        positions = torch.arange(x.shape[1], device=x.device)[None]
    return {
        base: rotary_table(positions, config.head_dim, dtype=x.dtype, base=base)
        for base in dict.fromkeys(config.rotary_bases)
    }
