"""Cache of a causal mechanism between steps."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longspan.attention.derivatives import has_transforms
from longspan.errors import InputError

MOST_UNUSED = 16  # tokens that a view of a state holds for each one that it only keeps in memory
# Memory with free places after a state tensor. The first step that continues the tensor takes it.
_FREE_PLACES = WeakTensorKeyDictionary()


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """Step that made a cache, of which `Cache.rollback` repeats the first tokens.

    Attributes:
        before: cache before the step, or None.
        repeat: function of a number of tokens, which returns the cache after these.
    """

    before: "Cache | None"
    repeat: "Callable[[int], Cache]"

    @property
    def start(self) -> int:
        """Number of tokens before the step."""
        return 0 if self.before is None else self.before.length


@dataclasses.dataclass(frozen=True)
class Cache:
    """State of a causal mechanism after the tokens seen so far.

    Attributes:
        signature: mechanism and options that made the cache; no other mechanism can continue it.
        length: number of tokens seen, padding included.
        shape: (B, H, D, E) of the inputs.
        dtype: dtype of the inputs.
        groups: heads of keys and values, G; fewer than H with grouped-query heads.
        state: tensors that the mechanism chooses, batch first. A step returns a new cache and
            does not modify the old one.
        recorded: step that made the cache, or None if it was not recorded.
    """

    signature: str
    length: int
    shape: tuple[int, int, int, int]
    dtype: torch.dtype
    groups: int
    state: dict[str, Tensor]
    recorded: RecordedStep | None = None

    @property
    def device(self) -> torch.device | None:
        """Device of the state, None if there is none."""
        return next((x.device for x in self.state.values()), None)

    def detach(self) -> "Cache":
        """Return the cache without autograd history, as between segments in training."""
        return self._with_state({n: x.detach() for n, x in self.state.items()})

    def to(self, device: torch.device | str) -> "Cache":
        """Return the cache on a device."""
        return self._with_state({n: x.to(device) for n, x in self.state.items()})

    def _with_state(self, state: dict[str, Tensor], **changes: Any) -> "Cache":
        """Return a cache with another state, which no recorded step made."""
        return dataclasses.replace(self, state=state, recorded=None, **changes)

    def rollback(self, tokens: int) -> "Cache | None":
        """Return the cache without the last tokens, such as rejected candidates of a draft.

        A bounded state does not hold what it forgot when these tokens came, so the cache before
        their step is taken, and the tokens of that step that stay are computed again.

        Args:
            tokens: number of tokens to remove, of steps with `record=True`.

        Returns:
            The cache, without the record of its steps; None if no token is left.

        Raises:
            InputError: the last steps were not recorded, or `tokens` is negative.
        """
        if tokens < 0:
            raise InputError(f"the number of tokens to remove must be >= 0, got {tokens}")
        length, cache = self.length - tokens, self
        while cache.length > length and (step := cache.recorded) is not None:
            if step.start < length:
                cache = step.repeat(length - step.start)
            elif step.before is None:
                break
            else:
                cache = step.before
        if cache.length > length:
            start = cache.length if cache.recorded is None else cache.recorded.start
            if start == length == 0:
                return None
            raise InputError(
                f"{self.signature} cannot forget its last {tokens} tokens: the steps of the last "
                f"{self.length - start} are recorded; pass record=True to each step whose tokens "
                "may be removed, or call activate_past_recording() of a model's state before it"
            )
        return dataclasses.replace(cache, recorded=None)

    def select_rows(self, rows: Tensor) -> "Cache":
        """Return the cache of some rows of the batch, such as the surviving beams of a search.

        Args:
            rows: indices of rows (N,), in any order, possibly repeated.

        Raises:
            InputError: `rows` is not a list of indices of rows.
        """
        if not isinstance(rows, Tensor):
            raise InputError(f"rows must be a tensor of integers, got {type(rows).__name__}")
        if rows.dim() != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            got = f"{rows.dtype} of shape {tuple(rows.shape)}"
            raise InputError(f"rows must be a vector of integers, got {got}")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.shape[0]:
            bounds = f"{int(rows.min())} to {int(rows.max())}"
            raise InputError(f"rows must be between 0 and {self.shape[0] - 1}, got {bounds}")
        state = {n: x.index_select(0, rows.to(x.device).long()) for n, x in self.state.items()}
        return self._with_state(state, shape=(len(rows), *self.shape[1:]))

    def maker_refusals(self, signature: str) -> list[str]:
        """Return the reason why a mechanism cannot read this cache: another one made it."""
        if signature == self.signature:
            return []
        return [f"the cache was made by {self.signature}, not by {signature}"]

    def refusals(self, signature: str, q: Tensor, v: Tensor) -> list[str]:
        """Return the reasons why a mechanism cannot continue this cache with new inputs."""
        reasons = self.maker_refusals(signature)
        shape = (*q.shape[:2], q.shape[3], v.shape[3])
        if self.shape != shape:
            reasons.append(f"the cache requires (B, H, D, E) = {self.shape}, got {shape}")
        if self.groups != v.shape[1]:
            reasons.append(f"the cache requires {self.groups} heads of keys, got {v.shape[1]}")
        if self.dtype != q.dtype:
            reasons.append(f"the cache requires {self.dtype}, got {q.dtype}")
        if self.device not in (None, q.device):
            where = f"the cache is on {self.device}, the inputs on {q.device}"
            reasons.append(f"{where}; use cache.to(device)")
        return reasons


def append_tokens(
    cache: Cache | None, new: dict[str, Tensor], key_mask: Tensor | None, *, grows: bool = False
) -> dict[str, Tensor]:
    """Append new tensors (B, H, S, ...) to the cached ones; add `real` if any token is masked.

    Args:
        cache: cache before the new tokens, or None.
        new: tensors of the new tokens by name.
        key_mask: True at real new tokens, or None for all.
        grows: whether the state keeps every token. Memory then has free places for later tokens,
            so that a step copies a constant number of tokens on average.
    """
    old = {} if cache is None else cache.state
    append = extend_tensor if grows else _concatenate
    state = {n: append(old[n], x, 2) if n in old else x for n, x in new.items()}
    if key_mask is None and "real" not in old:
        return state
    T, S = new["k"].shape[2], state["k"].shape[2]
    ones = new["k"].new_ones(new["k"].shape[0], T, dtype=torch.bool)
    before = old["real"] if "real" in old else ones[:, :1].expand(-1, S - T)
    state["real"] = append(before, ones if key_mask is None else key_mask, 1)
    return state


def _concatenate(old: Tensor, new: Tensor, dim: int) -> Tensor:
    return torch.cat([old, new], dim)


def extend_tensor(old: Tensor, new: Tensor, dim: int) -> Tensor:
    """Return the concatenation along a dimension, written behind `old` where memory is free there.

    Only the first tensor that extends `old` may be written there. `old` never changes.
    """
    traced = torch.compiler.is_compiling() or type(old) is not Tensor or type(new) is not Tensor
    if traced or has_transforms() or old.requires_grad or new.requires_grad:
        return torch.cat([old, new], dim)
    count, length = old.shape[dim], old.shape[dim] + new.shape[dim]
    memory = _FREE_PLACES.pop(old, None)
    # PyTorch lets no other mode write to tensors of the inference mode.
    same_mode = memory is not None and memory.is_inference() == torch.is_inference_mode_enabled()
    if not same_mode or memory.shape[dim] < length:
        sizes = [*old.shape[:dim], length + length // MOST_UNUSED, *old.shape[dim + 1 :]]
        memory = old.new_empty(sizes)
        memory.narrow(dim, 0, count).copy_(old)
    # `data` has a version of its own: graphs that saved `old` stay valid.
    memory.data.narrow(dim, count, length - count).copy_(new)
    extended = memory.narrow(dim, 0, length)
    _FREE_PLACES[extended] = memory
    return extended


def select_tokens(state: dict[str, Tensor], places: list[int]) -> dict[str, Tensor]:
    """Return the state of `append_tokens` with some of its tokens only, given by their place."""
    device = next(iter(state.values())).device
    index = torch.tensor(places, dtype=torch.long, device=device)
    return {n: x.index_select(token_dim(n), index) for n, x in state.items()}


def keep_tokens(state: dict[str, Tensor], early: list[int], start: int) -> dict[str, Tensor]:
    """Return the state of `append_tokens` without the tokens before `start`, except early ones.

    Args:
        state: tensors of all tokens.
        early: places before `start` that are kept too, in order.
        start: first of the places that are kept without gaps.
    """
    if start == 0:
        return state
    late = {
        n: x.narrow(token_dim(n), start, x.shape[token_dim(n)] - start) for n, x in state.items()
    }
    if early:
        first = select_tokens(state, early)
        return {n: torch.cat([first[n], x], token_dim(n)) for n, x in late.items()}
    # A view costs nothing, but keeps the memory of the tokens before it.
    few = start * MOST_UNUSED <= late["k"].shape[2]
    return late if few else {n: x.clone() for n, x in late.items()}


def token_dim(name: str) -> int:
    """Return the dimension of the tokens in a tensor of the state of `append_tokens`."""
    return 1 if name == "real" else 2


def clear_rows(cache: Cache, rows: Tensor, empty_state: dict[str, float]) -> Cache:
    """Return the cache with all tokens of the chosen rows turned into padding.

    Args:
        cache: cache of any mechanism.
        rows: True at the rows to clear, (B,).
        empty_state: value of a state tensor before any real token, by name; zero if absent.
    """
    state = dict(cache.state)
    if "k" in state:
        state.setdefault("real", torch.ones_like(state["k"][:, 0, :, 0], dtype=torch.bool))
    for name, x in state.items():
        cleared = rows.view(-1, *(1,) * (x.dim() - 1))
        state[name] = x.masked_fill(cleared, empty_state.get(name, 0))
    return dataclasses.replace(cache, state=state, recorded=None)
