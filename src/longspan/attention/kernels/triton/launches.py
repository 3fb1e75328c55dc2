"""Launches of the kernels in `feature_map_sums`: tiles, segments and buffers of a call."""

from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.kernels.triton.feature_map_sums import (
    Form,
    Sizes,
    key_gradients,
    mix_segment,
    query_gradients,
    scan_segments,
    sum_segment,
)
from longspan.attention.kernels.triton.tiles import dense, on_device, rows_of, sum_dtype, tl, triton
from longspan.attention.ops.precision import empty_rows

PROGRAMS = 528  # four for each of the 132 multiprocessors of an H100
CHUNK = 64  # tokens; tl.dot takes no fewer than 16
_SCAN_BLOCK = 1024
STAGES = 1
DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


class Plan(NamedTuple):
    """Constants and sizes of a call.

    A causal call walks over the positions of the keys; `queries` and `keys` are then equal. Others
    walk over queries or keys, with one state for all.
    """

    form: Form
    rows: int
    queries: Sizes
    keys: Sizes

    @property
    def options(self) -> dict[str, int]:
        """Options of every launch but the scan."""
        # With four warps these would not fit into registers.
        many = self._state_elements > 64 * 64 or self._is_exact
        return {"num_warps": 8 if many else 4, "num_stages": STAGES}

    def reading(self, sizes: Sizes) -> tuple[tuple[int, int], Sizes]:
        """Return the grid and the sizes of a walk that reads a state.

        In a loop that does not change the state, Triton keeps both terms of its split into TF32 in
        shared memory, for each of two layouts. Where they do not fit, a program has one chunk.
        """
        programs = sizes.segments
        if not self.form.causal:
            if self._is_exact and self._state_elements > 64 * 128:
                programs *= sizes.steps
                sizes = sizes._replace(steps=1)
            sizes = sizes._replace(segments=1)
        return (self.rows, programs), sizes

    @property
    def _is_exact(self) -> bool:
        return self.form.precision.value == "tf32x3"

    @property
    def _state_elements(self) -> int:
        return self.form.feature_tile.value * self.form.value_tile.value


def mix_values(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, elu: bool, causal: bool, least: float
) -> tuple[Tensor, Tensor]:
    """Mix values, without gradients.

    Args:
        q: inputs of the feature map (B, H, T, M), or features.
        k: the same of the keys (B, H, S, M); features are zero at hidden keys.
        v: values (B, H, S, E).
        mask: True at keys that are seen (B, S), or None.
        elu: whether features are elu(x) + 1 of the inputs.
        causal: whether query t sees the keys s <= t + S - T alone.
        least: a row is zero if the absolute sum of its weights does not exceed this.

    Returns:
        The mixed values (B, H, T, E), and the reciprocal sum of weights (B, H, T), zero where the
        row is.
    """
    plan = _plan(q, k, v, elu, causal)
    out = empty_rows(q, v.shape[-1], v.dtype)
    inverse = q.new_empty(q.shape[:3], dtype=sum_dtype(v))
    q, k, v = (dense(x) for x in (q, k, v))
    mask = None if mask is None else mask.contiguous().view(torch.uint8)
    with on_device(q):
        state = _state_of_keys(plan, k, v, mask)
        grid, sizes = plan.reading(plan.queries)
        mix_segment[grid](
            *(rows_of(x) for x in (q, k, v)),
            *(mask, state, rows_of(out), inverse, least, sizes, plan.form),
            **plan.options,
        )
    return out, inverse


def mix_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    inverse: Tensor,
    elu: bool,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from the gradient of the output of `mix_values`.

    Args:
        grad: gradient of the mixed values (B, H, T, E).
        q: as in `mix_values`, like the following.
        k: keys.
        v: values.
        mask: True at keys that are seen, or None.
        inverse: reciprocal sums that `mix_values` returned.
        elu: whether features are elu(x) + 1 of the inputs.
        causal: whether later keys are hidden.
    """
    plan = _plan(q, k, v, elu, causal)
    dq, dk, dv = (empty_rows(x, x.shape[-1], x.dtype) for x in (q, k, v))
    by_weight = torch.empty_like(inverse)
    grad, q, k, v = (dense(x) for x in (grad, q, k, v))
    mask = None if mask is None else mask.contiguous().view(torch.uint8)
    inputs = (*(rows_of(x) for x in (q, k, v)), mask)
    with on_device(q):
        state = _state_of_keys(plan, k, v, mask)
        grid, sizes = plan.reading(plan.queries)
        query_gradients[grid](
            *(*inputs, state, rows_of(grad), inverse, rows_of(dq), by_weight, sizes, plan.form),
            **plan.options,
        )
        rows, shift = plan.queries.queries, plan.queries.shift
        walk = (rows_of(q), rows_of(grad), None, inverse, by_weight, rows, shift)
        state = _sum(plan, plan.queries, grad, walk, reverse=True)
        grid, sizes = plan.reading(plan.keys)
        key_gradients[grid](
            *(*inputs, state, rows_of(grad), inverse, by_weight, rows_of(dk), rows_of(dv)),
            *(sizes, plan.form),
            **plan.options,
        )
    return dq, dk, dv


def _plan(q: Tensor, k: Tensor, v: Tensor, elu: bool, causal: bool) -> Plan:
    """Choose tiles and segments."""
    (B, H, T, M), (S, E) = q.shape, v.shape[2:]
    dtype = sum_dtype(v)
    exact = v.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    precision, tiles = "tf32x3" if exact else "tf32", tile_widths(M, E, exact)
    chunk = chunk_length(q.device)
    constants = (chunk, *tiles, causal, elu, precision, DTYPES[dtype])
    form = Form(*(tl.constexpr(x) for x in constants))
    sizes = Sizes(H, T, S, M, E, *_divide(S, chunk, B * H), T - S if causal else 0)
    segments, steps = _divide(T, chunk, B * H)
    queries = sizes if causal else sizes._replace(segments=segments, steps=steps)
    return Plan(form, B * H, queries, sizes)


def tile_widths(features: int, values: int, exact: bool) -> tuple[int, int]:
    """Return the widths of the tiles of features and of values: powers of two, at least 16.

    At least 32 where a product is three of TF32: Triton 3.6 gives those of 16 columns to eight
    warps, and the causal kernels then compute wrong numbers or end at an illegal address.
    """
    least = 32 if exact else 16
    return tuple(max(least, triton.next_power_of_2(x)) for x in (features, values))


def chunk_length(device: torch.device) -> int:
    """Return the tokens of a chunk.

    Hopper's and Blackwell's matrix instructions take 64 rows. Earlier ones have smaller tiles, for
    which their registers and shared memory suffice.
    """
    if device.type != "cuda" or torch.cuda.get_device_properties(device).major in (9, 10):
        return CHUNK
    return CHUNK // 2


def _divide(tokens: int, chunk: int, rows: int) -> tuple[int, int]:
    """Return the number of segments, and the chunks of one."""
    chunks = triton.cdiv(tokens, chunk)
    steps = triton.cdiv(chunks, triton.cdiv(PROGRAMS, rows))
    return triton.cdiv(chunks, steps), steps


def _state_of_keys(plan: Plan, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Sum the features of keys times values: before each segment if causal, else over all."""
    walk = (rows_of(k), rows_of(v), mask, None, None, plan.keys.keys, 0)
    return _sum(plan, plan.keys, v, walk, reverse=False)


def _sum(plan: Plan, sizes: Sizes, like: Tensor, walk: tuple, reverse: bool) -> Tensor:
    """Sum features times values: before or after each segment if causal, else over all."""
    shape = (plan.rows, sizes.segments, sizes.value_width + 1, sizes.feature_width)
    state = like.new_empty(shape, dtype=sum_dtype(like))
    sum_segment[plan.rows, sizes.segments](*walk, state, sizes, plan.form, **plan.options)
    if not plan.form.causal:
        return state.sum(1)
    size = state[0, 0].numel()
    grid = (plan.rows, triton.cdiv(size, _SCAN_BLOCK))
    scan_segments[grid](state, size, state.shape[1], REVERSE=reverse, BLOCK=_SCAN_BLOCK)
    return state
